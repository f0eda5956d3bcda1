"""Held-out problems: k sampled answers to each, and what share of them is right.

    mean@k    the mean over all answers; its expectation does not depend on k
    pass@k    the share of problems of which one of k answers is right

Where answers are scored between 0 and 1, those above 0.5 count as right.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.checks import Count, Positive, Seed, UserError, guarded, rows_of
from refimpl.models import Model, one_thread, vocabulary
from refimpl.rewards import columns, score
from refimpl.sampling import Nucleus, sample
from refimpl.tasks import Arithmetic

AT_ONCE = 2**22
"""Next-token logits of a batch, 16 MiB in float32: all answers of the toy's, 85 of a
model with 49,152 tokens."""

RIGHT = 0.5
"""A score above this is a right answer."""


@guarded
def scores(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    task=None,
    *,
    problems: Count = 256,
    samples: Count = 1,
    max_new_tokens: Count = 48,
    temperature: Positive = 1.0,
    top_p: Nucleus | None = None,
    top_k: Count | None = None,
    seed: Seed = 0,
    batch: Count | None = None,
) -> Float[Tensor, "problems k"]:
    """The task's reward for `samples` answers to each held-out problem; float64, CPU.

    Sampled as in training: a run hands on its temperature, and top_p and top_k.
    `seed` decides problems and answers. `batch` is how many answers are written at
    once, by whole problems; None: as many as `AT_ONCE` allows. The first batch's seed
    is `seed`, each other batch has its own: another `batch` gives other answers
    of the same distribution.

    Raises `UserError` on bad input, and if the task's rows or rewards
    are none.
    """
    task = Arithmetic() if task is None else task
    rows = rows_of(task, "held_out", problems, seed)
    batch = max(1, AT_ONCE // vocabulary(model)) if batch is None else batch
    size, found = max(1, batch // samples), []
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        with one_thread(model):
            rollout = sample(
                model,
                tokenizer,
                [row["prompt"] for row in part],
                group_size=samples,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seeds.seed_for(seed, first, "evaluation") if first else seed,
            )
        part = [row for row in part for _ in range(samples)]
        prompts = [row["prompt"] for row in part]
        found += score(task.reward, prompts, rollout.texts(tokenizer), columns(part))
    return torch.tensor(found, dtype=torch.float64).view(-1, samples)


@guarded
def mean_at(scores: Float[Tensor, "problems k"]) -> float:
    """mean@k: the mean score of all answers. Raises `UserError` if there are none."""
    values = scores.flatten().tolist()
    if not values:
        raise UserError("scores must hold at least one answer, got none")
    return sum(values) / len(values)


@guarded
def pass_at(scores: Float[Tensor, "problems n"], k: Count) -> float:
    """pass@k, the unbiased estimate of Chen et al. 2021 (2107.03374, Eq. 1).

        mean over problems of  1 − C(n−c, k) / C(n, k)

    c of a problem's n answers are right (score > 0.5): the probability that k of the
    n, drawn without putting back, hold a right one. From whole numbers, so nothing is
    lost to rounding, whatever n is. With k = 1 it is the share of right answers.

    Raises `UserError` if k > n, or there is no problem.
    """
    if not len(scores):
        raise UserError("scores must hold at least one problem, got none")
    n = scores.shape[1]
    if k > n:
        raise UserError(
            f"k must be at most {n}, the number of answers to each problem, got {k}: "
            f"sample more (samples={k}), or ask for a smaller k"
        )
    right = (scores > RIGHT).sum(-1).tolist()
    every = math.comb(n, k)
    return sum((every - math.comb(n - c, k)) / every for c in right) / len(right)


@guarded
def evaluate(
    model: Model, tokenizer: PreTrainedTokenizerBase, task=None, **settings
) -> float:
    """mean@k: the mean of the task's reward over the answers to held-out problems.

    Arguments and errors are those of `scores`: one answer each, or `samples` of them.
    """
    return mean_at(scores(model, tokenizer, task, **settings))
