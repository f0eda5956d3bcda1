"""Pretrained models: loading, chat templates, tasks and scorers from other packages,
log-probs that read each prompt once, LoRA, and an estimate of the memory needed."""

from refimpl.pretrained import chat, gym, loading, logprobs, lora, memory

__all__ = ["chat", "gym", "loading", "logprobs", "lora", "memory"]
