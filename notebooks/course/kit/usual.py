"""A batch for the exercises about a loss, and the mistakes that all of them invite."""

import inspect
from collections.abc import Callable

import torch

OF_RESPONSES = "mask / (len(mask) * mask.sum(1, keepdim=True))"
OF_TOKENS = "mask / mask.sum()"
_PADDING = "Padding counts. Multiply by the mask before you add up."
_SUMMED = "Padding counts in your sum, though not in its divisor. Multiply by the mask."
FROM_THE_LEFT = (
    "You take as many tokens from the left as the mask has ones. A hole before them "
    "shifts the rest: multiply by the mask instead."
)

MISTAKES = (
    (
        "The sign: an optimiser goes downhill, so the loss is minus the objective.",
        *("return -", "return "),
    ),
    (
        "Upside down: the ratio is π_θ/π_old, the exponential of logp − old_logp.",
        *("logp - old_logp", "old_logp - logp"),
    ),
    (
        "logp − old_logp is the *log*-ratio. Take its exponential.",
        *("r = (logp - old_logp).exp()", "r = logp - old_logp"),
    ),
    (
        "`logp` and `old_logp` are logarithms, whose quotient means nothing. The ratio "
        "of the probabilities is the exponential of their difference.",
        *("r = (logp - old_logp).exp()", "r = logp / old_logp"),
    ),
    (
        "The ratio is near 1, so its bounds are 1 − ε and 1 + ε.",
        *("clamp(1 - epsilon, 1 + epsilon)", "clamp(-epsilon, epsilon)"),
    ),
    (
        "The min is missing: you always clip. A token that went the wrong way gets no "
        "gradient back.",
        *("minimum(r * A, ", "minimum(clipped * A, "),
    ),
    (
        "For Â < 0 you take the larger product, by a max or by a min of the two "
        "ratios. Multiply by Â first, and take the min for both signs.",
        *("r * A, clipped * A)", "r, clipped) * A"),
    ),
    (
        "There is no clip. Compare r Â with the clipped ratio times Â, and take the "
        "smaller.",
        *("clipped * A)", "r * A)"),
    ),
    (
        "Your bounds are the numbers 0.8 and 1.2. Compute them from epsilon.",
        *("1 - epsilon, 1 + epsilon", "0.8, 1.2"),
    ),
    (
        "You take the larger of the two products. The objective is the smaller one.",
        *("minimum", "maximum"),
    ),
    (
        "The bounds are exchanged: it is 1 − low below and 1 + high above.",
        *("1 - low, 1 + high", "1 - high, 1 + low"),
    ),
    (
        "You take the mean over all tokens, so a long response counts more. Average "
        "each response first, and then the responses.",
        *(OF_RESPONSES, OF_TOKENS),
    ),
    (
        "You divide by T, the padded width. A response is divided by the number of its "
        "own tokens, the ones of the mask.",
        *(OF_RESPONSES, "mask / mask.numel()"),
    ),
    (_PADDING, OF_RESPONSES, "1 / mask.numel()"),
    (_SUMMED, OF_RESPONSES, OF_RESPONSES.replace("mask /", "1 /")),
    (
        "Each response has its mean, but you add the responses up. Divide by their "
        "number as well.",
        *(OF_RESPONSES, "mask / mask.sum(1, keepdim=True)"),
    ),
    (
        "You return one number per response. The loss is one number for all of them.",
        *(").sum()", ").sum(1) * len(mask)"),
    ),
    (
        "You add up the tokens of a response. Divide each sum by |o_i|, the number "
        "of its tokens.",
        *(OF_RESPONSES, "mask / len(mask)"),
    ),
    (
        "You average each response first, and then the responses. Here all tokens "
        "weigh the same: divide one sum by the number of all tokens.",
        *(OF_TOKENS, OF_RESPONSES),
    ),
    (
        "You divide by B·T, padding included. The weight is mask / mask.sum().",
        *(OF_TOKENS, "mask / mask.numel()"),
    ),
    (_PADDING, OF_TOKENS, "1 / mask.numel()"),
    (_SUMMED, OF_TOKENS, "1 / mask.sum()"),
    (
        "That is the sum. Divide by the number of response tokens, mask.sum().",
        *(OF_TOKENS, "mask"),
    ),
)
"""A reply, text of a right loss, and the text that a wrong one has in its place."""


def usual(solution: Callable) -> dict[str, dict[str, str] | Callable]:
    """The mistakes that can be made in this solution, for `Exercise.mistakes`."""
    code = inspect.getsource(solution)
    edits = {says: {old: new} for says, old, new in MISTAKES if old in code}
    return edits | from_the_left(solution)


def from_the_left(solution: Callable) -> dict[str, Callable]:
    """The mistake of a loop over a row's first tokens, as many as its mask has ones."""
    place = [*inspect.signature(solution).parameters].index("mask")

    def counted(*case):
        mask = case[place].sort(-1, descending=True).values
        return solution(*case[:place], mask, *case[place + 1 :])

    return {FROM_THE_LEFT: counted}


def batch(scale: float = 0.4, seed: int = 5) -> tuple[torch.Tensor, ...]:
    """log π and log π_old of four responses, their advantages, and the mask.

    The log-ratios are of size `scale`. There is padding, and a hole as between two
    turns of a dialogue; what stands in either must not count.
    """
    dice = torch.Generator().manual_seed(seed)
    z = torch.randn(4, 5, generator=dice, dtype=torch.float64) * scale
    old_logp = -torch.rand(4, 5, generator=dice, dtype=torch.float64) - 0.2
    mask = torch.ones(4, 5, dtype=torch.float64)
    mask[1, 3:] = mask[2, 1] = mask[3, 2:] = 0
    return old_logp + z, old_logp, torch.tensor([1.2, -0.7, -0.4, 0.9]).double(), mask
