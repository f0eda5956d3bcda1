"""Exercises of chapter 05: sequence ratio, its clip, its scale, token advantages."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl.algorithms import ALGORITHMS, Objective, Tokens


def sequence_ratio(z: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The exponential of the mean log-ratio over the response's own tokens."""
    return ((z * mask).sum(-1) / mask.sum(-1)).exp()


def is_clipped(
    s: list[float], advantages: list[float], low: float, high: float
) -> list[bool]:
    """A clip bites where s has gone too far in the direction that Â asked for."""
    return [
        (a > 0 and x > 1 + high) or (a < 0 and x < 1 - low)
        for x, a in zip(s, advantages, strict=True)
    ]


def room_for_one_token(length: int, epsilon: float) -> float:
    """s = exp(z/|o|) reaches 1 + ε at z = |o| log(1 + ε); r = e^z."""
    return math.exp(length * math.log(1 + epsilon))


def pushes(z: list[float], advantages: list[float]) -> tuple[list[float], list[float]]:
    """GSPO: s · mean Â / |o| at every token. GSPO-token: s · Â_t / |o|."""
    n = len(z)
    s = math.exp(sum(z) / n)
    mean = sum(advantages) / n
    return [s * mean / n] * n, [s * a / n for a in advantages]


_Z = torch.tensor([[0.3, -0.1, 0.2, 0.0], [0.5, 0.1, 0.0, 0.0], [-0.4, 0.0, 0.0, 0.0]])
_MASK = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
_ONE = torch.tensor([[0.2, 0.6]]), torch.tensor([[1.0, 1.0]])

_S = [1.5, 1.5, 0.6, 0.6, 1.05, 0.95, 1.5, 0.6, 0.9, 1.2]
_A = [1.0, -1.0, 1.0, -1.0, 0.5, -0.5, 0.0, 0.0, -2.0, 1.0]


def _each(rule):
    """What `rule(s, Â, lower bound, upper bound)` says of each response."""
    return lambda s, advantages, low, high: [
        rule(x, a, 1 - low, 1 + high) for x, a in zip(s, advantages, strict=True)
    ]


def _fresh(t: Tokens) -> Objective:
    """GSPO's objective, if π_old were read anew at every update: s is always 1."""
    return ALGORITHMS["gspo"].objective(t._replace(old_logp=t.logp.detach()))


BROKEN = replace(ALGORITHMS["gspo"], objective=_fresh)
"""The run of exercise 5.7, for `train`."""


def _by_rows(z, mask):
    return torch.stack([x[m > 0].mean().exp() for x, m in zip(z, mask, strict=True)])


def _by_signs(s, advantages, low, high):
    """The clip as min(s Â, clip(s) Â): a gradient is lost where the second is less."""
    inside = [min(max(x, 1 - low), 1 + high) for x in s]
    return [a * c < a * x for x, c, a in zip(s, inside, advantages, strict=True)]


def _by_autograd(z, advantages):
    """Both methods' losses, unclipped, through autograd."""
    a = torch.tensor(advantages, dtype=torch.float64)
    pushes = []
    for per_token in (False, True):
        logp = torch.tensor(z, dtype=torch.float64).requires_grad_()
        s = logp.mean().exp()
        s = s.detach() * (logp - logp.detach()).exp() if per_token else s
        pushes.append(torch.autograd.grad((s * a).mean(), logp)[0].tolist())
    return tuple(pushes)


