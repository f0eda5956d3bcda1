"""Misreadings of CISPO: chapter 07.

All take log-probs, those of π_old and advantages, (T,), and return a mean to maximise.
"""

from course.kit.misreading import Misreading

CAP = 5.0
LOW = 0.2


def cispo(logp, old_logp, advantages, cap=CAP):
    """sg[min(r, cap)] Â log π: no lower bound (M1, Eq. 4 and 5)."""
    capped = (logp - old_logp).exp().detach().clamp(max=cap)
    return (capped * advantages * logp).mean()


MISREADINGS = [
    Misreading(
        "cispo_clips_both_sides",
        "CISPO clips the ratio on both sides, to [1 − ε_low, 1 + ε_high].",
        "Eq. 5 is printed with two bounds, but M1 sets no lower one: a floor of 0.8 "
        "makes tokens that have become unlikely push harder than their ratio says.",
        {"max=cap": "1 - LOW, cap"},
        cispo,
    ),
    Misreading(
        "cispo_cap_is_an_offset",
        "A bound of 5 means: cap the ratio at 1 + 5.",
        "In TRL, ms-swift and here the number is the cap itself. verl, NeMo and slime "
        "do add 1: the same cap is 4 there.",
        {"max=cap": "max=1 + cap"},
        cispo,
    ),
    Misreading(
        "cispo_without_stop_gradient",
        "J = min(r, cap) Â log π, differentiated as it stands.",
        "The capped ratio is a constant. With a gradient through it the coefficient is "
        "r (1 + log π): a good token below 1/e is pushed *down*, a rare one hardest.",
        {".detach()": ""},
        cispo,
    ),
]
