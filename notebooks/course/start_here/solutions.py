"""Solutions to the exercises of chapter 00 in which something is written.

0.2: "guess". 0.5: "CISPO". 0.6: line 6; the padding must be masked as well, or the
mean counts the easiest tokens of all.
"""

import torch


def my_verify(response: str, answer: int) -> bool:
    """Split at '#': exactly two parts, and the second is the answer as written."""
    parts = response.split("#")
    return len(parts) == 2 and parts[1] == str(answer)


def mean_logp(logp: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(1/|o_i|) Σ_t log π(o_t): padding neither in the sum nor in the count."""
    return (logp * mask).sum(-1) / mask.sum(-1)


def log_probs_at(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide the logits first, normalise afterwards."""
    return (logits / temperature).log_softmax(-1)
