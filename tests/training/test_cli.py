"""The command line, as a reader would type it."""

import importlib.util
import io
import json
import re
import shlex
import signal
import sys
import warnings
from dataclasses import replace
from functools import wraps
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import refimpl as rl
from refimpl import ALGORITHMS, History, TrainConfig, checkpoint, cli
from refimpl.pretrained.loading import load
from refimpl.tasks import Arithmetic, rare_careful
from refimpl.validation import annotations
from tests import worlds
from tests.worlds import Drying, Interrupting, always_one, fixed_noise

ROOT = Path(__file__).parents[2]
GRPO = "train --algorithm grpo"
SMALL = """--prompts-per-rollout 4 --group-size 2 --max-new-tokens 8 --minibatches 2
--eval-problems 4"""
RUN = f"{GRPO} --model policy --all-weights {SMALL}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with an untrained policy, somebody's file, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    worlds.random_model().save_pretrained("policy")
    worlds.TOKENIZER.save_pretrained("policy")
    Path("file").write_text("mine")
    Path("rows").write_text('{"prompt": "1+1="}\n["1+2="]\n')
    Path("empty").mkdir()


def run(line: str) -> int:
    """The exit code, also where tyro ends the process."""
    try:
        return cli.main(shlex.split(line))
    except SystemExit as ending:
        return ending.code


def pay(monkeypatch, reward=fixed_noise):
    monkeypatch.setattr(Arithmetic, "reward", staticmethod(reward))


def test_the_last_line_has_the_last_accuracy(capsys):
    history = History("grpo")
    some = (0.9, 0.6), (0.0, 0.0), (None, None)
    for accuracy, passed in some:
        known = {"accuracy": accuracy, "accuracy/pass": passed}
        history.rows.append({"step_time": 1.5, "reward": 0.3} | known)
        cli.summarise(history, TrainConfig(seed=5, eval_samples=4), None)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].endswith("seconds 3.0  reward 0.30  accuracy 0.00  pass@4 0.00")
    assert shown[2].startswith("grpo  seed 5  rollouts 3  ")
    assert shown[2].endswith("accuracy 0.00")


def test_train_writes_history_samples_and_policy(capsys, monkeypatch):
    pay(monkeypatch)
    more = "--history new/h.csv --samples s.jsonl --save trained --rollouts 2"
    assert run(f"{RUN} {more}") == 0
    shown = capsys.readouterr().out.strip().splitlines()
    assert len(History.load("new/h.csv")) == 2
    samples = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {0, 1}
    assert sum(line.startswith("step ") for line in shown) == len(samples)
    before, after = load("policy")[0], load("trained")[0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters())]
    assert not any(same), "the saved policy is the trained one"


# Flags


FLAGS = {
    "": vars(TrainConfig(**cli.OF_A_MODEL)),
    "--all-weights": {"learning_rate": 1e-5},
    "--seed 3 --no-whiten --value-clip None": {"seed": 3, "value_clip": None},
    "--critic-frozen attn embed": {"critic_frozen": ("attn", "embed")},
    "--hyperparameters epsilon=0.3": {"hyperparameters": {"epsilon": 0.3}},
    "--corrections token_mask=0.5,5 opsm=0.1": {
        "corrections": {"token_mask": (0.5, 5), "opsm": 0.1}
    },
    "--samples-every 4 --dtype bfloat16": {"every": [4], "dtype": "bfloat16"},
    "--samples s --checkpoint-dir c --checkpoint-every 3": {"every": [1, 3]},
    "--checkpoint-dir c --rollouts 7": {"every": [7, 10], "rollouts": 7},
    "--task rare-careful --task-set min_terms=3 --task-set max_terms=4": {
        "task": replace(rare_careful(), min_terms=3, max_terms=4)
    },
}


def test_flags_reach_the_run(monkeypatch):
    seen = {}

    def spy(config, hooks, **given):
        every = [hook.every for hook in hooks if hasattr(hook, "every")]
        seen.update(vars(config) | given, every=every)
        raise KeyboardInterrupt

    monkeypatch.setattr(rl, "train", spy)
    for number, (more, wanted) in enumerate(FLAGS.items()):
        model = "--model=policy" if number % 2 == 0 else "--model policy"
        assert run(f"train --algorithm ppo {model} {more}") == 130
        assert {name: seen[name] for name in wanted} == wanted


def test_a_value_is_read_as_python_reads_it():
    """Else it is text; commas separate several values."""
    words = "a=4 b=False c=None d=word e=q,v f=+, g=0.5,5 h='x' i=a=b".split()
    assert cli.pairs(words) == dict(
        zip("abcdefghi", (4, False, None, "word", ("q", "v"), ("+",), (0.5, 5)))
    ) | {"h": "x", "i": "a=b"}


