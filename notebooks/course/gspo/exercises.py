"""Chapter 05: the two losses that are typed, and the exercises."""

import math

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, from_the_left

# The losses of "Type it"


def gspo_loss(logp, old_logp, advantages, mask, low=3e-4, high=4e-4):
    """One ratio per response, its clip, and the mean over responses."""
    z = (logp - old_logp) * mask
    s = (z.sum(-1) / mask.sum(-1)).exp()  # (B,)
    inside = s.clamp(1 - low, 1 + high)
    return -torch.minimum(s * advantages, inside * advantages).mean()


def gspo_token_loss(logp, old_logp, advantages, mask, low=3e-4, high=4e-4):
    """The value of s for every token, with the gradient of the token alone."""
    s = _ratio(logp, old_logp, mask).detach() * (logp - logp.detach()).exp()
    return -_per_response(_clipped(s, advantages, low, high), mask)


def _ratio(logp, old_logp, mask):
    """s, of shape (B, 1)."""
    total = ((logp - old_logp) * mask).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True)).exp()


def _clipped(ratio, advantages, low, high):
    inside = ratio.clamp(1 - low, 1 + high)
    return torch.minimum(ratio * advantages, inside * advantages)


def _per_response(each, mask):
    """The mean over a response's tokens, then over responses."""
    return ((each * mask).sum(-1) / mask.sum(-1)).mean()


_A_TOKENS = torch.tensor(
    [
        [1.5, -0.5, 1, 0.3, -1],
        [-1, 0.4, -2, 1, 1],
        [0.7, 3, -0.6, 1, 1],
        [2, -1, 1, 1, 1],
    ],
    dtype=torch.float64,
)


def _cases(advantages):
    """Open, clipped for some, and clipped for most; the bounds differ."""
    shapes = ((0.01, 0.2, 0.4), (0.3, 0.03, 0.08), (0.3, 0.1, 0.02))
    return tuple(
        (logp, old_logp, advantages, mask, low, high)
        for scale, low, high in shapes
        for logp, old_logp, _, mask in [batch(scale)]
    )


