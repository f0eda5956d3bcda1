"""Exercises of chapter 07: the cap, the mask, the stop-gradient, the two bounds."""

from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl.algorithms import ALGORITHMS, Objective, Tokens
from refimpl.importance import ratio


def capped_ratios(ratios, cap):
    """min(r, cap) for every token: the sign of Â does not matter, and no floor."""
    return ratios.clamp(max=cap)


def ppo_mask(ratios, advantages, epsilon_low, epsilon_high):
    """0 where Â has already moved r past its bound, else 1 (M1, Eq. 7)."""
    risen = (advantages > 0) & (ratios > 1 + epsilon_high)
    fallen = (advantages < 0) & (ratios < 1 - epsilon_low)
    return (~(risen | fallen)).float()


def cispo_gradient(logp, old_logp, advantages, cap):
    """∇ of the mean of sg[min(r, cap)] Â log π with respect to log π, by autograd."""
    leaf = logp.clone().requires_grad_()
    capped = torch.exp(leaf - old_logp).detach().clamp(max=cap)
    objective = (capped * advantages * leaf).mean()
    return torch.autograd.grad(objective, leaf)[0]


_RATIOS = torch.tensor([0.3, 0.9, 1.0, 1.25, 2.0, 7.0])
_MASK_CASES = (
    (torch.tensor([0.5, 0.5, 1.5, 1.5]), torch.tensor([1.0, -1, 1, -1]), 0.2, 0.28),
    (torch.tensor([0.85, 1.25, 1.25, 0.6]), torch.tensor([-1.0, 1, -1, -2]), 0.2, 0.2),
    (torch.tensor([0.75, 1.29, 1.0]), torch.tensor([-0.5, 0.5, 0.0]), 0.3, 0.28),
)
_OLD = torch.tensor([-3.0, -1.0, -2.5, -0.2])
_LOGP = torch.tensor([-1.0, -1.2, -2.5, -0.9])
_VALUES = torch.tensor([1.0, -0.5, 2.0, -1.0])


def _kept(inside):
    return lambda r, a, low, high: inside(r, a, low, high).float()


def _with(coefficient):
    """Â times `coefficient(r, log π, cap)` over T, the gradient written out."""

    def gradient(logp, old_logp, advantages, cap):
        r = (logp - old_logp).exp()
        return coefficient(r, logp, cap) * advantages / len(logp)

    return gradient


def _mask_by_minimum(ratios, advantages, epsilon_low, epsilon_high):
    """1 where min(r Â, clip(r) Â) is the first of the two."""
    inside = ratios.clamp(1 - epsilon_low, 1 + epsilon_high)
    return (ratios * advantages <= inside * advantages).float()


def _detached_elsewhere(t: Tokens) -> Objective:
    """The gradient goes through the ratio, and log π < 0 is a constant factor."""
    capped = ratio(t.z).clamp(max=5.0)
    return Objective(capped * t.advantages * t.logp.detach())


BROKEN = replace(ALGORITHMS["cispo"], objective=_detached_elsewhere)
"""The run of exercise 7.7."""


_CAP_OF_ONE = {
    "The forks are not silenced, so they go on learning at every turn.": (
        "like DAPO or below"
    ),
    "They are pushed with 1 and no longer with up to 5: that must cost something.": (
        "like CISPO or above"
    ),
    "A number, or another word? Answer with one of the three sentences.": "above",
}