def test_help_lists_every_setting_with_its_range_and_every_hyperparameter(capsys):
    assert run("train --help") == 0
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for name in annotations(TrainConfig):
        assert f"--{name.replace('_', '-')}" in shown
    for group in TrainConfig.__mro__[1:-1]:
        assert group.__doc__ in shown
    assert "λ of GAE (a number ≥ 0 and ≤ 1) (default: 0.95)" in shown
    for algorithm in ALGORITHMS.values():
        named = " ".join(f"{key}={x}" for key, x in algorithm.defaults.items())
        assert f"{algorithm.name} ({named})" in shown


@pytest.mark.ci
def test_every_command_that_is_written_down_is_understood(monkeypatch):
    """Those of README, guide and CONTRIBUTING are parsed; their work is not done."""
    parsed = {n: wraps(f)(lambda *_, **__: 0) for n, f in cli.COMMANDS.items()}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += ROOT.glob("notebooks/guide/*.md")
    pages.remove(ROOT / "notebooks/guide/renamed.md")  # which names former commands
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    lines = re.findall(r"python -m refimpl ([^`\n#>|]+)", text.replace("\\\n", " "))
    assert len(lines) >= 10
    monkeypatch.setattr(cli, "COMMANDS", parsed)
    for line in lines:
        assert run(line) == 0, line
    assert not any(run(f"{name} --help") for name in cli.COMMANDS)


# A run that ends early keeps what it has

