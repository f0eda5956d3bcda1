"""Solutions to the exercises of chapter 17."""


def advantages(logp, teacher_logp, mask):
    """17.1: what the teacher finds more likely than the student goes up. Constants, and
    0 outside the mask."""
    return (teacher_logp - logp).detach() * mask


TAUGHT = 0.0
"""17.2: log π_T − log π is 0 for every token, whatever the reward says."""

SUMS = 0.7
"""17.3: 0.71, 0.74 and 0.78. At the first character one teacher asks for a digit and
the other for #, and the mean of their logarithms prefers neither."""

LINE = 5
"""17.4: the sum over the vocabulary is a function of the prefix. Whichever token was
drawn gets the same number, which is a baseline. Line 5 should gather both log-probs at
the sampled token; `(own - other).gather(-1, tokens[..., None])[..., 0]`."""