EXERCISES = (
    Exercise(
        "7.1",
        minutes=5,
        solution=capped_ratios,
        also=(lambda r, cap: torch.minimum(r, torch.full_like(r, cap)),),
        cases=((_RATIOS, 5.0), (_RATIOS, 1.28)),
        mistakes={
            "There is no lower bound: a token below 1 keeps its own ratio.": (
                lambda r, cap: r.clamp(0.8, cap)
            ),
            "The cap is the ratio itself here, not 1 + cap.": (
                lambda r, cap: r.clamp(max=1 + cap)
            ),
            "A capped token is not dropped: its coefficient is the cap.": (
                lambda r, cap: r.masked_fill(r > cap, 0)
            ),
            "You left out the importance ratio: only the part above the cap goes.": (
                lambda r, cap: torch.ones_like(r)
            ),
            "You did not cap: 7 is above 5.": lambda r, cap: r,
        },
    ),
    Exercise(
        "7.2",
        minutes=10,
        solution=ppo_mask,
        also=(_mask_by_minimum,),
        cases=_MASK_CASES,
        mistakes={
            "You mask both sides for both signs. A move against Â stays open.": _kept(
                lambda r, a, low, high: (r >= 1 - low) & (r <= 1 + high)
            ),
            "The signs are swapped: Â > 0 stops above, Â < 0 below.": _kept(
                lambda r, a, low, high: (
                    ~(((a < 0) & (r > 1 + high)) | ((a > 0) & (r < 1 - low)))
                )
            ),
            "That marks the tokens that are masked; M is 1 where they are kept.": (
                lambda *case: 1 - ppo_mask(*case)
            ),
            "Bad tokens have a bound too: Â < 0 and r < 1 − ε_low.": _kept(
                lambda r, a, low, high: ~((a > 0) & (r > 1 + high))
            ),
        },
    ),
    Exercise(
        "7.3",
        minutes=15,
        solution=cispo_gradient,
        also=(_with(lambda r, logp, cap: r.clamp(max=cap)),),
        cases=((_LOGP, _OLD, _VALUES, 5.0), (_LOGP, _OLD, _VALUES, 1.5)),
        mistakes={
            "A gradient went through the ratio: detach it before the product.": (
                _with(
                    lambda r, logp, cap: torch.where(
                        r < cap, r * (1 + logp), torch.full_like(r, cap)
                    )
                )
            ),
            "You clipped the surrogate: a capped token must keep its gradient.": (
                _with(lambda r, logp, cap: r.masked_fill(r > cap, 0))
            ),
            "You returned the objective's terms, not its gradient.": (
                _with(lambda r, logp, cap: r.clamp(max=cap) * logp)
            ),
            "Take the mean over the tokens, not the sum.": (
                lambda *case: cispo_gradient(*case) * len(case[0])
            ),
            "That is the gradient of the loss; J is to be maximised.": (
                lambda *case: -cispo_gradient(*case)
            ),
            "The ratio is π_θ/π_old: you turned it round.": (
                lambda logp, old_logp, a, cap: (
                    (old_logp - logp).exp().clamp(max=cap) * a / len(logp)
                )
            ),
        },
    ),
    Exercise(
        "7.4",
        minutes=5,
        solution=7.0,
        why="verl clamps at 1 + clip_ratio_high: 1 + 7 = 8.",
        also=(7,),
        mistakes={
            "verl adds 1: with 8 its cap would be 9.": 8.0,
            "You added 1; verl adds it for you.": 9.0,
            "That is verl's default for PPO; the cap would be 1.2.": 0.2,
        },
    ),
    Exercise(
        "7.5",
        minutes=10,
        solution="between",
        why="A coefficient of 1 is more than DAPO's 0, and less than a ratio of up to "
        "5.",
        choices=("like DAPO or below", "between", "like CISPO or above"),
        mistakes=_CAP_OF_ONE,
    ),
    Exercise(
        "7.6",
        minutes=5,
        solution="DAPO",
        why="A correction has c = r = 3 under DAPO; the cap holds the other two at 2.",
        choices=("DAPO", "CISPO", "CISPO, mask on"),
        mistakes={
            "The cap holds it at 2. Look for a line above, in the right panel.": (
                "CISPO"
            ),
            "The mask keeps this token, and the cap holds it at 2.": "CISPO, mask on",
            "Those two are held at 2 by the cap; the third has none.": "both",
        },
    ),
    Exercise(
        "7.7",
        minutes=15,
        solution=6,
        why="The stop-gradient stands on log π: through r the gradient is r Â log π "
        "∇log π, and log π < 0 turns its sign. It belongs on `capped`.",
        mistakes={
            "Line 1 is right: group-relative advantages.": 1,
            "Line 2 is right: sixteen updates on one rollout.": 2,
            "Line 3 is right: the policy as it is now, with its gradient.": 3,
            "Line 4 is right: π_θ/π_old, from log-probs.": 4,
            "Line 5 is right: a cap, and the stop-gradient may come later. Does it, "
            "and on which factor?": 5,
            "Line 7 is right: the mean over the batch's tokens, to be maximised.": 7,
            "Line 8 is right. Ask what the gradient is that it computes.": 8,
            "Line 9 is right: one step, and the gradients are cleared.": 9,
        },
    ),
)
