"""Misreadings of what every method shares: chapter 01."""

from course.kit.misreading import Misreading


def mask_through_eos(tokens, eos):
    """1 on tokens with no EOS *before* them, so that the EOS itself is learned."""
    ends = (tokens == eos).long()
    return (ends.cumsum(-1) - ends == 0).float()


MISREADINGS = [
    Misreading(
        "mask_without_eos",
        "EOS is not text, so the mask ends before it.",
        "Stopping is an action: without EOS in the mask the policy never learns when.",
        {" - ends": ""},
        mask_through_eos,
    ),
]
