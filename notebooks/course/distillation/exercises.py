"""Exercises of chapter 17: an advantage from a teacher, and what it cannot teach."""

import torch
from torch.nn import functional

from course.kit.exercise import Exercise
from course.kit.usual import from_the_left


def distillation(logp, teacher_logp, mask):
    """Push up the tokens that the teacher finds more likely than the student does."""
    return (teacher_logp - logp).detach() * mask


def reverse_kl(logits, teacher_logits, mask):
    """Σ_a π(a) (log π(a) − log π_T(a)), as a mean over the tokens of the mask."""
    own, other = logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    return _mean((own.exp() * (own - other)).sum(-1), mask)


def _mean(x, mask):
    return (x * mask).sum() / mask.sum()


def _kl_div(first, second, mask):
    """`F.kl_div(input, target)` of logits: KL(target ‖ input)."""
    logs = (x.log_softmax(-1) for x in (first, second))
    each = functional.kl_div(*logs, log_target=True, reduction="none")
    return _mean(each.sum(-1), mask)


def _wide(seed: int) -> tuple[torch.Tensor, ...]:
    draws = torch.Generator().manual_seed(seed)
    two = torch.randn(2, 2, 4, 5, generator=draws, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]]).double()  # a hole
    return *two, mask


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


TYPED = (
    Exercise(
        "17.distillation",
        solution=distillation,
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
            "That adds up all later tokens. Here the discount is 0: each token gets "
            "only its own advantage.": _to_go,
            "That is one number per answer. The teacher scores every token.": (
                lambda a, b, m: ((b - a) * m).sum(-1, keepdim=True).expand_as(m) * m
            ),
        },
    ),
    Exercise(
        "17.reverse_kl",
        solution=reverse_kl,
        cases=tuple(_wide(seed) for seed in range(2)),
        gradient=True,
        mistakes={
            **from_the_left(reverse_kl),
            "That is KL(π_T ‖ π), the forward direction. Its weights are the "
            "teacher's; weight by the student.": _kl_div,
            "Logits are not log-probs: take `log_softmax` of both first.": {
                ".log_softmax(-1)": ""
            },
            "That is a mean over padding and holes, too. Divide by the mask's sum.": (
                lambda a, b, m: reverse_kl(a, b, torch.ones_like(m))
            ),
            "The vocabulary's terms are added up, not averaged.": {
                ".sum(-1)": ".mean(-1)"
            },
            "The student's weights are detached. They change as well when the logits "
            "do.": {"own.exp() *": "own.exp().detach() *"},
        },
    ),
)

EXERCISES = (
    Exercise(
        "17.1",
        solution="negative",
        why="0.5 · log(0.1/0.5) + 0.5 · log(0.9/0.5) = −0.51. It is minus KL(π ‖ π_T).",
        choices=("negative", "zero", "positive"),
        mistakes={
            "A group's mean is subtracted in GRPO. Here nothing is: compute 0.5 · "
            "log(0.1/0.5) + 0.5 · log(0.9/0.5).": "zero",
            "The digit's advantage is positive, but that of # is more negative, and "
            "the student writes both equally often.": "positive",
        },
    ),
    Exercise(
        "17.2",
        solution=("low", "small"),
        why="Student and teacher make the same mistakes, and only these are compared.",
        parts=("accuracy", "KL"),
        choices=(("high", "low"), ("large", "small")),
        mistakes={
            "The student learned to calculate, but never with six terms, and neither "
            "did its teacher.": ("high", "small"),
            "Right about the accuracy. But the KL is no distance to the truth. Does "
            "the teacher know better?": ("low", "large"),
            "Nobody trained on six terms, so the student does not know them. And the "
            "KL would be large only if the teacher did.": ("high", "large"),
        },
    ),
    Exercise(
        "17.3",
        solution=0.7,
        decimals=1,
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
        solution="5b",
        why="The sum over the vocabulary is a function of the prefix. Whichever token "
        "was drawn gets the same number, which is a baseline. Line 5 should gather "
        "both log-probs at the sampled token; `(own - other).gather(-1, tokens[..., "
        "None])[..., 0]`.",
        lines=8,
        mistakes={
            "The reason is right, but line 6 only passes on what line 5 has already "
            "summed up.": "6b",
            "Line 6 has the right sign: a smaller KL is better, so its negative is the "
            "advantage.": "6d",
            "A baseline would not change what this teaches, because the expected "
            "gradient is 0 already. Is the number different for another token?": "6c",
            "Weighted by the student it is the reverse KL, which the right line "
            "descends, too.": "5a",
            "Line 7 is REINFORCE with the token's ratio, and its sign is right.": "7d",
        },
    ),
)
