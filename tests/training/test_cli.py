"""The command line, as a reader would type it."""

import csv
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import sys
import warnings
from functools import partial, wraps
from pathlib import Path

import pytest
import torch

import refimpl as rl
from refimpl import ALGORITHMS, History, TrainConfig, WarmStart
from refimpl.keep import checkpoint
from refimpl.keep.histories import from_csv
from refimpl.pretrained import loading
from refimpl.pretrained.loading import load
from refimpl.sft import shipped
from refimpl.shell import kept
from refimpl.shell import main as cli
from refimpl.shell.flags import FIELDS, LEFT, parse_settings
from refimpl.shell.rooms import ELSEWHERE, HERE, room
from refimpl.tasks import Arithmetic
from refimpl.validation import UserError, annotations
from tests import worlds
from tests.worlds import Drying, Interrupting, always_one, fixed_noise

ROOT = Path(__file__).parents[2]
GRPO = "train --algorithm grpo"
SMALL = "prompts_per_rollout=4 group_size=2 max_new_tokens=8 minibatches=2"
SETS = "".join(f" --set {pair}" for pair in f"{SMALL} eval_problems=4".split())
RUN = f"{GRPO} --rollouts 4 --model policy{SETS}"
CURVES = "curves --algorithm ppo"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with an untrained policy, something in the way, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    worlds.random_model().save_pretrained("policy")
    worlds.TOKENIZER.save_pretrained("policy")
    Path("file").write_text("in the way")
    Path("empty").mkdir()
    for folder in ("locked/.lock", "kept/checkpoint.pt", "linked"):
        Path(folder).mkdir(parents=True)
    Path("linked/.lock").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    Path("models").mkdir()
    Path("models/policy").symlink_to("../policy")


def run(line: str) -> int:
    """The exit code, also where the parser of the command line ends the process."""
    try:
        return cli.main(shlex.split(line))
    except SystemExit as ending:
        return ending.code


def unboxed(text: str) -> str:
    """What was printed, without the frame and the line breaks of the parser's."""
    return " ".join("".join(" " if c in "│╭╮╰╯─\n" else c for c in text).split())


def pay(monkeypatch, reward=fixed_noise):
    monkeypatch.setattr(Arithmetic, "reward", staticmethod(reward))


def test_train_writes_history_samples_and_policy(capsys, monkeypatch):
    pay(monkeypatch)
    more = "--history new/h.csv --samples s.jsonl --save trained --rollouts 2"
    assert run(f"{RUN} {more}") == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    history = from_csv("new/h.csv")
    assert last.endswith(f"accuracy {history.accuracy:.2f}") and "rollouts 2" in last
    samples = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {0, 1}
    before, after = load("policy")[0], load("trained")[0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters())]
    assert not any(same), "the saved policy is the trained one"


def test_the_last_line_says_the_last_accuracy_that_was_measured(capsys):
    row = {"reward": 0.5, "step_time": 1.0}
    rows = [row | {"accuracy": a} for a in (0.25, 0.75, None)]
    kept.summarise(History("grpo", rows), TrainConfig(), None)
    assert capsys.readouterr().out.endswith("accuracy 0.75\n")


# A run that ends early keeps what it has

