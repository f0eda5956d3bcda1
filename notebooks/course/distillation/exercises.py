"""Exercises of chapter 17: an advantage from a teacher, and what it cannot teach."""

import torch

from course.kit.exercise import Exercise


def advantages(logp, teacher_logp, mask):
    """17.1: what the teacher finds more likely than the student goes up. Constants, and
    0 outside the mask."""
    return (teacher_logp - logp).detach() * mask


def _case(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    one, other = (
        -torch.rand(2, 4, generator=generator, dtype=torch.float64) * 3
        for _ in range(2)
    )
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).double()
    return one, other, mask


def _to_go(logp, teacher_logp, mask):
    each = (teacher_logp - logp) * mask
    return each.flip(-1).cumsum(-1).flip(-1) * mask


EXERCISES = (
    Exercise(
        "17.1",
        minutes=5,
        solution=advantages,
        also=(lambda a, b, m: torch.where(m.bool(), b - a, 0.0),),
        cases=tuple(_case(seed) for seed in range(2)),
        mistakes={
            "That is the KL's sign: it pushes up what the student overrates. An "
            "advantage is what should go up.": lambda a, b, m: (a - b) * m,
            "Padding has an advantage, too. Multiply by the mask.": (
                lambda a, b, m: b - a
            ),
            "Those are probabilities. The advantage is a difference of logarithms.": (
                lambda a, b, m: (b.exp() - a.exp()) * m
            ),
            "That adds up all that follows. Here the discount is 0: each token answers "
            "for itself.": _to_go,
            "That is one number per answer. The teacher has a word on every token.": (
                lambda a, b, m: ((b - a) * m).sum(-1, keepdim=True).expand_as(m) * m
            ),
        },
    ),
    Exercise(
        "17.2",
        minutes=5,
        solution=0.0,
        why="log π_T − log π is 0 for every token, whatever the reward says.",
        mistakes={
            "That is the reward, and nobody looks at it here.": 1.0,
            "log π_T − log π of two equal policies: what is the difference?": -1.0,
            "Half of the way? The two log-probs are the same number.": 0.5,
        },
    ),
    Exercise(
        "17.3",
        minutes=5,
        solution=0.7,
        why="0.71, 0.74 and 0.78. At the first character one teacher asks for a digit "
        "and the other for #, and the mean of their logarithms prefers neither.",
        mistakes={
            "That is what the routed students reach, the teacher of sums, and RL.": 0.9,
            "That is in the right panel, on rows to sort; or the start.": 0.4,
            "That is the teacher of rows, who guesses the sums.": 0.0,
        },
    ),
    Exercise(
        "17.4",
        minutes=10,
        solution=5,
        why="The sum over the vocabulary is a function of the prefix. Whichever token "
        "was drawn gets the same number, which is a baseline. Line 5 should gather "
        "both log-probs at the sampled token; `(own - other).gather(-1, tokens[..., "
        "None])[..., 0]`.",
        mistakes={
            "Line 1 is right: the student samples.": 1,
            "Line 2 is right: the student's log-probs of the whole vocabulary.": 2,
            "Line 3 is right: the teacher reads the student's answers.": 3,
            "Line 4 is right: log-probs and not logits are compared.": 4,
            "Line 6 is right: a smaller KL is better, and an advantage is a constant. "
            "Does it depend on the token that was drawn?": 6,
            "Line 7 is right: it is REINFORCE with the token's ratio.": 7,
            "Line 8 is right.": 8,
        },
    ),
)
