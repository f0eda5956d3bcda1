"""Exercises of chapter 06: climb, entropy, punishment, prompts, a bug."""

import torch

from course.kit.exercise import Exercise


def punished(correct: float, length: int, max_length: int, buffer: int) -> float:
    """The correctness reward plus Eq. 13."""
    over = length - (max_length - buffer)
    return correct - min(max(over / buffer, 0.0), 1.0)


def _in_three_cases(correct, length, max_length, buffer):
    """6.3 as Eq. 13 is printed."""
    start = max_length - buffer
    if length <= start:
        return correct
    if length > max_length:
        return correct - 1
    return correct + (start - length) / buffer


EXERCISES = (
    Exercise(
        "6.1",
        minutes=5,
        solution=22,
        why="Each rollout multiplies by 1.2, and it takes 22 factors of 1.2 to come to "
        "50, because ln 50 / ln 1.2 = 21.5.",
        choices=(5, 22, 60, 245),
        mistakes={
            "Five rollouts multiply by 1.2⁵ = 2.5: the token is at 2.5 % then.": 5,
            "The lift grows with the token: it is a factor, not an amount.": 245,
            "1.2⁶⁰ is more than 50,000; a factor of 50 is enough.": 60,
        },
    ),
    Exercise(
        "6.2",
        minutes=5,
        solution="falls",
        why="The probability that the rare answer loses goes mostly to the answer "
        "that is already likely, so the policy becomes more certain.",
        choices=("rises", "falls", "stays"),
        mistakes={
            "It would rise if a likely answer were punished. Who gains here?": "rises",
            "A little probability moves, and it moves to the likely answer.": "stays",
            "The policy becomes more certain. What is that in entropy?": "grows",
        },
    ),
    Exercise(
        "6.3",
        minutes=10,
        solution=punished,
        also=(_in_three_cases,),
        cases=(
            (1.0, 10000, 20480, 4096),
            (1.0, 17408, 20480, 4096),
            (0.0, 19456, 20480, 4096),
            (1.0, 20480, 20480, 4096),
            (0.0, 25000, 20480, 4096),
        ),
        mistakes={
            "One point per token past L_max? The ramp lies before it, and ends.": {
                "min(max(over / buffer, 0.0), 1.0)": "max(0, length - max_length)"
            },
            "The ramp lies before L_max: it starts at L_max − L_cache.": {
                "length - (max_length - buffer)": "length - max_length"
            },
            "Past L_max the punishment stays at −1: bound it.": {
                "min(max(over / buffer, 0.0), 1.0)": "max(over / buffer, 0.0)"
            },
            "A short response is not rewarded for being short: before the ramp the "
            "punishment is 0.": {
                "min(max(over / buffer, 0.0), 1.0)": "min(over / buffer, 1.0)"
            },
            "The punishment is added to the correctness reward, not in its place.": {
                "correct - min": "-min"
            },
            "The ramp is L_cache long: divide by L_cache, not by L_max.": {
                "/ buffer": "/ max_length"
            },
        },
    ),
    Exercise(
        "6.4",
        minutes=10,
        solution="an eighth",
        why="A group of 16 is live with probability 1.00 at p = 0.5, and 0.149 at p = "
        "0.99. So the easy prompts are 0.149/(1.00 + 0.149) = 13 % of the batch.",
        choices=("half", "an eighth", "none"),
        mistakes={
            "That is their share of what is drawn, but at 0.99 most groups are all "
            "right and therefore dead.": ("half"),
            "At 0.99 one of 16 answers is sometimes wrong, so 15 % of the groups are "
            "live.": ("none"),
            "At 0.99 a group of 16 is live in 15 % of cases, at 0.5 always.": (
                "a quarter"
            ),
        },
    ),
    Exercise(
        "6.5",
        minutes=10,
        solution=(6, "b"),
        parts=("line", "reason"),
        choices=(tuple(range(1, 10)), ("a", "b", "c", "d")),
        why="Whether a group is live depends on correctness alone: `live = "
        "right.std(1) > 0`. If the punishment counts, a group of wrong answers "
        "with one long answer is live, and trains the policy on brevity alone.",
        mistakes={
            "Line 5 is right: Eq. 13 is added to the correctness reward. "
            "But who reads R next, and should it?": (5, "b"),
            "The punishment belongs in the advantages, as line 9 has it: look at "
            "what decides which groups are kept.": (9, "d"),
            "New prompts in every round are what dynamic sampling is.": (3, "a"),
            "What was drawn beyond the batch is dropped, in whole groups.": (8, "c"),
        },
    ),
)


def dapo_loss(logp, old_logp, advantages, mask, low=0.2, high=0.28):
    """−(1/Σ_i|o_i|) Σ_i Σ_t min(r Â, clip(r, 1 − low, 1 + high) Â): Eq. 8."""
    A = advantages[:, None]
    r = (logp - old_logp).exp()
    clipped = r.clamp(1 - low, 1 + high)
    return -(mask * torch.minimum(r * A, clipped * A)).sum() / mask.sum()


def _in_cases(logp, old_logp, advantages, mask, low=0.2, high=0.28):
    """The minimum as its two cases: a ceiling for good tokens, a floor for bad."""
    r, A = (logp - old_logp).exp(), advantages[:, None]
    bounded = torch.where(A > 0, r.clamp(max=1 + high), r.clamp(min=1 - low))
    return -(bounded * A * mask).sum() / mask.sum()


_RATIOS = torch.tensor(
    [[1.35, 1.25, 0.7, 1.0], [0.75, 1.4, 0.9, 1.0], [1.1, 1.0, 1.0, 1.0]]
).double()
_MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]]).double()
_OLD = torch.full((3, 4), 0.5).double().log()
_BATCH = (_OLD + _RATIOS.log(), _OLD, torch.tensor([1.2, -0.8, 0.5]).double(), _MASK)

TYPED = (
    Exercise(
        "06.dapo_loss",
        minutes=10,
        solution=dapo_loss,
        also=(_in_cases,),
        cases=(_BATCH,),
        gradient=True,
        mistakes={
            "That is GRPO's mean: each response first. Here every token counts alike, "
            "so divide one sum by the number of all tokens.": {
                "-(mask": "-((mask",
                ".sum() / mask.sum()": ".sum(1) / mask.sum(1)).mean()",
            },
            "Padding is averaged as well: multiply by the mask.": {
                "(mask * torch": "(torch",
                ".sum() / mask.sum()": ".mean()",
            },
            "You multiply by the mask, but divide by B·T: divide by mask.sum().": {
                ".sum() / mask.sum()": ".mean()"
            },
            "The clip is the same on both sides: there is more room above, 1 + high.": {
                "1 + high": "1 + low"
            },
            "The bounds are swapped: it is 1 − low below and 1 + high above.": {
                "low=0.2, high=0.28": "high=0.2, low=0.28"
            },
            "Where is the minimum? A clip alone also stops tokens that ought to come "
            "back.": {"(r * A, clipped": "(clipped * A, clipped"},
            "The sign: PyTorch minimises, and J is to be maximised.": {
                "-(mask": "(mask"
            },
        },
    ),
)
