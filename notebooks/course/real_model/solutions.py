"""Solutions to the exercises of chapter 13."""

import math

import torch

PACKED = 138
"""13.1: 50 + 8 · 11. The last token of an answer predicts nothing, and is left out."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """13.2: 1 − C(n−c, k) / C(n, k); `math.comb` is 0 where n − c < k."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def attends(owner: list[int]) -> torch.Tensor:
    """13.3: to what stands before (itself included), of the prompt or its own."""
    whose = torch.tensor(owner)
    same = whose[:, None] == whose
    return (same | (whose == 0)).tril().int()


SHARE = 90
"""13.4: 304 − 92 = 212 tokens are saved. Seven of eight prompts, 7 · 26 = 182, are
86 % of them; 22 were padding, and 8 are the answers' last tokens."""

LINE = 7
"""13.5: padding is EOS, so `ids != pad` also leaves out the EOS that ends the answer.
Nothing ever teaches the model to stop. Count instead: position < length, EOS included.
"""

LARGEST = 0.05
"""13.6: the first three tokens stay and hold 0.95. A kept token has the ratio
π / (π / 0.95) = 0.95."""
