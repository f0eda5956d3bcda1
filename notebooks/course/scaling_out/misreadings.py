"""Misreadings of engines, ranks and old samplers, of VESPO, LUSPO, MiniRL: chapter 14.

Those of the methods are losses of (logp, old_logp, advantages, mask), advantages (B,).
"""

import torch

from course.kit.misreading import Misreading
from course.kit.plain import clipped, sequence_ratio, token_mean


def mean_of_means(losses):
    """The mean over ranks of each rank's mean; `losses` is a list of (n_i,)."""
    return sum(part.mean() for part in losses) / len(losses)


def mean_of_all(losses):
    """All ranks' losses over the number of all their tokens."""
    return sum(part.sum() for part in losses) / sum(part.numel() for part in losses)


def updates(num_iterations, steps_per_generation, gradient_accumulation_steps):
    """Passes, times the optimiser steps that one of them takes."""
    return num_iterations * steps_per_generation / gradient_accumulation_steps


def one_correction(logp, old_logp, sampler_logp, cap):
    """π_θ / π_old, times min(π_old / μ, cap)."""
    weight = (old_logp - sampler_logp).exp().clamp(max=cap)
    return weight * (logp - old_logp).exp()


def _kernel(w, logp, advantages, mask):
    k = torch.where(advantages >= 0, 2.0, 3.0)[:, None]
    phi = w**k * ((5 - k) * (1 - w)).exp()
    return -token_mean(phi.detach() * advantages[:, None] * logp, mask)


def kernel_of_product(logp, old_logp, advantages, mask):
    w = ((logp - old_logp) * mask).sum(-1, keepdim=True).exp()
    return _kernel(w, logp, advantages, mask)


def _gspo(logp, old_logp, advantages, mask):
    """GSPO's term of each answer, with LUSPO's bounds."""
    s = sequence_ratio(logp, old_logp, mask)[:, 0]
    return clipped(s, advantages, 2e-3, 2.5e-3)


def times_length(logp, old_logp, advantages, mask):
    return -(_gspo(logp, old_logp, advantages, mask) * mask.sum(-1)).mean()


def _minirl(logp, old_logp, advantages):
    return clipped((logp - old_logp).exp(), advantages[:, None], 0.2, 0.27)


def clip_over_answers(logp, old_logp, advantages, mask):
    return -(_minirl(logp, old_logp, advantages) * mask).sum(-1).mean()


MISREADINGS = [
    Misreading(
        "scale_mean_of_means",
        "DDP averages gradients, so let each rank average over its own tokens.",
        "That is a mean of means: a token on a rank of short answers counts more. "
        "Divide by the tokens of all ranks and multiply by the number of ranks, "
        "because DDP divides by that number.",
        mean_of_means,
        mean_of_all,
    ),
    Misreading(
        "scale_k_is_num_iterations",
        "K is num_iterations: one pass over a rollout is one update.",
        "A pass takes steps_per_generation / gradient_accumulation_steps optimiser "
        "steps. All but the first meet a policy that has moved.",
        {" * steps_per_generation / gradient_accumulation_steps": ""},
        updates,
    ),
    Misreading(
        "scale_corrected_twice",
        "The sampler is old, so use its log-probs as old_logp and also weight the "
        "tokens.",
        "Either one is a correction. With both, a token's factor contains π_old / μ "
        "twice.",
        {"logp - old_logp": "logp - sampler_logp"},
        one_correction,
    ),
    Misreading(
        "vespo_takes_the_root",
        "VESPO's W is GSPO's ratio of the answer.",
        "It is the product of the tokens' ratios, without the root of the length.",
        {
            "((logp - old_logp) * mask).sum(-1, keepdim=True).exp()": (
                "sequence_ratio(logp, old_logp, mask)"
            )
        },
        kernel_of_product,
    ),
    Misreading(
        "luspo_divides_by_length",
        "Length-unbiased means: LUSPO divides an answer's term by its length.",
        "LUSPO multiplies by it, because the gradient of a geometric mean is already "
        "divided by the length.",
        {"* mask": "/ mask"},
        times_length,
    ),
    Misreading(
        "minirl_is_a_token_mean",
        "MiniRL has no division by a length, so it averages over all tokens.",
        "It sums over an answer's tokens and averages over answers; the mean over all "
        "tokens divides by the batch's lengths.",
        {".sum(-1).mean()": ".sum() / mask.sum()"},
        clip_over_answers,
    ),
]
