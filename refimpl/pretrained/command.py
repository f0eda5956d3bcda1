"""`python -m refimpl fetch`, and what `train` needs of a pretrained model."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from refimpl.pretrained import fast, gym
from refimpl.pretrained import lora as adapters
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs, recomputed
from refimpl.pretrained.packaged import PACKAGED, fetch
from refimpl.shell.texts import parse, parse_pairs
from refimpl.validation import UserError, annotations, nearest, refuse_unknown

GYM = "reasoning-gym:"


def start(
    model: str | None,
    world: Any,
    task: str,
    task_settings: dict[str, str],
    system: str | None,
    chat: bool,
    lora: tuple[str, ...] | None,
    merge: bool,
    recompute: bool,
    seed: int,
) -> dict[str, Any]:
    """What `train` is called with: model, tokenizer, task, log_probs; `save_policy`."""
    fast.use()
    adapter = parse_lora(lora or ())
    if world is None:
        if not task.startswith(GYM):
            from refimpl.shell.train import worlds

            known = [*worlds(), f"{GYM}NAME"]
            raise UserError(
                f"unknown task {task!r}{nearest(task, known)}; choose "
                f"{', '.join(known)}"
            )
        world = gym.from_texts(task.removeprefix(GYM), task_settings)
    if model is None:
        what = (
            "task is written in words" if task.startswith(GYM) else "option is for one"
        )
        raise UserError(
            f"the {what}, and the presets read only sums: give a --model, as "
            "--model smollm2"
        )
    policy, tokenizer = load(model)
    if chat and getattr(tokenizer, "chat_template", None):
        world = Chat(world, tokenizer, system)
    elif system is not None:
        raise UserError(
            "--system is a part of the chat template, and "
            + ("the model has none" if chat else "--no-chat turns it off")
        )
    if lora is not None:
        policy = adapters.lora(policy, **{"seed": seed, **adapter})
    if merge and not hasattr(policy, "peft_config"):
        raise UserError("--merge needs a LoRA: give --lora, or a --model with one")

    def save_policy(trained, tokenizer, folder: Path) -> None:
        whole = adapters.merged(trained) if merge else trained
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return {
        "model": policy,
        "tokenizer": tokenizer,
        "task": world,
        "log_probs": recomputed(log_probs) if recompute else log_probs,
        "save_policy": save_policy,
    }


def parse_lora(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` texts → keyword arguments of `lora`."""
    kinds = {**annotations(adapters.lora), "target_modules": str}
    kinds = {k: v for k, v in kinds.items() if k not in ("model", "return")}
    texts = parse_pairs("--lora", pairs, "r=16")
    refuse_unknown("--lora", texts, kinds)
    return {name: parse(name, kinds[name], text) for name, text in texts.items()}


def fetch_(
    name: Annotated[str, tyro.conf.arg(metavar="NAME", help=", ".join(PACKAGED))], /
) -> int:
    """Download a pretrained model once; prints its folder, which --model finds."""
    print(fetch(name))
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {"fetch": fetch_}
