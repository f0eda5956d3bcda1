"""The command line, as a reader would type it."""

import importlib.util
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import warnings
from functools import partial, wraps
from pathlib import Path

import pytest
import torch

import refimpl as rl
from refimpl import ALGORITHMS, History, TrainConfig, checkpoint, cli
from refimpl.pretrained.loading import load
from refimpl.tasks import Arithmetic
from refimpl.validation import UserError, annotations
from tests import worlds
from tests.worlds import Drying, Interrupting, always_one, fixed_noise

ROOT = Path(__file__).parents[2]
GRPO = "train --algorithm grpo"
SMALL = "prompts_per_rollout=4 group_size=2 max_new_tokens=8 minibatches=2"
SETS = "".join(f" --set {pair}" for pair in f"{SMALL} eval_problems=4".split())
RUN = f"{GRPO} --model policy{SETS}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with an untrained policy, somebody's file, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    worlds.random_model().save_pretrained("policy")
    worlds.TOKENIZER.save_pretrained("policy")
    Path("file").write_text("mine")
    Path("empty").mkdir()


def run(line: str) -> int:
    """The exit code, also where tyro ends the process."""
    try:
        return cli.main(shlex.split(line))
    except SystemExit as ending:
        return ending.code


def program(line: str, **given) -> subprocess.CompletedProcess:
    """`python -m refimpl` in a process of its own, by a shell."""
    command = f"{sys.executable} -m refimpl {line}"
    return subprocess.run(
        command, shell=True, cwd=ROOT, text=True, capture_output=True, **given
    )


def pay(monkeypatch, reward=fixed_noise):
    monkeypatch.setattr(Arithmetic, "reward", staticmethod(reward))


def test_train_writes_history_samples_and_policy(capsys, monkeypatch):
    pay(monkeypatch)
    more = "--history new/h.csv --samples s.jsonl --save trained --rollouts 2"
    assert run(f"{RUN} {more}") == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    history = History.load("new/h.csv")
    assert last.endswith(f"accuracy {history.accuracy:.2f}") and "rollouts 2" in last
    samples = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {0, 1}
    before, after = load("policy")[0], load("trained")[0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters())]
    assert not any(same), "the saved policy is the trained one"


# A run that ends early keeps what it has

