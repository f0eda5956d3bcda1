"""Pretrained models: loading, chat templates, tasks and scorers from other packages,
log-probs that read each prompt once, and LoRA."""

from refimpl.pretrained import chat, gym, loading, logprobs, lora

__all__ = ["chat", "gym", "loading", "logprobs", "lora"]
