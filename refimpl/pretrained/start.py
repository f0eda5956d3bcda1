"""The parts of a run that begins with a pretrained model: `train --model`."""

from typing import Any

from refimpl.cli import parse_texts
from refimpl.pretrained import fast
from refimpl.pretrained import lora as adapters
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs, recomputed
from refimpl.validation import UserError, annotations


def start(
    name: str,
    task: Any,
    seed: int,
    lora: tuple[str, ...] | None,
    merge: bool,
    recompute: bool,
    chat: bool,
    system: str | None,
) -> dict[str, Any]:
    """What `train` is called with: model, tokenizer, task and log_probs."""
    fast.use()
    kinds = {**annotations(adapters.lora), "target_modules": str}
    del kinds["model"]
    chosen = parse_texts("--lora", lora or (), kinds)
    model, tokenizer = load(name)
    if chat and getattr(tokenizer, "chat_template", None):
        task = Chat(task, tokenizer, system)
    elif system is not None:
        raise UserError(
            "--system is a part of the chat template, and "
            + ("the model has none" if chat else "--no-chat turns it off")
        )
    if lora is not None:
        model = adapters.lora(model, **{"seed": seed, **chosen})
    if merge and not hasattr(model, "peft_config"):
        raise UserError("--merge needs a LoRA: give --lora, or a --model with one")
    reader = recomputed(log_probs) if recompute else log_probs
    return {"model": model, "tokenizer": tokenizer, "task": task, "log_probs": reader}
