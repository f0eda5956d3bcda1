"""The command line: `python -m refimpl {train,settings,warm-start,curves,…}`.

The commands of the other rooms (`real`, `interop`, `lab`) are found when one is called.
"""

import csv
import errno
import importlib
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tyro
from pydantic import TypeAdapter

from refimpl import algorithms, checkpoint, checks, curves, files
from refimpl.algorithms import ALGORITHMS
from refimpl.checkpoint import CheckpointError
from refimpl.checks import UserError
from refimpl.collect import DynamicSamplingError
from refimpl.command_line import Method, Sets, parse_settings
from refimpl.config import DType, TrainConfig
from refimpl.history import History
from refimpl.hooks import Interrupted, StalenessError
from refimpl.models import Preset
from refimpl.prepare import check_fit
from refimpl.starts import WarmStart, cached, shipped, warm_start
from refimpl.tasks import Arithmetic, HabitWorld, Sorting, rare_careful
from refimpl.train import train as run_training

WORLDS: dict[str, Callable[[], HabitWorld]] = {
    "arithmetic": Arithmetic,
    "rare-careful": rare_careful,
    "sorting": Sorting,
}
World: TypeAlias = Literal["arithmetic", "rare-careful", "sorting"]
ENDED = (CheckpointError, DynamicSamplingError, FloatingPointError, StalenessError)
OURS = (UserError, *ENDED)
"""Errors that are sentences for the reader; any other is a bug."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk, a quota, a file that may not grow."""


def train(
    *,
    algorithm: Method,
    seed: int | None = None,
    rollouts: int | None = None,
    set: Sets = (),
    model: str | None = None,
    preset: Preset | None = None,
    task: str = "arithmetic",
    task_set: Sets = (),
    system: str | None = None,
    chat: bool = True,
    lora: tuple[str, ...] | None = None,
    merge: bool = False,
    recompute: bool = False,
    device: str | None = None,
    dtype: DType | None = None,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    history: Path | None = None,
    samples: Path | None = None,
    save: Path | None = None,
) -> int:
    """Train a policy; the last line of output holds its held-out accuracy.

    Args:
        set: NAME=VALUE, any of those that the command `settings` prints; repeatable.
        model: folder, hub name or one that `fetch` knows, instead of a preset (tiny).
        task: arithmetic, rare-careful, sorting, or one of reasoning-gym, as
            reasoning-gym:chain_sum.
        task_set: NAME=VALUE, a setting of the task, as max_terms=2; repeatable.
        system: the system message, instead of the chat template's own.
        chat: write prompts with the model's chat template, if it has one.
        lora: train a LoRA on the model; r=16 alpha=32 target_modules=q_proj,v_proj
            (all-linear unless named).
        merge: save the model with its LoRA merged in, not the LoRA alone.
        recompute: less memory for more time: layers are computed again (--model).
        checkpoint_dir: save there every `checkpoint_every` rollouts.
        resume: go on from the checkpoint.
        overwrite: replace a checkpoint that is there.
        history: write the history as CSV.
        samples: write a few responses of every rollout, or of those that the setting
            samples_every names, as JSON lines.
        save: write the policy (save_pretrained).
    """
    method = algorithms.get(algorithm)
    settings = parse_settings(method, set)
    flags = {"seed": seed, "rollouts": rollouts, "device": device, "dtype": dtype}
    settings |= {k: v for k, v in flags.items() if v is not None}  # a flag beats --set
    if samples is not None:
        settings.setdefault("samples_every", 1)
    config = TrainConfig(**settings)
    check_fit(config, method)
    if preset and model:
        raise UserError("--preset and --model name two policies: give one of them")
    if merge and save is None:
        raise UserError("--merge says how to save the policy: give --save FOLDER too")
    if history is not None:
        history = files.writable_file(history, "the history")
    if samples is not None:
        samples = files.writable_file(samples, "the samples")
    if save is not None:
        save = files.writable_folder(save, "the policy")
    taken = {} if checkpoint_dir is None else checkpoint.files(checkpoint_dir)
    policies = {"--save": save, "--model": None if model is None else Path(model)}
    files.check_apart({"--history": history, "--samples": samples, **taken}, policies)
    pairs = checks.parse_pairs("--task-set", task_set, "max_terms=2")
    world = world_of(task, pairs) if task in WORLDS else None
    start: dict[str, Any]
    if world is None or model or lora is not None or system or merge or recompute:
        start = room("real", "train").start(
            model, world, task, pairs, system, chat, lora, merge, recompute, config.seed
        )
    else:
        recipe = WarmStart(preset=preset or "tiny", world=world)
        policy, tokenizer, _ = warm_start(recipe, device=config.device)
        start = {"model": policy, "tokenizer": tokenizer, "task": world}
    save_policy = start.pop("save_policy", save_pretrained)

    def keep(result: History) -> None:
        """Write what is asked for, then the summary; each though another fails."""
        with ExitStack() as outputs:  # the last is called first
            outputs.callback(summarise, result, config, checkpoint_dir)
            if save is not None:
                given = result.model, start["tokenizer"]
                outputs.callback(files.write_folder, save, partial(save_policy, *given))
            if samples is not None:
                outputs.callback(result.samples_to_jsonl, samples)
            if history is not None:
                outputs.callback(result.to_csv, history)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(
                f"warning: {message}", file=sys.stderr
            )
            result = run_training(
                method,
                config=config,
                **start,
                checkpoint_dir=checkpoint_dir,
                resume=resume,
                overwrite=overwrite,
            )
    except BaseException as error:
        if isinstance(so_far := getattr(error, "history", None), History):
            keep(so_far)
        raise
    keep(result)
    if result.ended is None or isinstance(result.ended, DynamicSamplingError):
        return 0  # as far as it could be trained
    return 128 + result.ended.number if isinstance(result.ended, Interrupted) else 2


