"""The command line, as a reader would type it."""

import csv

import pytest
import torch

from refimpl.__main__ import main, parse_settings
from refimpl.algorithms import ALGORITHMS
from refimpl.history import History
from refimpl.models import build, load
from refimpl.tasks import make_tokenizer
from refimpl.trainer import TrainConfig


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A small untrained policy on disk: enough for the plumbing."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = make_tokenizer()
    build("tiny", tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def train(policy, *more):
    small = [
        "prompts_per_rollout=4",
        "group_size=2",
        "max_new_tokens=8",
        "minibatches=2",
        "eval_problems=4",
    ]
    sets = [word for pair in small for word in ("--set", pair)]
    return ["train", "--algorithm", "grpo", "--model", policy, *sets, *more]


def test_train_writes_history_and_policy(policy, tmp_path, capsys, monkeypatch):
    """Rewards by length, so that an untrained policy has something to learn."""
    from refimpl.tasks import Arithmetic

    monkeypatch.setattr(
        Arithmetic,
        "reward",
        staticmethod(lambda prompts, completions, **_: [len(c) for c in completions]),
    )
    out, save = tmp_path / "h.csv", tmp_path / "policy"
    more = ("--rollouts", "2", "--history", str(out), "--save", str(save))
    assert main(train(policy, *more)) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    history = History.from_csv(out)
    assert last.endswith(f"accuracy {history.accuracy:.2f}") and "rollouts 2" in last
    before, after = load(policy)[0], load(save)[0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters())]
    assert not any(same), "the saved policy is the trained one"


@pytest.mark.parametrize("text", ["false", "False", "FALSE"])
def test_a_setting_that_is_off_is_off(text):
    """The word "false" is no empty string."""
    dapo = ALGORITHMS["dapo"]
    settings = parse_settings(dapo, [f"dynamic_sampling={text}"])
    assert TrainConfig(**settings).completed(dapo).dynamic_sampling is False
    settings = parse_settings(dapo, ["overlong_filtering=true"])
    assert TrainConfig(**settings).overlong_filtering is True


def test_a_setting_that_is_neither_on_nor_off_is_refused(policy, capsys):
    assert main(train(policy, "--set", "dynamic_sampling=no")) == 2
    assert "dynamic_sampling must be True or False, got 'no'" in capsys.readouterr().err


def test_set_reaches_every_setting_and_a_flag_beats_it(policy, monkeypatch):
    from refimpl import __main__ as cli

    seen = []

    def spy(algorithm, *, config, **_):
        seen.append((config.seed, config.dtype, config.device))
        raise ValueError("seen")

    monkeypatch.setattr(cli, "train", spy)
    chosen = ("--set", "seed=3", "--set", "dtype=bfloat16")
    for more in (chosen, (*chosen, "--seed", "5"), ()):
        main(train(policy, *more))
    cpu = "cpu"
    assert seen == [(3, "bfloat16", cpu), (5, "bfloat16", cpu), (0, "float32", cpu)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--algorithm", "gropo"], "did you mean 'grpo'"),
        (["train", "--algorithm", "grpo", "--set", "epsilom=1"], "mean 'epsilon'"),
        (["train", "--algorithm", "grpo", "--set", "epsilon"], "takes name=value"),
        (["train", "--algorithm", "grpo", "--set", "epsilon=0"], "must be > 0"),
        (["train", "--algorithm", "grpo", "--set", "group_size=1"], "must be ≥ 2"),
        (["train", "--algorithm", "grpo", "--set", "temperature=0"], "must be > 0"),
        (["train", "--algorithm", "grpo", "--dtype", "int8"], "dtype must be one of"),
        (["train", "--algorithm", "grpo", "--model", "no/such"], "no causal language"),
        (["train", "--algorithm", "grpo", "--preset", "tinny"], "mean 'tiny'"),
        (["curves", "--algorithm", "ppo", "--set", "epsilon=-1"], "must be > 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and message in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_missing_cuda_is_said_before_work_starts(policy, capsys):
    assert main(train(policy, "--device", "cuda")) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


def test_curves_writes_csv(tmp_path, capsys):
    out = tmp_path / "c.csv"
    assert main(["curves", "--algorithm", "grpo", "--out", str(out)]) == 0
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    clipped = [r for r in rows if r["name"] == "grpo A>0" and float(r["ratio"]) > 1.21]
    assert clipped and all(float(row["weight"]) == 0 for row in clipped)