EXERCISES = (
    Exercise(
        "5.1",
        minutes=5,
        solution=sequence_ratio,
        also=(_by_rows,),
        cases=((_Z, _MASK), _ONE),
        mistakes={
            "The root is missing: divide the sum of log-ratios by |o| before exp.": (
                lambda z, mask: (z * mask).sum(-1).exp()
            ),
            "You divide by the padded width; |o| counts the mask's ones.": (
                lambda z, mask: (z * mask).mean(-1).exp()
            ),
            "That is log s: exp is missing.": (
                lambda z, mask: (z * mask).sum(-1) / mask.sum(-1)
            ),
            "That is the arithmetic mean of the ratios: average the logs, then exp.": (
                lambda z, mask: (z.exp() * mask).sum(-1) / mask.sum(-1)
            ),
            "One ratio for the whole batch: each response has its own (dim=-1).": (
                lambda z, mask: ((z * mask).sum() / mask.sum()).exp()
            ),
            "You took the square root of the product; the root is the |o|-th.": (
                lambda z, mask: ((z * mask).sum(-1) / 2).exp()
            ),
        },
    ),
    Exercise(
        "5.2",
        minutes=10,
        solution=is_clipped,
        also=(_by_signs,),
        cases=((_S, _A, 0.2, 0.3), (_S, _A, 0.3, 0.2), (_S, _A, 0.2, 0.6)),
        mistakes={
            "You count every s outside the range. The clip is one-sided: what has "
            "moved against its advantage keeps its gradient.": _each(
                lambda x, a, low, high: x > high or x < low
            ),
            "The sides are swapped: with Â > 0 the upper bound stops it.": _each(
                lambda x, a, low, high: (a < 0 and x > high) or (a > 0 and x < low)
            ),
            "ε_low and ε_high are swapped.": (
                lambda s, a, low, high: is_clipped(s, a, high, low)
            ),
            "You clip good responses only; bad ones stop at 1 − ε_low.": _each(
                lambda x, a, low, high: a > 0 and x > high
            ),
            "Â = 0 has no gradient to lose: neither bound counts it.": _each(
                lambda x, a, low, high: (a >= 0 and x > high) or (a <= 0 and x < low)
            ),
            "You treat Â = 0 as bad. It has no gradient to lose: the lower bound "
            "stops Â < 0 only.": _each(
                lambda x, a, low, high: (a > 0 and x > high) or (a <= 0 and x < low)
            ),
            "You treat Â = 0 as good. It has no gradient to lose: the upper bound "
            "stops Â > 0 only.": _each(
                lambda x, a, low, high: (a >= 0 and x > high) or (a < 0 and x < low)
            ),
            "The bounds are 1 − ε_low and 1 + ε_high, not the ε themselves.": (
                lambda s, a, low, high: is_clipped(s, a, 1 - low, high - 1)
            ),
        },
    ),
    Exercise(
        "5.3",
        minutes=10,
        solution=room_for_one_token,
        also=(lambda length, epsilon: (1 + epsilon) ** length,),
        cases=((30, 0.04), (4, 0.2), (1000, 4e-4)),
        mistakes={
            "You return the log-ratio z; asked is the ratio r = e^z.": (
                lambda length, epsilon: length * math.log(1 + epsilon)
            ),
            "That is the room of a response of one token: log s = z / |o|.": (
                lambda length, epsilon: 1 + epsilon
            ),
            "1 + |o| ε is only the beginning of (1 + ε)^|o|.": (
                lambda length, epsilon: 1 + length * epsilon
            ),
            "The other tokens stand still: the mean has |o| terms, not √|o|.": (
                lambda length, epsilon: (1 + epsilon) ** math.sqrt(length)
            ),
            "(1 + ε)^|o| is right; ε|o| in the exponent is only close to it.": (
                lambda length, epsilon: math.exp(length * epsilon)
            ),
            "You took the |o|-th root once more: r must be larger than s.": (
                lambda length, epsilon: (1 + epsilon) ** (1 / length)
            ),
        },
    ),
    Exercise(
        "5.4",
        minutes=15,
        solution=pushes,
        also=(_by_autograd,),
        cases=(
            ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]),
            ([0.3, -0.1, 0.4], [1.0, 0.5, -0.9]),
        ),
        mistakes={
            "You swapped the two: GSPO averages the advantages.": (
                lambda z, a: pushes(z, a)[::-1]
            ),
            "The mean over tokens is missing: both have a 1/|o|.": (
                lambda z, a: tuple([len(z) * x for x in p] for p in pushes(z, a))
            ),
            "The ratio is s_i, the same at every token; you used each token's r.": (
                lambda z, a: (
                    [math.exp(x) * sum(a) / len(a) / len(z) for x in z],
                    [math.exp(x) * b / len(z) for x, b in zip(z, a, strict=True)],
                )
            ),
            "Those are GRPO's pushes: in GSPO one ratio serves all tokens.": (
                lambda z, a: (
                    ([math.exp(x) * b / len(z) for x, b in zip(z, a, strict=True)],) * 2
                )
            ),
            "GSPO-token does not average: token t is pushed by its own Â.": (
                lambda z, a: (pushes(z, a)[0],) * 2
            ),
            "GSPO has one ratio for all tokens, so it cannot tell their Â apart.": (
                lambda z, a: (pushes(z, a)[1],) * 2
            ),
            "The ratio is missing: s is 1 only at θ_old.": (
                lambda z, a: pushes([0.0 for _ in z], a)
            ),
        },
    ),
    Exercise(
        "5.5",
        minutes=5,
        solution=0,
        why="log s = (7 · 0.262 − 2.996) / 8 = −0.145: s = 0.865 < 1, and Â > 0, so it "
        "is open.",
        mistakes={
            "That is GRPO's count, token by token. GSPO asks the mean of the logs.": 7,
            "s is far from 1, but below it: a good response is stopped above 1 + ε "
            "only.": 8,
            "The wild token has fallen, against its Â > 0: no clip stops that; and "
            "GSPO never stops a single token.": 1,
        },
    ),
    Exercise(
        "5.6",
        minutes=5,
        solution="none",
        why="At 64 tokens: product 1.000 ± 3.4, one token 1.000 ± 0.2, s 0.980 ± "
        "0.025.",
        choices=("product", "token", "mean", "none"),
        mistakes={
            "Its mean is 1, but its standard deviation at 64 tokens is above 3.": (
                "product"
            ),
            "Its mean is 1, but its standard deviation is 0.2 at every length.": (
                "token"
            ),
            "It is quiet, but its mean at 64 tokens is 0.98: read the left panel.": (
                "mean"
            ),
        },
    ),
    Exercise(
        "5.7",
        minutes=15,
        solution=6,
        why="π_old is read anew at every update, so s is 1 and the clip never acts.",
        mistakes={
            "Line 1 is right: it only counts the rollouts.": 1,
            "Line 2 is right: the policy as it is now samples the rollout.": 2,
            "Line 3 is right: these are GRPO's advantages, group by group.": 3,
            "Line 4 is right: four mini-batches, so that three of the four updates "
            "see a policy that has moved.": 4,
            "Line 5 is right: the log-probs of the policy as it is now.": 5,
            "Line 7 is right, if old_logp is that of the policy that sampled.": 7,
            "Line 8 is right: the geometric mean over the response's own tokens.": 8,
            "Line 9 is right: the paper's bounds, and the min. Ask why it never "
            "acts.": 9,
            "Line 10 is right: the mean over responses, to be maximised.": 10,
        },
    ),
)