TYPED = (
    Exercise(
        "05.gspo_loss",
        solution=gspo_loss,
        cases=_cases(batch()[2]),
        gradient=True,
        mistakes={
            "The root is missing: divide the sum of log-ratios by |o| before exp.": {
                " / mask.sum(-1)": ""
            },
            "You divide by the padded width; |o| counts the ones of the mask.": {
                "z.sum(-1) / mask.sum(-1)": "z.mean(-1)"
            },
            **from_the_left(gspo_loss),
            "Padding takes part in the sum: multiply the log-ratios by the mask.": {
                " * mask": ""
            },
            "Padding takes part in the mean: multiply the log-ratios by the mask, and "
            "divide by the ones of the mask.": {
                " * mask": "",
                "z.sum(-1) / mask.sum(-1)": "z.mean(-1)",
            },
            "`low` and `high` are distances from 1: clamp(1 - low, 1 + high).": {
                "1 - low, 1 + high": "low, high"
            },
            "That is the arithmetic mean of the ratios: average the logs, then exp.": {
                "(logp - old_logp) *": "(logp - old_logp).exp() *",
                "mask.sum(-1)).exp()": "mask.sum(-1))",
            },
            "exp is missing: that is log s.": {".exp()": ""},
            "One ratio for the whole batch: each response has its own (dim=-1).": {
                "(z.sum(-1) / mask.sum(-1))": "(z.sum() / mask.sum()).expand(len(z))"
            },
            "The value is right, but you detached s, so nothing has a gradient.": {
                ".exp()": ".exp().detach()"
            },
            "The sign: an optimiser minimises, so the loss is −J.": {"-torch": "torch"},
            "The min is missing. Without it, responses that moved against their "
            "advantage lose their gradient as well.": {"(s * adv": "(inside * adv"},
            "You took the larger of the two: the objective is their minimum.": {
                "minimum": "maximum"
            },
            "The clip is missing.": {"inside * adv": "s * adv"},
            "s is (B, 1) and the advantages are (B,), so their product is (B, B): each "
            "ratio meets the advantages of all responses.": {
                ".exp()": ".exp()[:, None]"
            },
            "`low` and `high` are exchanged.": {
                "low=3e-4, high=4e-4": "high=3e-4, low=4e-4"
            },
            "The mean over responses is missing: you return their sum.": {
                ".mean()": ".sum()"
            },
            "A mean over tokens counts a response as often as it has tokens. Every "
            "response counts once.": {
                "-torch": "-(torch",
                ".mean()": " * mask.sum(-1)).sum() / mask.sum()",
            },
            "That is GRPO, with a ratio for every token. GSPO has one per response.": (
                lambda logp, old_logp, a, mask, low, high: (
                    -_per_response(
                        _clipped((logp - old_logp).exp(), a[:, None], low, high), mask
                    )
                )
            ),
        },
    ),
    Exercise(
        "05.gspo_token_loss",
        solution=gspo_token_loss,
        cases=_cases(_A_TOKENS),
        gradient=True,
        mistakes={
            **from_the_left(gspo_token_loss),
            "s is not detached, so each token pushes all tokens, and itself once "
            "more.": {"mask).detach()": "mask)"},
            "That is GSPO again: without stop-gradient each token pushes all tokens.": {
                ".detach() * (logp - logp.detach()).exp()": ""
            },
            "The value is right, but nothing has a gradient: multiply sg[s] by "
            "π_θ / sg[π_θ], whose gradient is that of the token.": {
                " * (logp - logp.detach()).exp()": ""
            },
            "The fraction is π_θ over itself, detached, and not over π_old: its value "
            "is 1.": {"logp.detach()": "old_logp"},
            "You multiply by π_θ, which changes the value. Divide it by itself, "
            "detached: (logp - logp.detach()).exp().": {
                "(logp - logp.detach())": "logp"
            },
            "That is GRPO, with a ratio for every token. The value is s for all of "
            "them.": {"_ratio(logp, old_logp, mask)": "(logp - old_logp).exp()"},
            "You average a response's advantages: each token keeps its own.": {
                "s, advantages": (
                    "s, ((advantages * mask).sum(-1) / mask.sum(-1))[:, None]"
                )
            },
            "The root is missing: divide the sum of log-ratios by |o| before exp.": {
                "_ratio(logp, old_logp, mask)": (
                    "((logp - old_logp) * mask).sum(-1)[:, None].exp()"
                )
            },
            "Padding takes part in the ratio: multiply the log-ratios by the mask.": {
                "_ratio(logp, old_logp, mask)": (
                    "((logp - old_logp).sum(-1) / mask.sum(-1)).exp()[:, None]"
                )
            },
            "Padding takes part in the mean over tokens: multiply by the mask.": {
                "_per_response": "(lambda x, mask: (x.sum(-1) / mask.sum(-1)).mean())"
            },
            "You divide by the padded width; |o| counts the ones of the mask.": {
                "_per_response": "(lambda x, mask: (x * mask).mean())"
            },
            "A mean over all tokens counts a response as often as it has tokens. Take "
            "the mean of each response first.": {
                "_per_response": "(lambda x, mask: (x * mask).sum() / mask.sum())"
            },
            "The mean over a response's tokens is missing.": {
                "_per_response": "(lambda x, mask: (x * mask).sum(-1).mean())"
            },
            "The sign: an optimiser minimises, so the loss is −J.": {"-_per": "_per"},
            "`low` and `high` are exchanged.": {
                "low=3e-4, high=4e-4": "high=3e-4, low=4e-4"
            },
            "The min is missing. Without it, tokens of a response that moved against "
            "their advantage lose their gradient as well.": {
                "_clipped(s, advantages, low, high)": (
                    "s.clamp(1 - low, 1 + high) * advantages"
                )
            },
        },
    ),
)

# The exercises


def room_for_one_token(length: int, epsilon: float) -> float:
    """s = exp(z/|o|) reaches 1 + ε at z = |o| log(1 + ε); r = e^z."""
    return math.exp(length * math.log(1 + epsilon))


def mean_of_s(old: list[float], new: list[float], n: int) -> float:
    """E[Π r_t^(1/n)] = (E[r^(1/n)])^n, because the tokens are independent."""
    one_token = sum(p * (q / p) ** (1 / n) for p, q in zip(old, new, strict=True))
    return one_token**n


def _kl(p, q):
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


