"""The command line, as a reader would type it."""

import csv
import json

import pytest
import torch

from refimpl import __main__ as cli
from refimpl import checkpoint
from refimpl.__main__ import main, parse_settings
from refimpl.algorithms import ALGORITHMS
from refimpl.history import History
from refimpl.lab import evidence
from refimpl.models import build, load
from refimpl.settings import annotations
from refimpl.sft import WarmStart
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.trainer import TrainConfig
from tests.worlds import Drying, Interrupting, always_one, diverging, unwritable


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A small untrained policy on disk: enough for the plumbing."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = make_tokenizer()
    build("tiny", tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def train(policy, *more, algorithm="grpo"):
    small = [
        "prompts_per_rollout=4",
        "group_size=2",
        "max_new_tokens=8",
        "minibatches=2",
        "eval_problems=4",
    ]
    sets = [word for pair in small for word in ("--set", pair)]
    return ["train", "--algorithm", algorithm, "--model", policy, *sets, *more]


def run(words) -> int:
    """The exit code, also where the parser of the command line ends the process."""
    try:
        return main([str(word) for word in words])
    except SystemExit as ending:
        return ending.code


def said(text: str) -> str:
    """What was printed, without the frame and the line breaks of the parser's."""
    return " ".join("".join(" " if c in "│╭╮╰╯─\n" else c for c in text).split())


def by_length(completions, **_):
    """What an untrained policy can learn from."""
    return [float(len(c)) for c in completions]


def pay(monkeypatch, reward):
    monkeypatch.setattr(Arithmetic, "reward", staticmethod(reward))


def test_train_writes_history_and_policy(policy, tmp_path, capsys, monkeypatch):
    pay(monkeypatch, by_length)
    out, save = tmp_path / "new" / "h.csv", tmp_path / "policy"
    more = ("--rollouts", 2, "--history", out, "--save", save)
    assert run(train(policy, *more)) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    history = History.from_csv(out)
    assert last.endswith(f"accuracy {history.accuracy:.2f}") and "rollouts 2" in last
    before, after = load(policy)[0], load(save)[0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters())]
    assert not any(same), "the saved policy is the trained one"


# A run that ends early


@pytest.fixture
def outputs(tmp_path):
    """Where a run is to write, and what it has written: rows, and whether a policy."""

    def written():
        rows = History.from_csv(tmp_path / "h.csv").rows
        return len(rows), (tmp_path / "policy" / "model.safetensors").exists()

    words = ("--history", tmp_path / "h.csv", "--save", tmp_path / "policy")
    return words, written


def test_ctrl_c_keeps_what_was_trained(policy, outputs, capsys, monkeypatch, tmp_path):
    pay(monkeypatch, Interrupting(when=2, reward=by_length))
    folder = tmp_path / "c"
    words, written = outputs
    words = (*words, "--rollouts", 4, "--checkpoint-dir", folder)
    assert run(train(policy, *words)) == 130
    shown = capsys.readouterr()
    assert "stopped after 2 of 4 rollouts: interrupted" in shown.err
    assert f"continue with --checkpoint-dir {folder} --resume" in shown.err
    assert "rollouts 2" in shown.out.splitlines()[-1]
    assert written() == (2, True)
    assert run(train(policy, *words, "--resume")) == 0
    assert written() == (4, True)


def test_ctrl_c_without_a_checkpoint_says_nothing_of_one(
    policy, outputs, capsys, monkeypatch, tmp_path
):
    """A second Ctrl-C before the first checkpoint: there is nothing to resume."""
    pay(monkeypatch, Interrupting(when=2, times=2, reward=by_length))
    words, written = outputs
    words = (*words, "--rollouts", 4, "--checkpoint-dir", tmp_path / "c")
    assert run(train(policy, *words)) == 130
    error = capsys.readouterr().err
    assert "stopped after 1 of 4 rollouts" in error and "--resume" not in error
    assert written() == (1, True)


def test_ctrl_c_before_a_rollout_is_complete_keeps_nothing(
    policy, capsys, monkeypatch, tmp_path
):
    pay(monkeypatch, Interrupting(when=1, times=2))
    assert run(train(policy, "--history", tmp_path / "h.csv")) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")
    assert not (tmp_path / "h.csv").exists()


def test_a_solved_task_is_no_failure(policy, outputs, capsys, monkeypatch, tmp_path):
    pay(monkeypatch, Drying(when=3))
    words, written = outputs
    words = (*words, "--rollouts", 4, "--set", "max_sampling_rounds=1")
    words = (*words, "--set", "overlong_share=0", "--checkpoint-dir", tmp_path / "c")
    assert run(train(policy, *words, algorithm="dapo")) == 0
    shown = capsys.readouterr()
    assert "stopped after 2 of 4 rollouts" in shown.err
    assert "nothing can be learned" in shown.err
    assert "--resume" not in shown.err  # it would end at the same place
    assert "accuracy not measured" in shown.out.splitlines()[-1]
    assert written() == (2, True)