KEEP = "--history h.csv --save trained --checkpoint-dir c"
DRY = "--set dynamic_sampling=True --set max_sampling_rounds=1"
SAVE = "--set checkpoint_every=1"
STILL = "--set learning_rate=1e-12"
GO_ON = "continue with --checkpoint-dir c --resume"
# What pays, more of the command, the exit code, why it ended, and what is advised:
ENDINGS = {
    "Ctrl-C": (Interrupting(2, 1, fixed_noise), "", 130, ": interrupted", GO_ON),
    "solved": (Drying(3), f"{DRY} {SAVE}", 0, "gave no group of 2", ""),
    "full": (fixed_noise, SAVE, 2, "(No space left", GO_ON),
    "still": (fixed_noise, STILL, 2, "error: after 2 rollouts with K = 2", ""),
    "memory": (fixed_noise, "", 2, "prompts_per_rollout, group_size", ""),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_run_that_ends_early_keeps_what_it_has(how, capsys, monkeypatch):
    """It says how to go on only where there is a checkpoint to go on from."""
    reward, more, code, words, advice = ENDINGS[how]
    pay(monkeypatch, reward)
    line = f"{RUN} {KEEP} --rollouts {2 if how == 'still' else 4} {more}"
    if how == "full":
        worlds.unwritable(monkeypatch, when=2)
    if how == "memory":
        monkeypatch.setattr(worlds.loop, "optimizer_step", forgets(after=4))
    assert run(line) == code
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err
    assert advice in shown.err and ("--resume" in shown.err) == bool(advice)
    if how not in ("still", "memory"):
        assert "stopped after 2 of 4 rollouts" in shown.err
    assert "rollouts 2" in shown.out.splitlines()[-1]
    assert len(History.load("h.csv")) == 2 and load("trained")
    if how == "Ctrl-C":
        assert run(f"{line} --resume") == 0 and len(History.load("h.csv")) == 4


def forgets(after: int):
    """An optimiser's step that finds no memory after so many."""
    works, calls = worlds.loop.optimizer_step, []

    def step(*given):
        calls.append(None)
        if len(calls) > after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return works(*given)

    return step


def test_a_signal_between_a_run_and_its_outputs_costs_none_of_them(monkeypatch):
    """As the second of two quick Ctrl-Cs."""
    pay(monkeypatch)
    works = rl.train

    def signalled(*given, **named):
        result = works(*given, **named)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(rl, "train", signalled)
    assert run(f"{RUN} --rollouts 2 --history h.csv") == 128 + signal.SIGINT
    assert len(History.load("h.csv")) == 2


def test_what_another_run_has_written_meanwhile_stays(capsys, monkeypatch):
    def paid(**given):
        Path("h.csv").write_text("another's")
        return fixed_noise(**given)

    pay(monkeypatch, paid)
    assert run(f"{RUN} --rollouts 1 --history h.csv") == 0
    assert Path("h.csv").read_text() == "another's" and len(History.load("h-2.csv"))
    assert "writing 'h-2.csv'" in capsys.readouterr().err


def test_a_run_that_ends_before_its_first_rollout_keeps_nothing(capsys, monkeypatch):
    pay(monkeypatch, Interrupting(when=1, times=2))
    assert run(f"{RUN} --history h.csv") == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")
    pay(monkeypatch, always_one)
    assert run(f"{RUN} {DRY} --history h.csv") == 2
    assert "error: 1 rounds of 4 prompts gave no group" in capsys.readouterr().err
    assert not Path("h.csv").exists()


def test_an_output_that_fails_costs_no_other(monkeypatch):
    pay(monkeypatch)
    monkeypatch.setattr(History, "columns", property(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        run(f"{RUN} --rollouts 1 --history h.csv --samples s.jsonl --save trained")
    assert load("trained") and Path("s.jsonl").read_text()


def test_what_is_there_is_replaced_only_if_that_is_asked_for(capsys, monkeypatch):
    pay(monkeypatch)
    for output in ("--history file", "--samples file", "--save policy"):
        assert run(f"{RUN} --rollouts 1 {output}") == 2
        assert "exists already" in capsys.readouterr().err
    assert Path("file").read_text() == "mine"
    assert run("read-log h.csv --figure file") == 2
    assert "'file' exists already" in capsys.readouterr().err
    assert run(f"{RUN} --rollouts 1 --history new --samples new") == 2
    assert "name two files" in capsys.readouterr().err
    line = f"{RUN} --rollouts 1 --checkpoint-dir c"
    assert run(line) == 0 and run(line) == 2
    Path("file").write_text("mine")
    for output in ("--history file", "--samples file"):
        assert run(f"{line} --resume {output}") == 2  # no part of this run
    assert "--resume" in capsys.readouterr().err
    more = "--history file --save policy --seed 5"
    assert run(f"{line} --overwrite {more}") == 0
    assert (
        checkpoint.load("c")["identity"]["seed"] == 5 and len(History.load("file")) == 1
    )


# Streams and signals


def test_what_an_encoding_lacks_is_escaped(monkeypatch):
    """Windows redirects so."""
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding="cp1252"))
    assert run("settings") == 0
    assert b"tau_neg" in told.getvalue() and b"\\u2265" in told.getvalue()


def test_what_moves_the_cursor_is_escaped(capsys, monkeypatch):
    """It may come in a model's answer, in a file's name or in a warning."""
    escape = "\033[31mred\033]0;title\a\u202e"

    def reward(**_):
        warnings.warn(escape, stacklevel=1)
        raise KeyError(escape)

    pay(monkeypatch, reward)
    assert run(RUN) == 2 and cli.main(["fetch", escape]) == 2
    assert cli.main([*GRPO.split(), "--history", f"file/{escape}"]) == 2
    said = capsys.readouterr().err
    assert said.count("x1b[31mred") >= 4 and not {"\033", "\a", "\u202e"} & {*said}


@pytest.mark.parametrize("line", ["settings | head -1", "train --help | head -1"])
def test_a_closed_pipe_ends_quietly(line):
    done = program(line)
    assert done.stdout.count("\n") == 1
    assert done.stderr in ("", "loading torch and transformers …\n")


# Settings


def test_a_setting_or_hyperparameter_that_is_off_is_off():
    """The word "false" is no empty string."""
    chosen = ["dynamic_sampling=false", "correct=false"]
    given = cli.parse_settings(ALGORITHMS["reinforce"], chosen)
    assert given == {"dynamic_sampling": False, "hyperparameters": {"correct": False}}
    rules = cli.parse_settings(ALGORITHMS["grpo"], ["token_mask=0.5,5", "opsm=0.1"])
    assert rules["corrections"] == {"token_mask": (0.5, 5.0), "opsm": 0.1}
    for text in ("a", "1,-2"):
        with pytest.raises(UserError, match=f"a number > 0 .*, got '{text}'"):
            cli.parse_settings(ALGORITHMS["grpo"], [f"token_mask={text}"])


def test_settings_reach_the_run_by_flag_and_by_set(monkeypatch):
    seen = []

    def spy(algorithm, *, config, **_):
        seen.append(f"{config.seed} {config.dtype} {config.samples_every}")
        raise KeyboardInterrupt

    monkeypatch.setattr(rl, "train", spy)
    for more in ("--set seed=3 --dtype bfloat16", "--seed 5 --samples s", ""):
        assert run(f"{RUN} {more}") == 130
    assert seen == ["3 bfloat16 0", "5 float32 1", "0 float32 0"]


def test_settings_are_listed(capsys):
    assert run("settings") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} = " in shown for name in annotations(TrainConfig))
    for algorithm in ALGORITHMS.values():
        assert all(f"{key}=" in shown for key in algorithm.defaults)