EXERCISES = (
    Exercise(
        "5.1",
        solution=0,
        why="log s = (7 · 0.262 − 2.996) / 8 = −0.145. So s = 0.865 < 1, and with Â > "
        "0 the gate is open.",
        mistakes={
            "That is GRPO's count, token by token. GSPO averages the logs first.": 7,
            "s is far from 1, but below it: a good response is stopped above 1 + ε "
            "only.": 8,
            "The wild token has fallen although Â > 0, and no clip stops that. "
            "Besides, GSPO never stops a single token.": 1,
        },
    ),
    Exercise(
        "5.2",
        solution=room_for_one_token,
        cases=((30, 0.04), (4, 0.2), (1000, 4e-4)),
        mistakes={
            "You return the log-ratio z; the question asks for the ratio r = e^z.": (
                lambda length, epsilon: length * math.log(1 + epsilon)
            ),
            "That is the room of a one-token response. Here log s = z / |o|.": (
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
        "5.3",
        solution=mean_of_s,
        cases=(
            ([0.5, 0.5], [0.6, 0.4], 1),
            ([0.5, 0.5], [0.6, 0.4], 4),
            ([0.7, 0.2, 0.1], [0.5, 0.2, 0.3], 3),
            ([0.9, 0.1], [0.6, 0.4], 64),
        ),
        mistakes={
            "That is the mean of one token's factor r^(1/n). A response has n of them, "
            "and they are independent.": {"one_token**n": "one_token"},
            "You average under π_θ, but the responses were sampled from π_old.": {
                "p * (q / p)": "q * (q / p)"
            },
            "The ratio is upside down: it is π_θ / π_old.": {"q / p": "p / q"},
            "That is the mean of the product of the ratios, which is always 1. The "
            "root is missing.": lambda old, new, n: 1.0,
            "That is the limit for long responses. The question asks for the exact "
            "mean for n tokens.": lambda old, new, n: math.exp(-_kl(old, new)),
            "That is a limit for long responses, and with the KL in the wrong "
            "direction: the samples come from π_old.": (
                lambda old, new, n: math.exp(-_kl(new, old))
            ),
        },
    ),
    Exercise(
        "5.4",
        solution="second",
        why="All six tokens share s = 1.1, which is above 1.04. There the min stops "
        "only the tokens with Â > 0.",
        choices=("all", "none", "first", "second"),
        mistakes={
            "s = 1.1 is above 1.04, and the first turn's advantage pushes it further "
            "up.": "all",
            "The value s is shared, but the min looks at the sign of each token's own "
            "advantage: above the range it stops Â > 0 only.": "none",
            "The other way round: above 1 + ε the min stops tokens that should become "
            "still likelier, and lets corrections through.": "first",
        },
    ),
    Exercise(
        "5.5",
        lines=9,
        solution="7b",
        why="|o| counts the response's tokens. With the prompt's among them the mean "
        "runs over log-ratios of 0, so a longer prompt brings s nearer to 1.",
        mistakes={
            "Line 6 is right: it removes the prompt's log-ratios. But where are its "
            "tokens counted all the same?": "6b",
            "Line 5 is right: the prompt's log-probs are computed, and removed in "
            "line 6. Where are they counted?": "5b",
            "Line 8 is right: GSPO clips one ratio per response. Why does that ratio "
            "depend on the prompt?": "8a",
            "Line 6 is right: old_logp was stored when the response was sampled.": "6d",
            "Line 3 is right: the advantages belong to the rollout, which is the same "
            "in all mini-batches.": "3c",
            "The line is right, but GSPO does not clip single tokens. What does the "
            "line count?": "7a",
        },
    ),
    Exercise(
        "5.7",
        solution="nowhere",
        why="Each reward equals the group's mean, so every advantage is 0: the group "
        "is dead.",
        choices=("up", "down", "nowhere"),
        mistakes={
            "Rewards count only in comparison with the group's mean, and here each "
            "equals it.": "up",
            "Nothing is punished either: each reward equals the group's mean, so every "
            "advantage is 0.": "down",
        },
    ),
    Exercise(
        "5.8",
        solution="passes",
        why="It has moved the wrong way, and the min lets the correction through. A "
        "bad token is stopped only below 1 − ε.",
        choices=("stopped", "halved", "passes"),
        mistakes={
            "A clip without the min would stop it. But this token has become likelier "
            "although it is bad, and the min lets the correction through.": "stopped",
            "PPO's gate is a switch, open or closed. Here the token has to come back, "
            "so which is it?": "halved",
        },
    ),
    Exercise(
        "5.9",
        solution="nowhere",
        why="At the first update the policy still is π_old, so every ratio is 1.",
        choices=("nowhere", "at rare tokens", "in long answers"),
        mistakes={
            "A rare token's ratio can grow fastest, but not before the first update: "
            "every ratio is still 1.": "at rare tokens",
            "The length does not matter: before the first update every ratio is still "
            "1.": "in long answers",
        },
    ),
)
