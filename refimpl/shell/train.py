"""The command `train`: what is asked for is tried before the work."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import refimpl as rl
from refimpl import validation
from refimpl.config import DType, Preset, TrainConfig
from refimpl.keep import files
from refimpl.shell.flags import File, Folder, Method, Sets, known_method, parse_settings
from refimpl.shell.outputs import check_apart
from refimpl.shell.rooms import loading, room
from refimpl.shell.texts import parse, parse_pairs
from refimpl.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.tasks import HabitWorld

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
    checkpoint_dir: Folder | None = None,
    resume: bool = False,
    overwrite: bool = False,
    history: File | None = None,
    samples: File | None = None,
    save: Folder | None = None,
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
    method = known_method(algorithm)
    with loading():
        from refimpl.keep import checkpoint
        from refimpl.options import check_fit
        from refimpl.shell.kept import Outputs, run, save_pretrained

    settings = parse_settings(method, set)
    flags = {"seed": seed, "rollouts": rollouts, "device": device, "dtype": dtype}
    settings |= {k: v for k, v in flags.items() if v is not None}  # a flag beats --set
    if samples is not None:
        settings.setdefault("samples_every", 1)
    config = TrainConfig(**settings)
    check_fit(config, method)
    if preset is not None and model is not None:
        raise UserError("--preset and --model name two policies: give one of them")
    if merge and save is None:
        raise UserError("--merge says how to save the policy: give --save FOLDER too")
    outputs = Outputs(history, samples, save)
    taken = {} if checkpoint_dir is None else checkpoint.files(checkpoint_dir)
    check_apart(
        {"--history": history, "--samples": samples, **taken},
        {"--save": save, "--model": model},
    )
    pairs = parse_pairs("--task-set", task_set, "max_terms=2")
    world = world_of(task, pairs) if task in get_args(World) else None
    given = (model, lora, system)
    start: dict[str, Any]
    with files.unmade(*outputs.folders(), checkpoint_dir):
        outputs = outputs.tried()
        if world is None or merge or recompute or any(x is not None for x in given):
            start = room("pretrained", "train").start(
                model,
                world,
                task,
                pairs,
                system,
                chat,
                lora,
                merge,
                recompute,
                config.seed,
            )
        else:
            recipe = rl.WarmStart(preset=preset or "tiny", world=world)
            policy, tokenizer, _ = rl.warm_start(recipe, device=config.device)
            start = {"model": policy, "tokenizer": tokenizer, "task": world}
        save_policy = start.pop("save_policy", save_pretrained)
        start |= {"checkpoint_dir": checkpoint_dir}
        start |= {"resume": resume, "overwrite": overwrite}
        return run(method, config, start, outputs, save_policy)


def worlds() -> dict[str, "Callable[[], HabitWorld]"]:
    """What makes each."""
    from refimpl.tasks import Arithmetic, Sorting, rare_careful

    return {"arithmetic": Arithmetic, "rare-careful": rare_careful, "sorting": Sorting}


def world_of(name: str, pairs: dict[str, str]) -> "HabitWorld":
    """A world by name, with its settings as text."""
    world: Any = worlds()[name]()
    kinds = validation.annotations(type(world))
    validation.refuse_unknown(f"the task {name}", pairs, kinds)
    return replace(world, **{k: parse(k, kinds[k], v) for k, v in pairs.items()})
