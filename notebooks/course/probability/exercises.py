"""Exercises of chapter 16: DPPO's loss, bounds on a probability, masks, a pull."""

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual


def dppo_loss(logp, mu_logp, advantages, mask, delta=0.2, cap=20.0):
    """−(1/Σ|o|) Σ M sg[min(r, cap)] Â log π, M = 0 where π moved on by more than δ."""
    A = advantages[:, None].expand_as(logp)
    pi, mu = logp.exp(), mu_logp.exp()
    moved = (pi - mu).detach()
    kept = torch.where(A > 0, moved <= delta, moved >= -delta)
    r = (pi / mu).detach().clamp(max=cap)
    w = mask / mask.sum()
    return -(w * kept * r * A * logp).sum()


def ratio_bounds(mu, delta):
    """16.4: |π − μ| ≤ δ is |r − 1| ≤ δ/μ, and no probability leaves [0, 1]."""
    return max(0.0, 1 - delta / mu), min(1 / mu, 1 + delta / mu)


TYPED = (
    Exercise(
        "16.dppo_loss",
        solution=dppo_loss,
        cases=((*batch(), 0.1, 1.05), (*batch(1.0), 0.2, 1.3), batch()),
        gradient=True,
        mistakes={
            **usual(dppo_loss),
            "δ bounds π − μ. You bounded the ratio.": {"(pi - mu)": "(pi / mu - 1)"},
            "A token that comes back is kept: look at the sign of Â.": {
                "torch.where(A > 0, moved <= delta, moved >= -delta)": (
                    "moved.abs() <= delta"
                )
            },
            "You exchanged the two sides. Drop a good token only if it has risen.": {
                "A > 0": "A < 0"
            },
            "That keeps what has moved too far, and drops the rest.": {
                "= torch": "= ~torch"
            },
            "DPPO's mask M is missing: you keep every token.": {"kept * r": "r"},
            "The importance ratio is missing: it multiplies log π, as a number.": {
                "kept * r *": "kept *"
            },
            "You divide by the number of kept tokens. Dropped ones count as well: the "
            "divisor is Σ|o|.": {
                "w = mask / mask.sum()": "w = mask / (mask * kept).sum()"
            },
            "The ratio is not capped.": {".clamp(max=cap)": ""},
            "A gradient went through the ratio as well as through log π: detach it.": {
                ".detach().clamp": ".clamp"
            },
            "That is the capped ratio without log π: beyond the cap it has no "
            "gradient.": {".detach().clamp": ".clamp", "A * logp": "A"},
        },
    ),
)

EXERCISES = (
    Exercise(
        "16.1",
        solution=0.0,
        why="0.7 lies outside (0.8, 1.2), and GLM-5 ignores the direction in which "
        "the token moves. GRPO and DPPO keep a good token that has become rarer.",
        choices=(0.7, 0.8, 1.0, 0.0),
        mistakes={
            "GRPO and DPPO keep it, because it comes back. Does GLM-5 look at the "
            "direction in which a token moves?": 0.7,
            "GLM-5 does not hold the ratio at its bound: outside, f is 0.": 0.8,
            "That is the gradient at r = 1.": 1.0,
        },
    ),
    Exercise(
        "16.2",
        solution="nearly all",
        why="Later characters follow almost by themselves, so their probability can "
        "hardly move by a tenth. The fork's does, because there the policy changes its "
        "mind.",
        choices=("5 %", "half", "nearly all"),
        mistakes={
            "That would be so if the mask dropped tokens at random.": "5 %",
            "It is more than that. Which other token of an answer has room to gain a "
            "tenth?": "half",
        },
    ),
    Exercise(
        "16.3",
        solution=-2.0,
        why="The gradient vanishes where Â = τ z, at z = Â/τ = −1/0.5.",
        mistakes={
            "That is where the line of Â = +1 crosses 0.": 2.0,
            "At that point z is 0, and the coefficient is Â itself.": 0.0,
            "The line crosses 0 at z = Â/τ, and τ is 0.5.": -1.0,
            "You multiplied by τ. The two terms are equal where Â = τ z.": -0.5,
        },
    ),
    Exercise(
        "16.4",
        solution=ratio_bounds,
        cases=((0.5, 0.2), (0.001, 0.2), (0.9, 0.2), (0.1, 0.2)),
        mistakes={
            "That is PPO's interval: δ bounds the probability, and the ratio's bound "
            "depends on μ.": lambda mu, delta: (1 - delta, 1 + delta),
            "You multiply by μ. |π − μ| ≤ δ, divided by μ, is |r − 1| ≤ δ/μ.": (
                lambda mu, delta: (1 - delta * mu, 1 + delta * mu)
            ),
            "That is right where neither end leaves [0, 1]. A probability is at least "
            "0 and at most 1.": lambda mu, delta: (1 - delta / mu, 1 + delta / mu),
            "Those are the probabilities. Divide them by μ.": lambda mu, delta: (
                max(0.0, mu - delta),
                min(1.0, mu + delta),
            ),
            "The lower end is right. No probability is above 1, so no ratio is above "
            "1/μ.": lambda mu, delta: (max(0.0, 1 - delta / mu), 1 + delta / mu),
            "The upper end is right. No probability is below 0, so no ratio is "
            "either.": lambda mu, delta: (1 - delta / mu, min(1 / mu, 1 + delta / mu)),
            "The other way round: first the lowest ratio, then the highest.": (
                lambda mu, delta: ratio_bounds(mu, delta)[::-1]
            ),
        },
    ),
    Exercise(
        "16.5",
        lines=10,
        solution="6b",
        why="With one update the learner is π_old, so what is compared is a policy "
        "with itself. The mask has to compare with the sampler: `(logp.exp() - "
        "mu.exp()).detach()`.",
        mistakes={
            "One update per rollout is right here: the sampler is late, so tokens have "
            "moved before it.": "10a",
            "Line 3 is harmless by itself. Who uses it?": "3b",
            "The cap acts on the weight in line 9 and not on the mask.": "8c",
            "Line 7 is right: one side for each sign of Â.": "7d",
        },
    ),
)
