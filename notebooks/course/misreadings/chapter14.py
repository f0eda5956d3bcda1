"""Misreadings of engines, ranks and old samplers: chapter 14."""

from course.misreadings.base import Misreading


def mean_of_means(losses):
    """The mean over ranks of each rank's mean; `losses` is a list of (n_i,)."""
    return sum(part.mean() for part in losses) / len(losses)


def mean_of_all(losses):
    """All ranks' losses over the number of all their tokens."""
    return sum(part.sum() for part in losses) / sum(part.numel() for part in losses)


def passes(num_iterations, steps_per_generation, gradient_accumulation_steps):
    """TRL's μ: how often the updates go over a rollout."""
    return num_iterations


def updates(num_iterations, steps_per_generation, gradient_accumulation_steps):
    """Passes, times the optimiser steps that one of them takes."""
    return num_iterations * steps_per_generation / gradient_accumulation_steps


def both_corrections(logp, old_logp, sampler_logp, cap):
    """A ratio to the sampler, and the weight that leads from π_old to it as well."""
    weight = (old_logp - sampler_logp).exp().clamp(max=cap)
    return weight * (logp - sampler_logp).exp()


def one_correction(logp, old_logp, sampler_logp, cap):
    """π_θ / π_old, times min(π_old / π_sampler, cap)."""
    weight = (old_logp - sampler_logp).exp().clamp(max=cap)
    return weight * (logp - old_logp).exp()


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
        passes,
        updates,
    ),
    Misreading(
        "scale_corrected_twice",
        "The sampler is old: take its log-probs for old_logp, and weigh the tokens.",
        "Either is a correction. With both, a token's factor holds π_old / π_sampler "
        "twice.",
        both_corrections,
        one_correction,
    ),
]
