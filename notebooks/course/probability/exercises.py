"""Exercises of chapter 16: bounds on a probability, masks, and a pull."""

from course.kit.exercise import Exercise


def ratio_bounds(mu, delta):
    """16.1: |π − μ| ≤ δ is |r − 1| ≤ δ/μ, and no probability leaves [0, 1]."""
    return max(0.0, 1 - delta / mu), min(1 / mu, 1 + delta / mu)


def _clamped(mu, delta):
    """The same through the probabilities."""
    low, high = (min(1.0, max(0.0, mu + move)) for move in (-delta, delta))
    return low / mu, high / mu


EXERCISES = (
    Exercise(
        "16.1",
        minutes=10,
        solution=ratio_bounds,
        also=(_clamped,),
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
        },
    ),
    Exercise(
        "16.2",
        minutes=5,
        solution=0.0,
        why="0.7 lies outside (0.8, 1.2), and GLM-5 does not ask in which direction "
        "the token moves. GRPO and DPPO keep a good token that has become rarer.",
        mistakes={
            "That is what GRPO and DPPO give it: it comes back. Does GLM-5 ask in "
            "which direction a token moves?": 0.7,
            "GLM-5 does not hold the ratio at its bound: outside, f is 0.": 0.8,
            "That is the gradient at r = 1.": 1.0,
            "The advantage is positive, and so is every factor.": -0.7,
        },
    ),
    Exercise(
        "16.3",
        minutes=5,
        solution=-2.0,
        why="The gradient vanishes where Â = τ z, at z = Â/τ = −1/0.5.",
        mistakes={
            "That is where the line of Â = +1 crosses 0.": 2.0,
            "There z is 0, and the coefficient is Â itself.": 0.0,
            "Â/τ, and τ is 0.5.": -1.0,
            "You multiplied by τ. The two terms are equal where Â = τ z.": -0.5,
        },
    ),
    Exercise(
        "16.4",
        minutes=10,
        solution=6,
        why="With one update the learner is π_old, so what is compared is a policy "
        "with itself. The mask has to compare with the sampler: `(logp.exp() - "
        "mu.exp()).detach()`.",
        mistakes={
            "Line 10 is right: one update for each rollout.": 10,
            "Line 1 is right: a late sampler is what the mask is for.": 1,
            "Line 2 is right: the sampler's log-probs came with the answers.": 2,
            "Line 3 is harmless by itself. Who uses it?": 3,
            "Line 4 is right: the log-probs that carry the gradient.": 4,
            "Line 5 is right: the group's mean and std.": 5,
            "Line 7 is right: one side for each sign of Â.": 7,
            "Line 8 is right: the ratio is taken against the sampler.": 8,
            "Line 9 is right: the mean over tokens.": 9,
        },
    ),
)