KEEP = "--history h.csv --save trained --checkpoint-dir c --samples s.jsonl"
DRY = "--dynamic-sampling True --max-sampling-rounds 1"
SAVE = "--checkpoint-every 1"
STILL = "--learning-rate 1e-12"
GO_ON = "continue with --checkpoint-dir c --resume"
# What pays, more of the command, the exit code, why it ended, and what is advised:
ENDINGS = {
    "Ctrl-C": (Interrupting(2, 1, fixed_noise), "", 130, "interrupted", GO_ON),
    "solved": (Drying(3), f"{DRY} {SAVE}", 0, "gave no group of 2", ""),
    "full": (fixed_noise, SAVE, 2, "No space left", GO_ON),
    "still": (fixed_noise, STILL, 2, "error: after 2 rollouts with K = 2", ""),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_run_that_ends_early_keeps_what_it_has(how, capsys, monkeypatch):
    """It says how to go on only where there is a checkpoint to go on from."""
    reward, more, code, words, advice = ENDINGS[how]
    pay(monkeypatch, reward)
    line = f"{RUN} {KEEP} --rollouts {2 if how == 'still' else 4} {more}"
    if how == "full":
        worlds.unwritable(monkeypatch, when=2)
    assert run(line) == code
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err
    assert advice in shown.err and ("--resume" in shown.err) == bool(advice)
    if how != "still":
        assert "stopped after 2 of 4 rollouts" in shown.err
    assert "rollouts 2" in shown.out.splitlines()[-1]
    assert len(History.load("h.csv")) == 2 and load("trained")
    samples = Path("s.jsonl").read_text().splitlines()
    steps = {json.loads(sample)["step"] for sample in samples}
    assert steps == {0, 1} | ({2} if how == "solved" else set())  # which says why
    if how == "Ctrl-C":
        assert run(f"{line} --resume") == 0 and len(History.load("h.csv")) == 4


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_outside_of_the_rollouts_costs_no_output(moment, monkeypatch):
    """As the second of two quick Ctrl-Cs, or one while the run is prepared."""
    pay(monkeypatch)
    works = rl.train

    def signalled(*given, **named):
        if moment == "before":
            signal.raise_signal(signal.SIGTERM)
        result = works(*given, **named)
        if moment == "after":
            signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(rl, "train", signalled)
    assert run(f"{RUN} --rollouts 2 --history h.csv") == 128 + signal.SIGTERM
    assert len(History.load("h.csv")) == {"before": 1, "after": 2}[moment]


def test_a_run_that_ends_before_its_first_rollout_keeps_nothing(capsys, monkeypatch):
    pay(monkeypatch, Interrupting(when=1, times=2))
    assert run(f"{RUN} --history h.csv") == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")
    pay(monkeypatch, always_one)
    assert run(f"{RUN} {DRY} --history h.csv") == 2
    assert "error: 1 rounds of 4 prompts gave no group" in capsys.readouterr().err
    assert not Path("h.csv").exists()


def test_an_output_that_fails_costs_no_other(capsys, monkeypatch):
    """The words of safetensors on a full disk."""

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    pay(monkeypatch)
    monkeypatch.setattr(worlds.PreTrainedModel, "save_pretrained", full)
    everything = "--history h.csv --samples s.jsonl --save trained"
    assert run(f"{RUN} --rollouts 1 {everything}") == 2
    shown = capsys.readouterr()
    assert shown.err.strip().endswith("No space left on device (os error 28)")
    assert "rollouts 1" in shown.out
    assert len(History.load("h.csv")) == 1 and Path("s.jsonl").read_text()


def test_problems_and_a_reward_of_ones_own(capsys):
    """The first rollout's answers are shown."""
    rows = [{"prompt": f"{i}+1=", "answer": f"{i + 1}"} for i in range(6)]
    Path("mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reward = "def half(prompts, completions, *, answer, **columns):\n"
    reward += (
        "    return [len(a) / 2 - 0.1 * (c > a) for c, a in zip(completions, answer)]"
    )
    Path("rewards.py").write_text(reward)
    line = f"{RUN} --rollouts 2 --data mine.jsonl --reward rewards.py:half"
    assert run(line) == 0
    shown = capsys.readouterr().out
    assert len(re.findall("step 0  reward 0.[45]0", shown)) == 4


# Outputs


def test_what_is_there_is_replaced_only_if_that_is_asked_for(capsys, monkeypatch):
    pay(monkeypatch)
    for output in ("--history file", "--samples file", "--save policy"):
        assert run(f"{RUN} --rollouts 1 {output}") == 2
        assert "exists already" in capsys.readouterr().err
    assert Path("file").read_text() == "mine"
    line = f"{RUN} --rollouts 1 --checkpoint-dir c"
    assert run(line) == 0 and run(line) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(f"{line} --overwrite --history file --save policy --seed 5") == 0
    assert checkpoint.load("c")["identity"]["seed"] == 5
    assert len(History.load("file")) == 1


# What is refused before any work. The ranges of settings are in `test_bad_input.py`.

LINES: dict[str, str] = {
    "trian": "trian … Available subcommands: train",
    "train --algorithm gropo": "'grpo'",
    f"{GRPO} --rolouts 3": "Unrecognized … --rollouts",
    f"{GRPO} --hyperparameters epsilom=1": "'epsilom' … 'epsilon'",
    f"{GRPO} --corrections token_mask=1,-2": "token_mask … a number > 0 … (1, -2)",
    f"{RUN} --lora r=16": "--all-weights trains no LoRA",
    f"{RUN} --merge": "--all-weights trains no LoRA",
    f"{RUN} --preset tiny": "--preset and --model",
    f"{RUN} --system x": "--system needs",
    f"{RUN} --checkpoint-every 3": "--checkpoint-every need a --checkpoint-dir",
    f"{RUN} --data file": "--data … --reward",
    f"{RUN} --reward maths": "FILE.py:FUNCTION … 'maths'",
    f"{RUN} --reward file:f --data rows": "--reward file:f … NameError",
    f"{RUN} --reward math --data rows": "line 2 of rows … 'prompt'",
    f"{RUN} --reward math --data nothing": "'nothing' cannot be read",
    f"{RUN} --reward math --data rows --task rare-careful": "--data is a task of its",
    f"{RUN} --resume": "--resume … --checkpoint-dir",
    f"{RUN} --history file/below": "cannot write a file to 'file/below'",
    f"{RUN} --save file --overwrite": "cannot write a folder to 'file'",
    f"{RUN} --history x --samples x": "--history 'x' lies in --samples 'x'",
    f"{RUN} --history p/h --save ./p": "--history 'p/h' lies in --save 'p'",
    f"{RUN} --save c/p --checkpoint-dir c": "--save 'c/p' lies in --checkpoint-dir 'c'",
}
ALONE = "--lora=r=16 --all-weights --merge --recompute --system=x --no-chat".split()
LINES |= {f"{GRPO} {flag}": "need a --model" for flag in ALONE}
if importlib.util.find_spec("reasoning_gym"):
    LINES[f"{GRPO} --task reasoning-gym:products"] = "need a --model"


def test_bad_input_is_one_sentence_and_exit_code_2_before_any_work(capsys):
    """One line, or tyro's box; nothing goes to stdout, nothing is written."""
    before = {*Path().rglob("*")}
    for line, words in LINES.items():
        assert run(line) == 2, line
        printed = capsys.readouterr()
        error = " ".join(re.sub("[│╭╮╰╯─]", " ", printed.err).split())
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
    memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    for full in (memory, MemoryError(), RuntimeError("CPU: not enough memory")):
        assert "--group-size" in cli.explanation(full)


# Streams


def test_what_an_encoding_lacks_is_escaped(monkeypatch):
    """Windows redirects so."""
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding="cp1252"))
    assert run("train --help") == 0
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
