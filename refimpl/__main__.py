"""The command line: `python -m refimpl {train,fetch,settings,warm-start,…}`."""

import errno
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from refimpl import algorithms, curves, models
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.checkpoint import NAME, CheckpointError
from refimpl.config import TrainConfig
from refimpl.files import writable_file, writable_folder
from refimpl.history import History
from refimpl.lab import bench as measure
from refimpl.lab import gpu_check as checked_gpu
from refimpl.lab import real as pretrained
from refimpl.models import Preset, load
from refimpl.real import gym
from refimpl.real.chat import Chat
from refimpl.real.judge import TaskWarning
from refimpl.real.pretrained import PACKAGED, fetch
from refimpl.settings import (
    Count,
    annotations,
    expected,
    nearest,
    parse,
    refuse_unknown,
    table,
)
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Arithmetic, HabitWorld, Sorting, rare_careful
from refimpl.trainer import DynamicSamplingError, StalenessError
from refimpl.trainer import train as run_training

WORLDS: dict[str, Callable[[], HabitWorld]] = {
    "arithmetic": Arithmetic,
    "rare-careful": rare_careful,
    "sorting": Sorting,
}
FIELDS = annotations(TrainConfig)


def setting(name: str, kind: Any = None) -> PrimitiveConstructorSpec:
    """A flag for a setting of `TrainConfig`, read and refused as that is."""
    kind = FIELDS[name] if kind is None else kind
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"({expected(kind)})",
        instance_from_str=lambda texts: parse(name, kind, texts[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    )


Sets: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]
Seed: TypeAlias = Annotated[Any, setting("seed")]
Device: TypeAlias = Annotated[Any, setting("device")]
Seeds: TypeAlias = Annotated[Any, setting("seeds", Count)]
World: TypeAlias = Literal["arithmetic", "rare-careful", "sorting"]
GYM = "reasoning-gym:"
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(ALGORITHMS))]