def test_a_task_solved_from_the_start_is_a_sentence(policy, capsys, monkeypatch):
    pay(monkeypatch, always_one)
    words = train(policy, "--set", "max_sampling_rounds=1", algorithm="dapo")
    assert run(words) == 2
    assert "error: 1 rounds of 4 prompts gave no group" in capsys.readouterr().err


def test_divergence_keeps_what_was_trained(policy, outputs, capsys, monkeypatch):
    pay(monkeypatch, by_length)
    diverging(monkeypatch, when=3)
    words, written = outputs
    assert run(train(policy, *words, "--rollouts", 4)) == 2
    assert "stopped after 1 of 4 rollouts: update 3: " in capsys.readouterr().err
    assert written() == (1, True)


def test_a_full_disk_keeps_what_was_trained(
    policy, outputs, capsys, monkeypatch, tmp_path
):
    pay(monkeypatch, by_length)
    words, written = outputs
    words = (*words, "--rollouts", 4, "--set", "checkpoint_every=1")
    with monkeypatch.context() as patch:
        unwritable(patch, when=2)
        assert run(train(policy, *words, "--checkpoint-dir", tmp_path / "c")) == 2
    error = capsys.readouterr().err
    assert "(No space left on device)" in error and "--resume" in error
    assert written() == (2, True)


def test_a_policy_that_did_not_move_is_kept_too(policy, outputs, capsys):
    words, written = outputs
    words = (*words, "--rollouts", 2, "--set", "learning_rate=1e-12")
    assert run(train(policy, *words)) == 2
    assert "error: after 2 rollouts with K = 2" in capsys.readouterr().err
    assert written() == (2, True)


# Checkpoints


def test_a_checkpoint_is_replaced_only_if_that_is_asked_for(
    policy, capsys, monkeypatch, tmp_path
):
    pay(monkeypatch, by_length)
    words = train(policy, "--rollouts", 1, "--checkpoint-dir", tmp_path)
    assert run(words) == 0
    assert run(words) == 2
    assert "(--resume), replace it with overwrite (--overwrite)" in said(
        capsys.readouterr().err
    )
    assert run([*words, "--overwrite", "--resume"]) == 2
    assert run([*words, "--overwrite", "--seed", 5]) == 0
    state = checkpoint.load(tmp_path, torch.device("cpu"))
    assert state["config"]["seed"] == 5


# Settings


@pytest.mark.parametrize("text", ["false", "False", "FALSE", "no", "0"])
def test_a_setting_that_is_off_is_off(text):
    """The word "false" is no empty string."""
    dapo = ALGORITHMS["dapo"]
    settings = parse_settings(dapo, [f"dynamic_sampling={text}"])
    assert TrainConfig(**settings).completed(dapo).dynamic_sampling is False
    settings = parse_settings(dapo, ["overlong_filtering=true"])
    assert TrainConfig(**settings).overlong_filtering is True


def test_a_hyperparameter_that_is_off_is_off():
    reinforce = ALGORITHMS["reinforce"]
    for text, value in (("false", False), ("true", True)):
        settings = parse_settings(reinforce, [f"correct={text}"])
        assert settings["hyperparameters"] == {"correct": value}


def test_a_setting_that_is_neither_on_nor_off_is_refused(policy, capsys):
    assert run(train(policy, "--set", "dynamic_sampling=maybe")) == 2
    assert "dynamic_sampling must be True or False" in capsys.readouterr().err


def test_set_reaches_every_setting_and_a_flag_beats_it(policy, monkeypatch):
    seen = []

    def spy(algorithm, *, config, **_):
        seen.append((config.seed, config.dtype, config.device))
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_training", spy)
    chosen = ("--set", "seed=3", "--set", "dtype=bfloat16")
    for more in (chosen, (*chosen, "--seed", "5"), ()):
        run(train(policy, *more))
    cpu = "cpu"
    assert seen == [(3, "bfloat16", cpu), (5, "bfloat16", cpu), (0, "float32", cpu)]


def test_settings_are_listed(capsys):
    assert run(["settings"]) == 0
    shown = capsys.readouterr().out
    for name in annotations(TrainConfig):
        assert f"  {name} = " in shown
    for name, algorithm in ALGORITHMS.items():
        assert f"  {name}: {algorithm.changed}" in shown
        assert all(f"{key}=" in shown for key in algorithm.defaults)


