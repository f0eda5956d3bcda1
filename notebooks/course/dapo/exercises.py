"""Exercises of chapter 06: climb, entropy, punishment, prompts, a bug."""

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual


def punished(correct: float, length: int, max_length: int, buffer: int) -> float:
    """The correctness reward plus Eq. 13."""
    over = length - (max_length - buffer)
    return correct - min(max(over / buffer, 0.0), 1.0)


EXERCISES = (
    Exercise(
        "6.1",
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
        solution="falls",
        why="The probability that the rare answer loses goes mostly to the answer "
        "that is already likely, so the policy becomes more certain.",
        choices=("rises", "falls", "stays"),
        mistakes={
            "It would rise if a likely answer were punished. Who gains here?": "rises",
            "A little probability moves, and it moves to the likely answer.": "stays",
        },
    ),
    Exercise(
        "6.3",
        solution=punished,
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
        solution="an eighth",
        why="A group of 16 is live with probability 1.00 at p = 0.5, and 0.149 at p = "
        "0.99. So the easy prompts are 0.149/(1.00 + 0.149) = 13 % of the batch.",
        choices=("half", "an eighth", "none"),
        mistakes={
            "That is their share of what is drawn, but at 0.99 most groups are all "
            "right and therefore dead.": "half",
            "At 0.99 one of 16 answers is sometimes wrong, so 15 % of the groups are "
            "live.": "none",
        },
    ),
    Exercise(
        "6.5",
        solution="6b",
        lines=9,
        why="Whether a group is live depends on correctness alone: `live = "
        "right.std(1) > 0`. If the punishment counts, a group of wrong answers "
        "with one long answer is live, and trains the policy on brevity alone.",
        mistakes={
            "Line 5 is right: the punishment is added to the correctness reward. "
            "But who reads R next, and should it?": "5b",
            "The punishment belongs in the advantages, as line 9 has it: look at "
            "what decides which groups are kept.": "9d",
            "New prompts in every round are what dynamic sampling is.": "3a",
            "What was drawn beyond the batch is dropped, in whole groups.": "8c",
        },
    ),
    Exercise(
        "6.7",
        solution="all",
        why="GSPO gives a response one coefficient, so its clip "
        "stops all tokens or none.",
        choices=("all", "the wildest", "none"),
        mistakes={
            "A clip for each token would stop that one, as GRPO's does. GSPO's "
            "ratio belongs to the whole response.": "the wildest",
            "The band is a clip: beyond it, in the direction of the advantage, "
            "the objective is flat.": "none",
        },
    ),
    Exercise(
        "6.8",
        solution="the group",
        why="The mean reward of the answers to the same question is the baseline.",
        choices=("the group", "the reference", "the verifier"),
        mistakes={
            "The reference belongs to the KL term. The baseline comes from the "
            "other answers to the same question.": "the reference",
            "The verifier gives the rewards, in PPO as well. "
            "What is subtracted from them?": "the verifier",
        },
    ),
    Exercise(
        "6.9",
        solution=3,
        why="Without a gate c = r.",
        choices=(1, 3, 9),
        mistakes={
            "That is c without the ratio, or at r = 1. Here ∇(rA) = A r ∇log π.": 1,
            "The ratio stands before ∇log π once: ∇(rA) = A r ∇log π.": 9,
        },
    ),
)


def dapo_loss(logp, old_logp, advantages, mask, low=0.2, high=0.28):
    """−(1/Σ_i|o_i|) Σ_i Σ_t min(r Â, clip(r, 1 − low, 1 + high) Â): Eq. 8."""
    A = advantages[:, None]
    r = (logp - old_logp).exp()
    clipped = r.clamp(1 - low, 1 + high)
    w = mask / mask.sum()
    return -(w * torch.minimum(r * A, clipped * A)).sum()


TYPED = (
    Exercise(
        "06.dapo_loss",
        solution=dapo_loss,
        cases=(batch(),),
        gradient=True,
        mistakes={
            **usual(dapo_loss),
            "The clip is the same on both sides: there is more room above, 1 + high.": {
                "1 + high": "1 + low"
            },
        },
    ),
)
