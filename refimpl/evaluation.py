"""Evaluation on held-out problems: k sampled answers per problem, and their accuracy.

    mean@k    the mean over all answers; its expectation does not depend on k
    pass@k    the share of problems with at least one right answer among k

Scores lie between 0 and 1, and an answer with a score above 0.5 counts as right.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.models import Model, one_thread, vocabulary
from refimpl.rewards import check_share, columns, ignored, rows_of, score
from refimpl.sampling import sample
from refimpl.tasks import Arithmetic
from refimpl.validation import Count, Seed, UserError, guarded

AT_ONCE = 2**22
"""Next-token logits per batch, 16 MiB in float32. The toy's answers fit into one batch;
of a model with 49,152 tokens, 85 answers do."""

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
    seed: Seed = 0,
    **sampling,
) -> Float[Tensor, "problems k"]:
    """Score `samples` answers to each held-out problem by the task's reward.

    Returns float64 on the CPU. `sampling` are keywords of `sample`: a run passes its
    temperature, top_p, top_k, max_new_tokens and max_turns. `seed` decides problems and
    answers: the first batch (`AT_ONCE`) uses it, each other batch one of its own.

    Raises `UserError` on bad input, and if the task's rows or rewards are invalid.
    """
    task = Arithmetic() if task is None else task
    rows = rows_of(task, "held_out", problems, seed)
    size = max(1, AT_ONCE // vocabulary(model) // samples)  # whole problems
    texts: list[str] = []
    ids: list[list[int]] = []
    for first in range(0, len(rows), size):
        part = [row["prompt"] for row in rows[first : first + size]]
        dice = seeds.seed_for(seed, first, "evaluation") if first else seed
        with one_thread(model):
            rollout = sample(
                model,
                tokenizer,
                part,
                group_size=samples,
                seed=dice,
                observe=getattr(task, "observe", None),
                **sampling,
            )
        texts += rollout.texts(tokenizer)
        ids += rollout.completion_ids()
    asked = [row for row in rows for _ in range(samples)]
    prompts = [row["prompt"] for row in asked]
    # A history has no column for metrics that the reward logs during an evaluation.
    extra = {"completion_ids": ids, "log_metric": ignored}
    rewards = score(task.reward, prompts, texts, extra | columns(asked))
    check_share(rewards)
    return torch.tensor(rewards, dtype=torch.float64).view(-1, samples)


@guarded
def mean_at(scores: Float[Tensor, "problems k"]) -> float:
    """Compute mean@k, the mean score of all answers."""
    return scores.double().mean().item()


@guarded
def pass_at(scores: Float[Tensor, "problems n"], k: Count) -> float:
    """Compute pass@k, by the unbiased estimate of Chen et al. 2021 (2107.03374, Eq. 1).

        mean over problems of  1 − C(n−c, k) / C(n, k)

    c of a problem's n answers are right (score > 0.5). The term is the probability that
    k of the n, drawn without replacement, include a right one. It is computed from
    whole numbers, so rounding is no problem for large n. Raises `UserError` if k > n.
    """
    n = scores.shape[1]
    if k > n:
        raise UserError(
            f"k must be at most {n}, the number of answers to each problem, got {k}: "
            f"sample more (samples={k}), or ask for a smaller k"
        )
    right = (scores > RIGHT).sum(-1).tolist()
    subsets = math.comb(n, k)
    return sum((subsets - math.comb(n - c, k)) / subsets for c in right) / len(right)


@guarded
def evaluate(
    model: Model, tokenizer: PreTrainedTokenizerBase, task=None, **settings
) -> float:
    """Compute mean@k on held-out problems; arguments and errors as in `scores`."""
    return mean_at(scores(model, tokenizer, task, **settings))
