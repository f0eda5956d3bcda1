"""Misreadings of late samplers and their corrections: chapter 15."""

import torch

from course.kit.misreading import Misreading


def from_the_sampler(logp, old_logp, sampler_logp):
    """The share of tokens whose π_θ/μ does."""
    return ((logp - sampler_logp).exp() - 1).abs().gt(0.2).double().mean()


def of_the_minimum(pi, mu, cap):
    """min(π, Cμ), over its sum."""
    kept = torch.minimum(pi, cap * mu)
    return kept / kept.sum()


def by_each_token(z, cap):
    """Kept, if no token's weight is above the cap; `z` are log-ratios."""
    return z.exp().max() <= cap


def by_the_product(z, cap):
    """Kept, if the product of the weights is not above the cap."""
    return z.sum().exp() <= cap


def by_the_mean(z, cap):
    """Kept, if the geometric mean of the weights is not above the cap."""
    return z.mean().exp() <= cap


def capped(logits, mu, rewards, baseline, cap):
    """E_μ[min(w, C) (R − b) ∇log π], w = π/μ, in the logits; all of them (V,)."""
    pi = logits.softmax(-1)
    push = mu * (pi / mu).clamp(max=cap) * (rewards - baseline)
    return push - pi * push.sum()


def centred(logits, mu, rewards, baseline, cap):
    """The same with each token's score less the weighted score's own mean, E_μ[w ∇log
    π], which is not 0 under a cap. Score centering (2609.20807): over tokens drawn from
    μ that is what the mean of μ does as a baseline, and nobody has to know it."""
    drift = capped(logits, mu, torch.ones_like(mu), 0.0, cap)
    advantages = rewards - baseline
    return capped(logits, mu, advantages, 0.0, cap) - (mu @ advantages) * drift


MISREADINGS = [
    Misreading(
        "late_clip_shows_nothing",
        "Nothing is clipped, so the sampler is close to the policy.",
        "π_old was recomputed, and compared with itself the policy has a ratio of 1. "
        "Look at π_θ/μ, or at the KL between sampler and π_old.",
        {"(logp - sampler_logp)": "(logp - old_logp)"},
        from_the_sampler,
    ),
    Misreading(
        "late_truncation_is_the_policy",
        "Importance weights make late samples count as the policy's, capped or not.",
        "Capped weights train on min(π, Cμ): a token that the sampler hardly draws "
        "keeps at most C times its share.",
        {"kept / kept.sum()": "pi"},
        of_the_minimum,
    ),
    Misreading(
        "late_small_tokens_small_answer",
        "No token's weight is above 1.1, so the answer's is not above 3 either.",
        "The weights of an answer's tokens are multiplied, and they need not cancel.",
        by_each_token,
        by_the_product,
    ),
    Misreading(
        "late_mean_sees_every_token",
        "The mean of the answer's weights is inside the band, so all its tokens are.",
        "One weight of 30 among ones of 1 hardly moves the mean of a long answer. A "
        "rule on the worst token drops the answer for it.",
        by_the_mean,
        by_each_token,
    ),
    Misreading(
        "late_any_baseline_will_do",
        "A baseline adds no bias, so any baseline will do even with a capped weight.",
        "Under a cap the weighted score has a mean that is not 0, and the baseline "
        "multiplies it. Score centering subtracts that mean first.",
        capped,
        centred,
    ),
]
