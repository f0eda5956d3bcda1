"""Exercises of chapter 15: a late sampler, truncation, levels, two corrections."""

from course.kit.exercise import Exercise


def trained_on(pi, mu, cap):
    """15.2: μ · min(π/μ, C), divided by its sum."""
    kept = [min(p, cap * q) for p, q in zip(pi, mu)]
    return [x / sum(kept) for x in kept]


def _masked(pi, mu, cap):
    kept = [p if p <= cap * q else 0.0 for p, q in zip(pi, mu)]
    return [x / (sum(kept) or 1.0) for x in kept]


def _by_weight(pi, mu, cap):
    """The same, from the weight."""
    kept = [q * min(p / q, cap) for p, q in zip(pi, mu)]
    return [x / sum(kept) for x in kept]


EXERCISES = (
    Exercise(
        "15.1",
        minutes=3,
        solution=0.0,
        why="π_old is computed from the weights that make the first update, so "
        "π_θ/π_old is 1 for every token, however old the sampler is.",
        mistakes={
            "That is the share against the sampler. The clip compares with π_old, "
            "which was computed a moment ago.": 0.1,
            "They are far from the sampler's probabilities, but does the clip know "
            "these?": 1.0,
            "That is its ε. How far is a policy from itself?": 0.2,
        },
    ),
    Exercise(
        "15.2",
        minutes=10,
        solution=trained_on,
        also=(_by_weight,),
        cases=(
            ([0.6, 0.3, 0.1], [0.2, 0.4, 0.4], 2.0),
            ([0.5, 0.5], [0.25, 0.75], 1.5),
            ([0.9, 0.1], [0.3, 0.7], 1.0),
        ),
        mistakes={
            "That masks: a token above the cap is gone. Truncation holds it at C μ.": (
                _masked
            ),
            "You did not divide by the sum.": lambda pi, mu, cap: [
                min(p, cap * q) for p, q in zip(pi, mu)
            ],
            "Those are the weights. A token is also drawn with probability μ.": (
                lambda pi, mu, cap: [min(p / q, cap) for p, q in zip(pi, mu)]
            ),
            "That is the policy. Which tokens cannot reach it?": (
                lambda pi, mu, cap: list(pi)
            ),
        },
    ),
    Exercise(
        "15.3",
        minutes=5,
        solution=256,
        why="The dotted line of the right panel is at 0.4 for 64 tokens, at 1.95 for "
        "256.",
        mistakes={
            "There the standard deviation is 0.16.": 16,
            "There it is 0.4 of the gradient, which is less than 1.": 64,
            "There it is above 100. It passed 1 at an earlier length.": 1024,
        },
    ),
    Exercise(
        "15.4",
        minutes=10,
        solution=5,
        why="`old` comes from the sampler already, so `ratio` is π_θ/μ, and w "
        "multiplies by the learner's distance to the sampler a second time. Leave the "
        "weight out.",
        mistakes={
            "Line 1 is right: a late sampler is the setting.": 1,
            "Line 2 is right: that is the two-policy mode.": 2,
            "Line 3 is right: the log-probs that carry the gradient.": 3,
            "Line 4 is right: with `old` from line 2 the ratio is π_θ/μ.": 4,
            "Line 6 is right: GRPO's clip.": 6,
            "Line 7 is right by itself. What is left for w to correct?": 7,
        },
    ),
)
