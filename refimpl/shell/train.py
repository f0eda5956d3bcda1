"""The command `train`: what is asked for is tried before the work, kept after it."""

import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from refimpl import algorithms, checkpoint, checks, files
from refimpl.checkpoint import CheckpointError
from refimpl.checks import UserError
from refimpl.collect import DynamicSamplingError
from refimpl.config import DType, TrainConfig
from refimpl.history import History
from refimpl.hooks import Interrupted, signals_to
from refimpl.models import Preset
from refimpl.prepare import check_fit
from refimpl.shell.flags import Method, Sets, parse_settings
from refimpl.shell.outputs import check_apart
from refimpl.shell.rooms import room
from refimpl.starts import WarmStart, warm_start
from refimpl.tasks import Arithmetic, HabitWorld, Sorting, rare_careful
from refimpl.train import train as run_training

WORLDS: dict[str, Callable[[], HabitWorld]] = {
    "arithmetic": Arithmetic,
    "rare-careful": rare_careful,
    "sorting": Sorting,
}
World: TypeAlias = Literal["arithmetic", "rare-careful", "sorting"]


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
    taken = {} if checkpoint_dir is None else checkpoint.files(checkpoint_dir)
    policies = {"--save": save, "--model": None if model is None else Path(model)}
    check_apart({"--history": history, "--samples": samples, **taken}, policies)
    if history is not None:
        history = files.writable_file(history, "the history")
    if samples is not None:
        samples = files.writable_file(samples, "the samples")
    if save is not None:
        save = files.writable_folder(save, "the policy")
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
        with ExitStack() as outputs:  # the last comes first
            outputs.callback(summarise, result, config, checkpoint_dir)
            if save is not None:
                given = result.model, start["tokenizer"]
                outputs.callback(files.write_folder, save, partial(save_policy, *given))
            if samples is not None:
                outputs.callback(result.samples_to_jsonl, samples)
            if history is not None:
                outputs.callback(result.to_csv, history)

    complete: list[int] = []
    late: list[int] = []

    def signalled(number: int, _) -> None:
        """Once a rollout is complete, nothing comes between it and its outputs."""
        if not complete:
            raise Interrupted(signal.Signals(number).name, number)
        late.append(number)

    with signals_to(signalled):  # in a run, its own handler
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: print(
                    f"warning: {message}", file=sys.stderr
                )
                result = run_training(
                    method,
                    config=config,
                    **start,
                    hooks=[lambda run, step: complete.append(step)],
                    checkpoint_dir=checkpoint_dir,
                    resume=resume,
                    overwrite=overwrite,
                )
        except BaseException as error:
            if isinstance(so_far := getattr(error, "history", None), History):
                keep(so_far)
            raise
        keep(result)
    if isinstance(result.ended, Interrupted):
        return 128 + result.ended.number
    if late:  # it has waited for the outputs
        return 128 + late[0]
    finished = result.ended is None or isinstance(result.ended, DynamicSamplingError)
    return 0 if finished else 2  # 0: as far as it could be trained


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


def world_of(name: str, pairs: dict[str, str]) -> HabitWorld:
    """A world by name, with its settings as text."""
    world: Any = WORLDS[name]()
    kinds = checks.annotations(type(world))
    checks.refuse_unknown(f"the task {name}", pairs, kinds)
    return replace(world, **{k: checks.parse(k, kinds[k], v) for k, v in pairs.items()})