# Bad input. What `--set` refuses by the type of a setting is in `test_bad_input.py`.

LINES: dict[str, str] = {
    "trian": "'train'",
    "train": "--algorithm",
    "train --algorithm gropo": "'grpo'",
    f"{GRPO} --rolouts 3": "--rollouts",
    f"{GRPO} --set epsilon": "--set … 'epsilon'",
    f"{GRPO} --set epsilom=1": "'epsilom' … 'epsilon'",
    f"{GRPO} --set hyperparameters={{}}": "--set epsilon=0.2",
    f"{GRPO} --set seed=1 --set seed=2": "seed … twice",
    f"{GRPO} --seed 1 --set seed=2": "--seed and --set seed",
    f"{GRPO} --set max_new_tokens=999": "128 … 999",
    f"{GRPO} --rollouts 1.5": "rollouts … 1.5",
    f"{GRPO} --task arithmetics": "'arithmetics' … 'arithmetic'",
    f"{GRPO} --task-set max_terms=99": "max_terms … '99'",
    f"{GRPO} --task-set max_term=3": "'max_term' … 'max_terms'",
    f"{GRPO} --lora r=16": "--model",
    f"{RUN} --preset tiny": "--preset and --model",
    f"{RUN} --merge": "--merge … --save",
    f"{RUN} --merge --save empty": "--merge … LoRA",
    f"{RUN} --no-chat --system S": "--no-chat",
    f"{RUN} --lora rank=3": "'rank'",
    f"{RUN} --lora target_modules=xx": "target_modules",
    f"{GRPO} --model empty": "config.json",
    f"{GRPO} --model SmolLM2": "'smollm2'",
    f"{RUN} --resume": "--resume … --checkpoint-dir",
    f"{RUN} --resume --checkpoint-dir empty": "resume … empty",
    f"{RUN} --checkpoint-dir file/below": "checkpoints",
    **{
        f"{line} {place}": f"cannot write to '{place}'"
        for line, places in (
            (f"{RUN} --history", "empty file/be/low"),
            (f"{RUN} --samples", "empty"),
            (f"{RUN} --save", "file file/below"),
        )
        for place in places.split()
    },
    **{
        f"{RUN} --{flag} ''": f"--{flag} '' is empty"
        for flag in "history checkpoint-dir system task set".split()
    },
    "conformance --against empty": "'empty' is not a file",
    "read-log file --figure file --overwrite": "would replace the log 'file'",
    "verl-config gropo": "mean 'grpo'",
}
if importlib.util.find_spec("peft") is None:  # which is asked for before its layers
    LINES[f"{RUN} --lora target_modules=xx"] = "needs the package peft"
if importlib.util.find_spec("reasoning_gym"):
    LINES[f"{GRPO} --task reasoning-gym:products"] = "give a --model"


def test_bad_input_is_one_sentence_and_exit_code_2_before_any_work(capsys, monkeypatch):
    """One line, or tyro's box; nothing goes to stdout, nothing is written."""
    before = {*Path().rglob("*")}
    for line, words in LINES.items():
        assert run(line) == 2, line
        printed = capsys.readouterr()
        error = " ".join(
            "".join(" " if c in "│╭╮╰╯─" else c for c in printed.err).split()
        )
        assert [word for word in words.split(" … ") if word not in error] == [], error
        assert not printed.out and "Traceback" not in error
        assert printed.err.count("\n") == 1 or not printed.err.startswith("error: ")
        assert {*Path().rglob("*")} == before, line
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("error", [TypeError, ValueError, OSError])
def test_a_bug_keeps_its_traceback(error, monkeypatch):
    """Only a `UserError` is a sentence for the reader."""

    def bug(*_, **__):
        raise error("unsupported operand")

    monkeypatch.setattr(rl, "warm_start", bug)
    with pytest.raises(error, match="unsupported operand"):
        run(GRPO)


# The other commands


def test_every_command_that_is_written_down_is_understood(monkeypatch):
    """Those of README, guide and CONTRIBUTING are parsed; their work is not done."""
    parsed = {n: wraps(f)(lambda *_, **__: 0) for n, f in cli.COMMANDS.items()}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += ROOT.glob("notebooks/guide/*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    lines = re.findall(r"python -m refimpl ([^`\n#>|]+)", text.replace("\\\n", " "))
    assert len(lines) >= 10
    monkeypatch.setattr(cli, "main", partial(cli.main, commands=parsed))
    for line in lines:
        assert run(line.replace("topr", "grpo")) == 0, line
    assert not any(run(f"{name} --help") for name in cli.COMMANDS)