def save_pretrained(model, tokenizer, folder: Path) -> None:
    """The policy and its tokenizer, as `from_pretrained` reads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def summarise(result: History, config: TrainConfig, folder: Path | None) -> None:
    """How to go on, if it ended early, and the line that holds the accuracy."""
    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (folder / checkpoint.NAME).exists():
        print(f"continue with --checkpoint-dir {folder} --resume", file=sys.stderr)
    last = result.rows[-1]
    measured = [a for a in result["accuracy"] if a == a]
    passed = last.get("accuracy/pass")
    print(
        f"{result.algorithm}  seed {config.seed}  rollouts {len(result)}  "
        f"seconds {sum(result['step_time']):.1f}  reward {last['reward']:.2f}  "
        + (f"accuracy {measured[-1]:.2f}" if measured else "accuracy not measured")
        + (f"  pass@{config.eval_samples} {passed:.2f}" if passed is not None else "")
    )


def settings_() -> int:
    """Print what --set takes: every setting and hyperparameter, with its range."""
    defaults = TrainConfig()
    for group in reversed(TrainConfig.__mro__[1:-1]):
        print(f"{group.__name__}: {group.__doc__}\n")
        schema = TypeAdapter(group).json_schema()["properties"]
        for name, kind in checks.annotations(group).items():
            words = f"{getattr(defaults, name)!r}, {checks.expected(kind)}"
            meaning = schema[name].get("description")
            print(f"  {name} = {words}" + (f": {meaning}" if meaning else ""))
        print()
    print("Algorithms and their hyperparameters:\n")
    for a in ALGORITHMS.values():
        changed = f"{a.changed} (against {a.parent})" if a.parent else a.changed
        papers = ", ".join(f"{name}={value}" for name, value in a.defaults.items())
        print(f"  {a.name}: {changed}. {papers or 'no hyperparameters'}")
    return 0


def warm_start_(
    *,
    preset: Preset = "tiny",
    task: World = "arithmetic",
    seed: int = 0,
    device: str = "cpu",
    fresh: bool = False,
) -> int:
    """Train or find the SFT policy.

    Args:
        fresh: train it again.
    """
    recipe = WarmStart(preset=preset, world=WORLDS[task](), seed=seed)
    _, _, losses = warm_start(recipe, device=device, fresh=fresh)
    folder = (None if fresh else shipped(recipe)) or cached(recipe)
    print(f"{folder}  final loss {losses[-1]:.3f}")
    return 0


def curves_(
    *, algorithm: Method, set: Sets = (), out: Path = Path("curves.csv")
) -> int:
    """Write objective and gradient coefficient against the ratio as CSV.

    Args:
        set: NAME=VALUE, a hyperparameter; repeatable.
    """
    method = algorithms.get(algorithm)
    settings = parse_settings(method, set, fields={})["hyperparameters"]
    path = files.writable_file(out, "the curves")

    def fill(file) -> None:
        writer = csv.writer(file)
        writer.writerow(["name", *curves.Curve._fields])
        for sign in (1, -1):
            curve = curves.curve(method, sign, **settings)
            for row in zip(*(column.tolist() for column in curve)):
                name = f"{method.name} A{'>' if sign > 0 else '<'}0"
                writer.writerow([name, *(f"{number:.6g}" for number in row)])

    files.write(path, fill)
    print(f"wrote {out}")
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "settings": settings_,
    "warm-start": warm_start_,
    "curves": curves_,
}
ELSEWHERE = {
    "fetch": "real",
    "conformance": "interop",
    "verl-config": "interop",
    "bench": "lab",
    "real": "lab",
    "evidence": "lab",
    "gpu-check": "lab",
}
"""Commands of the other rooms: `refimpl.ROOM.command.COMMANDS` has them."""


def room(name: str, asked: str) -> Any:
    """The commands of another room."""
    try:
        return importlib.import_module(f"refimpl.{name}.command")
    except ModuleNotFoundError as error:
        mend = "in a clone, pip install -r requirements.txt"
        raise UserError(f"{asked} needs {error.name}, not installed; {mend}") from error


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 and one line for what the reader can mend."""
    arguments = sys.argv[1:] if arguments is None else arguments
    out, err = files.Unbroken(sys.stdout), files.Unbroken(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        return called(arguments)


def called(arguments: list[str]) -> int:
    """The command's exit status."""
    asked = arguments[0] if arguments else ""
    try:
        known = COMMANDS
        if asked in ELSEWHERE:
            known = COMMANDS | room(ELSEWHERE[asked], asked).COMMANDS
        return tyro.extras.subcommand_cli_from_dict(
            known,
            prog="python -m refimpl",
            description=f"Other commands: {', '.join(ELSEWHERE)}.",
            args=arguments,
        )
    except (*OURS, OSError) as error:
        if not isinstance(error, OURS) and error.errno not in FULL:
            raise  # a bug: its traceback is what helps
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def world_of(name: str, pairs: dict[str, str]) -> HabitWorld:
    """A world by name, with its settings as text."""
    world: Any = WORLDS[name]()
    kinds = checks.annotations(type(world))
    checks.refuse_unknown(f"the task {name}", pairs, kinds)
    return replace(world, **{k: checks.parse(k, kinds[k], v) for k, v in pairs.items()})


if __name__ == "__main__":
    sys.exit(main())
