"""Misreadings of masks: chapter 16."""

from course.misreadings.base import Misreading


def share_of_tokens(kept, push):
    """How many tokens the mask drops; `kept` is 1 or 0, `push` is |w r Â|."""
    return 1 - kept.mean()


def share_of_push(kept, push):
    """How much of the push the mask takes."""
    return (push * (1 - kept)).sum() / push.sum()


MISREADINGS = [
    Misreading(
        "mask_share_is_gradient_share",
        "The mask drops 2 % of the tokens, so it takes 2 % of the gradient.",
        "It drops those that move, and those are where the gradient goes. Weigh the "
        "dropped tokens by their push, and look at which they are.",
        share_of_tokens,
        share_of_push,
    ),
]