WRONG = [
    (["train", "--algorithm", "gropo"], "did you mean 'grpo'"),
    (["train", "--algorithm", "grpo", "--set", "epsilom=1"], "mean 'epsilon'"),
    (["train", "--algorithm", "grpo", "--set", "epsilon"], "takes name=value"),
    (["train", "--algorithm", "grpo", "--set", "epsilon=0"], "a number in (0, 1]"),
    (["train", "--algorithm", "grpo", "--set", "epsilon=x"], "epsilon must be a numb"),
    (["train", "--algorithm", "grpo", "--set", "group_size=1"], "must be ≥ 2"),
    (["train", "--algorithm", "grpo", "--set", "temperature=0"], "a number > 0"),
    (["train", "--algorithm", "grpo", "--set", "beta=inf"], "a finite number ≥ 0"),
    (["train", "--algorithm", "grpo", "--set", "hyperparameters=1"], "neither a sett"),
    (["train", "--algorithm", "grpo", "--dtype", "int8"], "dtype must be one of"),
    (["train", "--algorithm", "grpo", "--seed", "x"], "seed must be a whole number"),
    (["train", "--algorithm", "grpo", "--rollouts", "0"], "rollouts must be a whole"),
    (["train", "--algorithm", "grpo", "--device", "gpu"], "unknown device 'gpu'"),
    (["train", "--algorithm", "grpo", "--model", "no/such"], "no causal language"),
    (["train", "--algorithm", "grpo", "--preset", "tinny"], "invalid choice 'tinny'"),
    (["train", "--algorithm", "grpo", "--resume"], "needs a checkpoint_dir"),
    (["train", "--algorithm", "grpo", "--histroy", "h"], "Perhaps you meant: --hist"),
    (["train"], "Missing from python -m refimpl train: --algorithm"),
    (["trian"], "Unrecognized options: trian"),
    (["curves", "--algorithm", "ppo", "--set", "epsilon=-1"], "a number in (0, 1]"),
    (["curves", "--algorithm", "ppo", "--set", "seed=1"], "neither a setting"),
    (["bench", "--algorithms", "grpp"], "did you mean 'grpo'"),
    (["bench", "--seeds", "0"], "seeds must be a whole number ≥ 1, got '0'"),
    (["bench", "--chapters", "no/such"], "there are no notebooks in 'no/such'"),
    (["evidence", "run", "--claims", "17"], "unknown claim '17'"),
    (["evidence", "run", "--workers", "0"], "workers must be a whole number ≥ 1"),
    (["warm-start", "--seed", "-1"], "seed must be a whole number ≥ 0"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda x: " ".join(x[-3:]))
def test_bad_input_is_one_sentence_and_exit_code_2(words, message, capsys):
    assert run(words) == 2
    error = said(capsys.readouterr().err)
    assert message in error and "Traceback" not in error


def test_every_output_is_tried_before_any_work(policy, tmp_path, capsys, monkeypatch):
    def work(*_, **__):
        raise AssertionError("work was done")

    monkeypatch.setattr(cli, "run_training", work)
    for name in ("warm_start", "evaluate"):
        monkeypatch.setattr(cli.measure, name, work)
    monkeypatch.setattr(evidence, "_make", work)
    monkeypatch.setattr(cli.curves, "curve", work)
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("in the way")
    folder.mkdir()
    for words, what, path in (
        (train(policy, "--history", folder), "the history", folder),
        (train(policy, "--history", file / "h.csv"), "the history", file / "h.csv"),
        (train(policy, "--save", file), "the policy", file),
        (["bench", "--out", folder], "the measurements", folder),
        (["bench", "--out", file / "b.json"], "the measurements", file / "b.json"),
        (["evidence", "run", "--out", file / "e"], "the runs", file / "e.runs.csv"),
        (["curves", "--algorithm", "grpo", "--out", folder], "the curves", folder),
    ):
        assert run(words) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: cannot write {what} to '{path}'")
    assert file.read_text() == "in the way" and not list(folder.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_missing_cuda_is_said_before_work_starts(policy, capsys):
    assert run(train(policy, "--device", "cuda")) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


# Bugs


def bug(*_, **__):
    raise TypeError("unsupported operand")


def test_a_bug_keeps_its_traceback(policy, monkeypatch):
    """Only what a `raise` in this package says is a sentence for the reader."""
    monkeypatch.setattr(cli, "load", bug)
    with pytest.raises(TypeError, match="unsupported operand"):
        run(train(policy))
    monkeypatch.setattr(cli, "load", lambda _: None)  # cannot be unpacked: in here
    with pytest.raises(TypeError, match="unpack"):
        run(train(policy))


def test_a_bug_in_a_dependency_keeps_its_traceback(policy, monkeypatch):
    monkeypatch.setattr(cli.algorithms, "get", lambda _: ALGORITHMS["grpo"].nothing)
    with pytest.raises(AttributeError, match="nothing"):
        run(train(policy))


# The other commands


def test_curves_writes_csv(tmp_path, capsys):
    out = tmp_path / "c.csv"
    assert run(["curves", "--algorithm", "grpo", "--out", out]) == 0
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    clipped = [r for r in rows if r["name"] == "grpo A>0" and float(r["ratio"]) > 1.21]
    assert clipped and all(float(row["coefficient"]) == 0 for row in clipped)


def test_warm_start_says_where_the_policy_is(capsys):
    assert run(["warm-start", "--preset", "tiny-moe"]) == 0
    folder, _, _, loss = capsys.readouterr().out.strip().rsplit(maxsplit=3)
    shipped = WarmStart(preset="tiny-moe").shipped()
    assert folder == str(shipped)
    losses = json.loads((shipped / "start.json").read_text())["losses"]
    assert float(loss) == pytest.approx(losses[-1], abs=1e-3)