KEEP = "--history h.csv --save trained --checkpoint-dir c"
DRY = "--algorithm dapo --set max_sampling_rounds=1 --set overlong_share=0"
SAVE = "--set checkpoint_every=1"
STILL = "--rollouts 2 --set learning_rate=1e-12"
GO_ON = "continue with --checkpoint-dir c --resume"
# What pays, more of the command, the exit code, why it ended, and what is advised:
ENDINGS = {
    "Ctrl-C": (Interrupting(2, 1, fixed_noise), "", 130, ": interrupted", GO_ON),
    "twice": (Interrupting(3, 2, fixed_noise), "", 130, ": interrupted", ""),
    "solved": (Drying(3), f"{DRY} {SAVE}", 0, "gave no group of 2", ""),
    "diverging": (fixed_noise, SAVE, 2, "rollouts: update 5: ", ""),
    "full": (fixed_noise, SAVE, 2, "(No space left", GO_ON),
    "still": (fixed_noise, STILL, 2, "error: after 2 rollouts with K = 2", ""),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_run_that_ends_early_keeps_what_it_has(how, capsys, monkeypatch):
    """Only where it could go on from a checkpoint it says so."""
    reward, more, code, words, advice = ENDINGS[how]
    pay(monkeypatch, reward)
    line = f"{RUN} {KEEP} {more}"
    if how == "diverging":
        worlds.diverging(monkeypatch, when=5)
    if how == "full":
        worlds.unwritable(monkeypatch, when=2)
    assert run(line) == code
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err
    assert advice in shown.err and ("--resume" in shown.err) == bool(advice)
    if how != "still":
        assert "stopped after 2 of 4 rollouts" in shown.err
        assert "rollouts 2" in shown.out.splitlines()[-1]
    assert len(from_csv("h.csv")) == 2 and load("trained")
    if how == "Ctrl-C":
        assert run(f"{line} --resume") == 0 and len(from_csv("h.csv")) == 4


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_a_run_and_its_outputs_waits_for_them(
    number, times, monkeypatch
):
    """And the process ends as it asks. Several at once are one."""
    pay(monkeypatch)
    works = kept.run_training

    def signalled(*given, **named):
        result = works(*given, **named)
        for _ in range(times):
            signal.raise_signal(number)
        return result

    monkeypatch.setattr(kept, "run_training", signalled)
    assert run(f"{RUN} --rollouts 2 --history h.csv") == 128 + number
    assert len(from_csv("h.csv")) == 2


def test_a_run_that_ends_before_its_first_rollout_keeps_nothing(capsys, monkeypatch):
    pay(monkeypatch, Interrupting(when=1, times=2))
    assert run(f"{RUN} --history h.csv") == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")
    pay(monkeypatch, always_one)
    assert run(f"{RUN} {DRY} --history h.csv") == 2
    assert "error: 1 rounds of 4 prompts gave no group" in capsys.readouterr().err
    assert not Path("h.csv").exists()


def test_a_disk_that_fills_up_costs_one_output_and_not_the_other(capsys, monkeypatch):
    pay(monkeypatch)
    Path("h.csv").symlink_to("/dev/full")
    assert run(f"{RUN} --rollouts 1 --history h.csv --save trained") == 2
    printed = capsys.readouterr()
    assert "error: [Errno 28]" in printed.err.splitlines()[-1]
    assert "accuracy" in printed.out.splitlines()[-1] and "Trace" not in printed.err
    assert load("trained")


def test_a_checkpoint_is_replaced_only_if_that_is_asked_for(capsys, monkeypatch):
    pay(monkeypatch)
    line = f"{RUN} --rollouts 1 --checkpoint-dir c"
    assert run(line) == 0 and run(line) == 2
    advice = "(--resume), replace it with overwrite (--overwrite)"
    assert advice in unboxed(capsys.readouterr().err)
    assert run(f"{line} --overwrite --seed 5") == 0
    assert checkpoint.load("c")["identity"]["seed"] == 5


# Streams


def test_nobody_has_to_read(monkeypatch):
    """As in a daemon, or after `>&-`."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert run("settings") == 0 and run("trian") == 2 and run("curves --help") == 0


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "cp932"])
def test_what_an_encoding_lacks_is_escaped(encoding, monkeypatch):
    """Windows redirects so."""
    told = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, stream in told.items():
        text = io.TextIOWrapper(stream, encoding=encoding)
        monkeypatch.setattr(sys, name, text)
    assert run("settings") == 0 and run("--help") == 0
    assert run(f"{GRPO} --set seed=-1") == 2 and run("tr\udcffain") == 2
    sys.stderr.flush()
    assert b"tau_neg" in told["stdout"].getvalue()
    assert b"\\u2265" in told["stdout"].getvalue() or encoding in ("cp437", "cp932")
    assert b"\\udcff" in told["stderr"].getvalue()


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="there is no /dev/full here"
)
@pytest.mark.parametrize("line", ["settings", "curves --help", "verl-config sapo"])
def test_a_full_disk_under_a_redirect_is_an_error(line, monkeypatch, capsys):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert run(line) == 2
    assert "No space left on device: 'the output'" in capsys.readouterr().err
    assert run(f"{CURVES} --out /dev/full") == 2
    assert "'/dev/full'" in capsys.readouterr().err


# Settings


def test_a_setting_or_hyperparameter_that_is_off_is_off():
    """The word "false" is no empty string."""
    chosen = ["dynamic_sampling=false", "correct=false"]
    given = parse_settings(ALGORITHMS["reinforce"], chosen)
    assert given == {"dynamic_sampling": False, "hyperparameters": {"correct": False}}
    rules = parse_settings(ALGORITHMS["grpo"], ["token_mask=0.5,5", "opsm=0.1"])
    assert rules["corrections"] == {"token_mask": (0.5, 5.0), "opsm": 0.1}
    for text, words in (("a", "a number > 0, got 'a'"), ("1,-2", "> 0, got '-2'")):
        with pytest.raises(UserError, match=words):
            parse_settings(ALGORITHMS["grpo"], [f"token_mask={text}"])


def test_set_reaches_every_setting_and_a_flag_beats_it(monkeypatch):
    seen = []

    def spy(algorithm, *, config, **_):
        seen.append(f"{config.seed} {config.dtype} {config.device}")
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "run_training", spy)
    chosen = "--set seed=3 --set dtype=bfloat16"
    for more in (chosen, f"{chosen} --seed 5", ""):
        assert run(f"{RUN} {more}") == 130
    assert seen == ["3 bfloat16 cpu", "5 bfloat16 cpu", "0 float32 cpu"]


def test_settings_are_listed(capsys):
    assert run("settings") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} = " in shown for name in annotations(TrainConfig))
    assert "  token_mask: a number > 0 or 2 values, each a number > 0\n" in shown
    for name, algorithm in ALGORITHMS.items():
        assert f"  {name}: {algorithm.changed}" in shown
        assert all(f"{key}=" in shown for key in algorithm.defaults)


def test_what_takes_the_place_of_a_setting_that_is_gone_is_there():
    assert LEFT and not LEFT.keys() & FIELDS.keys()
    for place in LEFT.values():
        for module, name in re.findall(r"([a-z.]+)\.([A-Z]\w+)", place):
            module = f"refimpl.{module.removeprefix('refimpl.')}"
            assert hasattr(importlib.import_module(module), name), place
        assert {*re.findall(r"--([a-z]+)", place)} <= annotations(cli.train).keys()
        assert {*re.findall(r"\btop_\w", place)} <= FIELDS.keys()


# Bad input. What `--set` refuses by the type of a setting is in `test_bad_input.py`.

LINES: dict[str, str] = {
    "": "name a command; the commands are train, ",
    "trian": "no command 'trian', did you mean 'train'?",
    "--rollouts 3": "no command '--rollouts'",
    "help": f"the commands are {', '.join([*HERE, *ELSEWHERE])}",
    "train": "--algorithm",
    "train --algorithm gropo": "mean 'grpo'",
    f"{GRPO} --rolouts 3": "Perhaps you meant: --rollouts … refimpl train --help",
    "settings --algorithm grpo": "--algorithm … run python -m refimpl settings --help",
    f"{GRPO} --set epsilon": "--set takes name=value … 'epsilon'",
    f"{GRPO} --set hyperparameters={{}}": "'hyperparameters' is neither … grpo",
    f"{GRPO} --set max_new_tokens=999": "128 positions … 999",
    **{
        f"{GRPO} --set {name}=1": f"{name} is no setting any more: {place}"
        for name, place in LEFT.items()
    },
    f"{GRPO} --rollouts 1.5": "rollouts … 1.5",
    f"{GRPO} --seed -1": "seed … -1",
    f"{GRPO} --dtype int8": "dtype … int8",
    f"{GRPO} --device gpu": "device … gpu",
    f"{GRPO} --preset tinny": "preset … tinny",
    f"{GRPO} --task chess": "task … chess",
    f"{GRPO} --task-set max_terms=99": "max_terms must be … got '99'",
    f"{GRPO} --task-set max_term=3": "no setting 'max_term', did you mean 'max_terms'",
    f"{GRPO} --task-set habit_mix=0.3,0.3,0.5": "add up to 1, got '0.3,0.3,0.5'",
    f"{GRPO} --task-set habit_mix=0.5,0.5": "3 values … got '0.5,0.5'",
    f"{GRPO} --lora r=16": "give a --model",
    f"{GRPO} --merge": "--merge … give --save FOLDER",
    f"{RUN} --merge --save empty": "--merge needs a LoRA",
    f"{RUN} --system S": "the model has none",
    f"{RUN} --no-chat --system S": "--no-chat",
    f"{RUN} --lora rank=3": "no setting 'rank'",
    f"{RUN} --lora r=0": "r must be a whole number ≥ 1, got '0'",
    f"{RUN} --lora r=65": "r must be at most 64 here, got 65",
    **{
        f"{GRPO} --model {shlex.quote(name)}": f"no causal … {words}"
        for name, words in {
            "empty": "that folder has no config.json",
            "pipe": "that is no folder",
            "loop": "that is no folder",
            "SmolLM2": "did you mean 'smollm2'?",
            "models/polciy": "did you mean 'models/policy'?",
            "/no/such/model": "there is no such folder",
            300 * "a": "there is no such folder",
            "a\033[31m/": "there is no such folder",
        }.items()
    },
    f"{CURVES} --set token_mask=3": "is neither … ; ppo has: ",
    f"{RUN} --resume --checkpoint-dir empty": "nothing to resume … empty",
    **{
        f"{line} {place}": f"cannot write {what} to … {place}"
        for line, what, places in (
            (f"{RUN} --history", "the history", "empty file/be/low"),
            (f"{RUN} --samples", "the samples", "empty file/be/low"),
            (f"{RUN} --save", "the policy", "file file/below"),
            (f"{RUN} --checkpoint-dir", "checkpoints", "file file/below"),
            (f"{CURVES} --out", "the curves", "empty file/c.csv"),
        )
        for place in places.split()
    },
    **{
        f"{RUN} {line}": f"would be written over, or into, what {other} names"
        for line, other in {
            "--samples n/s --save n/s/x/y": "--save",
            "--checkpoint-dir c --save c/checkpoint.pt": "--save",
            "--history x --checkpoint-dir x": "--history",
            "--samples x --checkpoint-dir x/y": "--samples",
        }.items()
    },
    **{
        f"{RUN} --{flag} ''": f"--{flag} '' is empty"
        for flag in "history samples save checkpoint-dir system task set".split()
    },
    f"{GRPO} --model=": "--model '' is empty",
    f"{GRPO} --save ' '": "--save '' is empty",
    "fetch ''": "fetch '' is empty",
    **{
        f"{line} {place}": f"{place}', which is a folder; name a file in it"
        for line in (f"{RUN} --history", f"{RUN} --samples", f"{CURVES} --out")
        for place in ("new/h/", "new/..")
    },
    f"{RUN} --save {300 * 'a'}": "File name too long",
    f"{RUN} --history new/{130 * 'ä'}": "File name too long",
    f"{RUN} --save new/\udcff": "its name is not UTF-8",
    # What is found out only after the outputs were tried leaves nothing behind either.
    **{
        f"{line} --history n/h --samples n/s --save n/p/q": words
        for line, words in {
            f"{GRPO} --model empty": "no causal",
            f"{GRPO} --task chess": "chess",
            f"{RUN} --device gpu": "gpu",
            f"{RUN} --lora target_modules=xx": "target_modules",
            f"{RUN} --resume --checkpoint-dir n/c": "nothing to resume",
        }.items()
    },
    f"{RUN} --history policy/model.safetensors": "--history … would be … --model",
    f"{RUN} --save policy": "--model … would be … --save",
    "warm-start --seed x": "--seed … 'x'",
    f"{CURVES} --set rollouts=3": "'rollouts' is neither a setting",
    "conformance --against empty": "'empty' is no file",
}
if importlib.util.find_spec("peft") is None:  # which is asked for before its layers
    of_layers = re.compile("--lora (r=65|target_modules=xx)")
    LINES |= {line: "a LoRA needs peft" for line in LINES if of_layers.search(line)}
if importlib.util.find_spec("reasoning_gym"):
    LINES[f"{GRPO} --task reasoning-gym:products"] = "give a --model"
if not torch.cuda.is_available():
    LINES[f"{RUN} --device cuda"] = "cannot use device 'cuda'"


def test_bad_input_is_one_sentence_and_exit_code_2_before_any_work(capsys, monkeypatch):
    """One line, or the parser's box; nothing goes to stdout, nothing is written."""

    def work(*_, **__):
        raise AssertionError("work was done")

    monkeypatch.setattr(rl, "curve", work)
    before = set(Path().rglob("*"))
    for line, words in LINES.items():
        assert run(line) == 2, line
        printed = capsys.readouterr()
        error = unboxed(printed.err)
        assert [word for word in words.split(" … ") if word not in error] == [], error
        assert not printed.out and "Traceback" not in error
        assert printed.err.count("\n") == 1 or not printed.err.startswith("error: ")
        assert set(Path().rglob("*")) == before, line
    assert Path("file").read_text() == "in the way"


def test_a_model_that_is_not_here_is_asked_of_the_hub_only_if_it_can_be(monkeypatch):
    """Offline, transformers would try for a minute."""
    hub = loading.huggingface_hub.constants
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "getproxies", dict)
    asked = []

    def refuses(address, timeout):
        asked.append(address)
        raise OSError("no network")

    def model(path, **_):
        asked.append((path, hub.HF_HUB_OFFLINE))
        raise OSError("not in the cache")

    monkeypatch.setattr(loading.socket, "create_connection", refuses)
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", model)
    assert run(f"{GRPO} --model smollm3x") == 2 and not asked
    assert run(f"{GRPO} --model no/such") == 2
    assert asked == [("huggingface.co", 443), ("no/such", True)]
    monkeypatch.setattr(loading, "getproxies", lambda: {"https": "proxy"})
    assert run(f"{GRPO} --model no/such") == 2 and asked[2:] == [("no/such", False)]
    assert hub.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_where_memory_ends_its_settings_are_named(error, capsys, monkeypatch):
    """What is complete is kept."""
    pay(monkeypatch)
    updates, update = [], worlds.loop.update

    def fails(*given):
        updates.append(given)
        if len(updates) > 4:
            raise error
        update(*given)

    monkeypatch.setattr(worlds.loop, "update", fails)
    assert run(f"{RUN} --history h.csv") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "prompts_per_rollout, group_size" in said and "micro_batch_size" in said
    assert len(from_csv("h.csv")) == 2