def train(
    *,
    algorithm: Method,
    seed: Seed = None,
    rollouts: Annotated[Any, setting("rollouts")] = None,
    set: Sets = (),
    model: str | None = None,
    preset: Preset = "tiny",
    task: str = "arithmetic",
    task_set: Sets = (),
    system: str | None = None,
    chat: bool = True,
    lora: tuple[str, ...] | None = None,
    merge: bool = False,
    device: Device = None,
    dtype: Annotated[Any, setting("dtype")] = None,
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
        model: folder, hub name or one that `fetch` knows, instead of a preset.
        task: arithmetic, rare-careful, sorting, or one of reasoning-gym, as
            reasoning-gym:chain_sum.
        task_set: NAME=VALUE, a setting of the task, as max_terms=2; repeatable.
        system: the system message, instead of the chat template's own.
        chat: write prompts with the model's chat template, if it has one.
        lora: train a LoRA on the model; r=16 alpha=32 target_modules=q_proj,v_proj
            (all-linear unless named).
        merge: save the model with its LoRA merged in, not the LoRA alone.
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
    if samples is not None and not settings.get("samples_every"):
        settings["samples_every"] = 1
    config = TrainConfig(**settings)
    config.check(method)
    adapter = parse_lora(lora or ())
    if merge and save is None:
        raise ValueError("--merge says how to save the policy: give --save FOLDER too")
    if history is not None:
        writable_file(history, "the history")
    if samples is not None:
        writable_file(samples, "the samples")
    if save is not None:
        writable_folder(save, "the policy")
    world = parse_task(task, task_set)
    if model is not None:
        policy, tokenizer = load(model)
    elif isinstance(world, HabitWorld):
        start = WarmStart(preset=preset, world=world)
        policy, tokenizer, _ = warm_start(start, device=config.device)
    else:
        raise ValueError(
            f"the task {task} is written in words, and the preset {preset!r} reads "
            "only sums: give a --model, as --model smollm2"
        )
    if chat and getattr(tokenizer, "chat_template", None):
        world = Chat(world, tokenizer, system)
    elif system is not None:
        raise ValueError(
            "--system is a part of the chat template, and "
            + ("the model has none" if chat else "--no-chat turns it off")
        )
    if lora is not None:
        policy = models.lora(policy, **{"seed": config.seed, **adapter})
    if merge and not hasattr(policy, "peft_config"):
        raise ValueError("--merge needs a LoRA: give --lora, or a --model with one")

    def save_policy(found: History) -> None:
        policy = models.merged(found.model) if merge else found.model
        policy.save_pretrained(save)
        tokenizer.save_pretrained(save)

    def keep(found: History) -> None:
        """Write what is asked for; the rest though one of it cannot be."""
        lost = []
        for path, write in (
            (history, lambda: found.to_csv(history)),
            (samples, lambda: found.samples_to_jsonl(samples)),
            (save, lambda: save_policy(found)),
        ):
            try:
                if path is not None:
                    write()
            except Exception as error:  # OSError, or what safetensors makes of one
                lost.append(f"{str(path)!r} could not be written ({error})")
        if lost:
            raise ValueError("; ".join(lost))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `ended` is printed below
            warnings.simplefilter("always", TaskWarning)
            warnings.showwarning = lambda message, *_: print(
                f"warning: {message}", file=sys.stderr
            )
            found = run_training(
                method,
                config=config,
                model=policy,
                tokenizer=tokenizer,
                task=world,
                checkpoint_dir=checkpoint_dir,
                resume=resume,
                overwrite=overwrite,
            )
    except StalenessError as error:
        keep(error.history)
        raise
    if found.ended is not None:
        print(found.ended, file=sys.stderr)
        can_go_on = isinstance(found.ended, KeyboardInterrupt | CheckpointError)
        if can_go_on and checkpoint_dir and (checkpoint_dir / NAME).exists():
            print(
                f"continue with --checkpoint-dir {checkpoint_dir} --resume",
                file=sys.stderr,
            )
    last = found.rows[-1]
    measured = [a for a in found["accuracy"] if a == a]
    passed = last.get("accuracy/pass")
    print(
        f"{method.name}  seed {config.seed}  rollouts {len(found)}  "
        f"seconds {sum(found['step_time']):.1f}  reward {last['reward']:.2f}  "
        + (f"accuracy {measured[-1]:.2f}" if measured else "accuracy not measured")
        + (f"  pass@{config.eval_samples} {passed:.2f}" if passed is not None else "")
    )
    keep(found)
    if found.ended is None or isinstance(found.ended, DynamicSamplingError):
        return 0  # as far as it could be trained
    return 130 if isinstance(found.ended, KeyboardInterrupt) else 2


def fetch_(
    name: Annotated[str, tyro.conf.arg(metavar="NAME", help=", ".join(PACKAGED))], /
) -> int:
    """Download a pretrained model once; prints its folder, which --model finds."""
    print(fetch(name))
    return 0


def settings_() -> int:
    """Print what --set takes: every setting and hyperparameter, with its range."""
    print(f"Settings:\n\n{table(TrainConfig)}\n")
    print(f"Algorithms and their hyperparameters:\n\n{algorithms.table()}")
    return 0


def warm_start_(
    *,
    preset: Preset = "tiny",
    task: World = "arithmetic",
    seed: Seed = 0,
    device: Device = "cpu",
    fresh: bool = False,
) -> int:
    """Train or find the SFT policy.

    Args:
        fresh: train it again.
    """
    settings = WarmStart(preset=preset, world=WORLDS[task](), seed=seed)
    _, _, losses = warm_start(settings, device=device, fresh=fresh)
    folder = (None if fresh else settings.shipped()) or settings.folder()
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
    writable_file(out, "the curves")
    found = {
        f"{method.name} A{'>' if sign > 0 else '<'}0": curves.curve(
            method, sign, **settings
        )
        for sign in (1, -1)
    }
    curves.to_csv(out, found)
    print(f"wrote {out}")
    return 0


def bench(
    *,
    seeds: Seeds = 10,
    algorithms: tuple[str, ...] = measure.TRAINED,
    chapters: Path | None = None,
    out: Path = Path("bench.json"),
) -> int:
    """Measure speed and accuracy.

    Args:
        chapters: time the notebooks in this folder too.
    """
    measure.bench(seeds, out, chapters, algorithms)
    return 0


def real(
    *,
    arms: tuple[str, ...] = tuple(pretrained.ARMS),
    settings: tuple[str, ...] = tuple(pretrained.SETTINGS),
    seeds: Seeds = 3,
    workers: Annotated[Any, setting("workers", Count)] = 1,
    out: Path = Path("real"),
) -> int:
    """Every method on a pretrained model; goes on where it stopped.

    Args:
        out: two files: OUT.runs.csv and OUT.rows.csv.gz.
    """
    pretrained.real(out, arms, settings, seeds, workers)
    print(f"wrote {out}.runs.csv and {out}.rows.csv.gz")
    return 0


def evidence_(
    action: Literal["plan", "run", "ledger", "check"],
    /,
    *,
    claims: tuple[str, ...] = (),
    workers: Annotated[Any, setting("workers", Count)] = 1,
    out: Path = Path("figures/data/evidence"),
) -> int:
    """The claims of the papers: which runs are missing, make them, judge them.

    Args:
        action: plan: what is missing, and for how long; run: make it; ledger: all
            verdicts, from the rows; check: is the stored ledger what the rows give.
        claims: numbers of claims, or names of studies; none: all of them.
        out: OUT.runs.csv, OUT.rows.csv.gz and OUT.ledger.csv.
    """
    from refimpl.lab import evidence  # pandas and scipy take a second

    chosen = claims or tuple(evidence.NAMES)
    if action == "plan":
        print(evidence.plan(out, chosen, workers))
    elif action == "run":
        evidence.run_all(out, chosen, workers)
        print(f"wrote {out}.runs.csv and {out}.rows.csv.gz")
    elif action == "ledger":
        print(evidence.write_ledger(out))
    else:
        wrong = evidence.check(out)
        print("\n".join(wrong) or "the ledger is what the rows give")
        return 1 if wrong else 0
    return 0


def gpu_check(
    *,
    device: Device = "cuda",
    out: Path = Path("gpu_check.json"),
    tiny: bool = False,
) -> int:
    """Measure what can only be seen on a GPU, within ten minutes.

    Args:
        tiny: try its parts with the tiny presets, as --device cpu --tiny.
    """
    found = checked_gpu.gpu_check(device, out, tiny)
    failed = [name for name, figures in found.items() if "error" in figures]
    if failed:
        print(f"these could not be measured: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def conformance(*, against: Path | None = None) -> int:
    """The cases that another implementation can be checked with, as JSON.

    Args:
        against: a file of adapters (see refimpl/interop/conformance/adapters.py):
            prints how its losses compare; exits with 1 if one of them differs.
    """
    from refimpl.interop.conformance import cases

    every = list(cases.cases())
    if against is None:
        print(json.dumps(cases.as_json(every)))
        return 0
    from refimpl.interop.conformance import table  # tabulate is the course's

    module = table.adapters(against)
    found = list(table.compare(module, every))
    print(table.shown(found, getattr(module, "FRAMEWORK", against.stem)))
    return 0 if all(f.said in ("agrees", "not implemented") for f in found) else 1


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "fetch": fetch_,
    "settings": settings_,
    "warm-start": warm_start_,
    "curves": curves_,
    "bench": bench,
    "real": real,
    "evidence": evidence_,
    "gpu-check": gpu_check,
    "conformance": conformance,
}


def main(arguments: list[str] | None = None) -> int:
    try:
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="python -m refimpl", args=arguments
        )
    except Exception as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if not (full or said_by_us(error)):
            raise  # a bug: its traceback is what helps
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def said_by_us(error: Exception) -> bool:
    """Whether a `raise` in this package made the error: a sentence for the reader."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = Path(last.filename).is_relative_to(Path(__file__).parent)
    return inside and (last.line or "").startswith("raise")


def parse_settings(method: Algorithm, pairs, fields: dict = FIELDS) -> dict:
    """`name=value` texts → arguments of `TrainConfig`, hyperparameters set apart.

    Raises `TypeError` with the nearest name if neither knows one.
    """
    own = {k: v for k, v in fields.items() if k != "hyperparameters"}
    settings, hyperparameters = {}, {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not text:
            raise ValueError(f"--set takes name=value, got {pair!r}")
        if name in own:
            settings[name] = parse(name, own[name], text)
        elif name in method.annotations:
            hyperparameters[name] = parse(name, method.annotations[name], text)
        else:
            known = [*method.names, *sorted(own)]
            raise TypeError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, known)}; {method.name} has: "
                f"{', '.join(method.names) or 'none'}"
            )
    return {**settings, "hyperparameters": hyperparameters}


def parse_task(name: str, pairs: tuple[str, ...] = ()) -> Any:
    """A name of `WORLDS` or `reasoning-gym:NAME`, and `name=value` texts.

    Raises `ValueError` or `TypeError` with the nearest name.
    """
    found = {}
    for pair in pairs:
        setting, equals, text = pair.partition("=")
        if not equals or not text:
            raise ValueError(f"--task-set takes name=value, got {pair!r}")
        found[setting] = text
    if name.startswith(GYM):
        return gym.from_texts(name.removeprefix(GYM), found)
    if name not in WORLDS:
        known = [*WORLDS, GYM + "NAME"]
        raise ValueError(
            f"unknown task {name!r}{nearest(name, known)}; choose {', '.join(known)}"
        )
    world: Any = WORLDS[name]()
    kinds = annotations(type(world))
    refuse_unknown(f"the task {name}", found, kinds)
    return replace(world, **{k: parse(k, kinds[k], v) for k, v in found.items()})


def parse_lora(pairs) -> dict:
    """`name=value` texts → keyword arguments of `models.lora`."""
    kinds = {**annotations(models.lora), "target_modules": str}
    kinds = {k: v for k, v in kinds.items() if k not in ("model", "return")}
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not text:
            raise ValueError(f"--lora takes name=value, as r=16, got {pair!r}")
        refuse_unknown("--lora", [name], kinds)
        found[name] = parse(name, kinds[name], text)
    return found


if __name__ == "__main__":
    sys.exit(main())
