"""The command line: `python -m refimpl {train,settings,warm-start,curves,…}`.

What is typed is read before the library is loaded, which takes seconds: each function
here imports what it needs. The commands of the other rooms (`pretrained`, `interop`)
are found when one is called.
"""

import csv
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import Any

import tyro
from pydantic import TypeAdapter

import refimpl as rl
from refimpl import validation
from refimpl.config import Preset, TrainConfig
from refimpl.keep import files
from refimpl.shell.flags import File, Method, Sets, known_method, parse_settings
from refimpl.shell.outputs import Unbroken
from refimpl.shell.rooms import ELSEWHERE, check_command, loading, room
from refimpl.shell.train import World, train, worlds
from refimpl.validation import UserError, expected, one_line, printable


def settings_() -> int:
    """Print what --set takes: every setting and hyperparameter, with its range."""
    with loading():
        rules, methods = rl.corrections.RULES, rl.ALGORITHMS
    defaults = TrainConfig()
    for group in reversed(TrainConfig.__mro__[1:-1]):
        print(f"{group.__name__}: {group.__doc__}\n")
        schema = TypeAdapter(group).json_schema()["properties"]
        for name, kind in validation.annotations(group).items():
            words = f"{getattr(defaults, name)!r}, {expected(kind)}"
            meaning = schema[name].get("description")
            print(f"  {name} = {words}" + (f": {meaning}" if meaning else ""))
        print()
    print("Corrections of the sampler, rule=bound or rule=lower,upper:\n")
    for name, rule in rules.items():
        print(f"  {name}: {expected(rule.bound)}")
    print("\nAlgorithms and their hyperparameters:\n")
    for a in methods.values():
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
    with loading():
        starts = rl.sft
    recipe = rl.WarmStart(preset=preset, world=worlds()[task](), seed=seed)
    _, _, losses = rl.warm_start(recipe, device=device, fresh=fresh)
    folder = (None if fresh else starts.shipped(recipe)) or starts.cached(recipe)
    print(f"{folder}  final loss {losses[-1]:.3f}")
    return 0


def curves_(*, algorithm: Method, set: Sets = (), out: File = "curves.csv") -> int:
    """Write objective and gradient coefficient against the ratio as CSV.

    Args:
        set: NAME=VALUE, a hyperparameter; repeatable.
    """
    method = known_method(algorithm)
    settings = parse_settings(method, set, fields={})["hyperparameters"]

    def fill(file) -> None:
        writer = csv.writer(file)
        writer.writerow(["name", *rl.curves.Curve._fields])
        for sign in (1, -1):
            curve = rl.curve(method, sign, **settings)
            for row in zip(*(column.tolist() for column in curve)):
                name = f"{method.name} A{'>' if sign > 0 else '<'}0"
                writer.writerow([name, *(f"{number:.6g}" for number in row)])

    with files.unmade(os.path.dirname(out)):
        files.write(files.writable_file(out, "the curves"), fill)
    print(f"wrote {out}")
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "settings": settings_,
    "warm-start": warm_start_,
    "curves": curves_,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 and one line for what the reader can mend."""
    arguments = sys.argv[1:] if arguments is None else arguments
    out, err = Unbroken(sys.stdout, needed=True), Unbroken(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        return called(arguments)


def ours() -> tuple[type[BaseException], ...]:
    """Errors that are sentences for the reader; any other is a bug."""
    from refimpl.hooks import StalenessError
    from refimpl.keep.checkpoint import CheckpointError
    from refimpl.responses import DynamicSamplingError

    ended = (CheckpointError, DynamicSamplingError, FloatingPointError, StalenessError)
    return (UserError, *ended)


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""What torch's allocators say, on a GPU, on Unix and on Windows."""


def sentence(error: Exception) -> str | None:
    """What the reader can mend, in words; None for any other error, which is a bug."""
    text = str(error)
    if isinstance(error, UserError):
        return text
    lower = isinstance(error, RuntimeError) and text.lower()
    if isinstance(error, MemoryError) or (lower and any(x in lower for x in NO_MEMORY)):
        return (
            f"there is not enough memory ({one_line(error, 160)}); make "
            "prompts_per_rollout, group_size, max_new_tokens or, for the updates, "
            "micro_batch_size smaller (--set), or take a smaller model"
        )
    full = isinstance(error, OSError) and error.errno in files.FULL
    return text if full or isinstance(error, ours()) else None


def called(arguments: list[str]) -> int:
    """The command's exit status."""
    try:
        try:
            return work(arguments)
        finally:
            sys.stdout.flush()  # a full disk is an error of now
    except Exception as error:
        if (said := sentence(error)) is None:
            raise  # a bug: its traceback is what helps
        print(f"error: {printable(said)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        return 128 + getattr(error, "number", signal.SIGINT)


def work(arguments: list[str]) -> int:
    """Find the command and call it."""
    asked = arguments[0] if arguments else ""
    for_all = asked in ("-h", "--help") or asked.startswith("--tyro-")
    if not for_all:
        check_command(asked)
    check_named(arguments)
    program = "python -m refimpl"
    if for_all:
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog=program,
            description=f"Other commands: {', '.join(ELSEWHERE)}.",
            args=arguments,
        )
    known = room(ELSEWHERE[asked], asked).COMMANDS if asked in ELSEWHERE else COMMANDS
    return tyro.cli(known[asked], prog=f"{program} {asked}", args=arguments[1:])


def check_named(arguments: list[str]) -> None:
    """Raise `UserError` on an empty text, as "$MODEL" is where nobody has set it."""
    for before, text in pairwise(arguments):
        flag, equals, value = text.partition("=")
        long = flag.startswith("--") and equals
        if not (value if long else text).strip():
            raise UserError(
                f"{flag if long else before} '' is empty, which names nothing; leave "
                "it out, or give it a value (is a variable of the shell not set?)"
            )