def test_what_moves_the_cursor_is_escaped(capsys, monkeypatch):
    """Of a model's answer in an exception, a file's name, a warning."""
    escape = "\033[31mred\033]0;title\a\u202e"

    def reward(**_):
        raise KeyError(escape)

    pay(monkeypatch, reward)
    assert run(RUN) == 2 and cli.main(["fetch", escape]) == 2
    assert cli.main([*RUN.split(), "--save", f"file/{escape}"]) == 2
    shows = partial(warnings.warn, escape, stacklevel=1)
    monkeypatch.setattr(kept, "run_training", lambda *_, **__: shows())
    with pytest.raises(AttributeError):
        run(RUN)
    said = capsys.readouterr().err
    assert said.count("x1b[31mred") == 4 and not {"\033", "\a", "\u202e"} & {*said}


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
    """Those of README, guide and CONTRIBUTING, parsed; their work is not done."""
    every = dict.fromkeys(cli.COMMANDS)

    def parsed(commands):
        return {n: wraps(f)(lambda *_, **__: 0) for n, f in commands.items()}

    for name in {*ELSEWHERE.values()}:
        module = room(name, "")
        assert {n for n, r in ELSEWHERE.items() if r == name} == {*module.COMMANDS}
        every |= module.COMMANDS
        monkeypatch.setattr(module, "COMMANDS", parsed(module.COMMANDS))
    monkeypatch.setattr(cli, "COMMANDS", parsed(cli.COMMANDS))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("notebooks/guide/*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    lines = re.findall(r"python -m refimpl ([^`\n#>|]+)", text.replace("\\\n", " "))
    assert len(lines) >= 10
    for line in lines:
        assert run(line.replace("topr", "grpo")) == 0, line
    assert not any(run(f"{name} --help") for name in every)


def test_curves_writes_csv():
    assert run("curves --algorithm grpo --out c.csv") == 0
    with open("c.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    clipped = [r for r in rows if r["name"] == "grpo A>0" and float(r["ratio"]) > 1.21]
    assert clipped and all(float(row["coefficient"]) == 0 for row in clipped)


def test_warm_start_says_where_the_policy_is(capsys):
    assert run("warm-start --preset tiny-moe") == 0
    folder, *_, loss = capsys.readouterr().out.split()
    there = shipped(WarmStart(preset="tiny-moe"))
    losses = json.loads((there / "start.json").read_text())["losses"]
    assert folder == str(there) and float(loss) == pytest.approx(losses[-1], abs=1e-3)
