"""Misreadings of DAPO: its mean, its punishment, its sampling, its clip."""

from course.kit.misreading import Misreading
from course.kit.plain import clipped, mean_of_rows, token_mean

EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28


def per_response_log_loss(logp, old_logp, advantages, mask):
    """−(1/T) Σ_t A log π for each response, then the mean: no ratio, no clip."""
    return -mean_of_rows(advantages[:, None] * logp, mask)


def dapo(logp, old_logp, advantages, mask):
    """−(1/Σ_i|o_i|) Σ_i Σ_t min(r Â, clip(r, 1−ε_low, 1+ε_high) Â): Eq. 8."""
    r = (logp - old_logp).exp()
    value = clipped(r, advantages[:, None], EPSILON_LOW, EPSILON_HIGH)
    return -token_mean(value, mask)


def penalty_beyond_the_limit(length, max_length, buffer):
    """−λ max(0, |y| − L_max), with λ = 1/L_cache."""
    return -(length - max_length).clamp(min=0) / buffer


def punishment(length, max_length, buffer):
    """Eq. 13: 0, then a ramp over the last `buffer` tokens *before* the limit, −1."""
    return ((max_length - buffer - length) / buffer).clamp(-1, 0)


def samples_not_0_or_1(correct):
    """Keep a response unless its own reward is 0 or 1: nothing is left."""
    return (correct != 0) & (correct != 1)


def groups_of_mixed_accuracy(correct):
    """Keep all responses to a prompt, or none: 0 < #correct < G."""
    right = correct.sum(-1, keepdim=True)
    return ((right > 0) & (right < correct.shape[-1])).expand_as(correct)


def clip_can_stop(p, epsilon):
    """1 where a probability can reach (1+ε) p at all, that is below 1/(1+ε)."""
    return (p * (1 + epsilon) < 1).float()


MISREADINGS = [
    Misreading(
        "dapo_per_response_mean",
        "DAPO's token-level loss is −(1/T) Σ_t A log π of each response.",
        "That is the mean per response which DAPO replaces. Its change is one sum over "
        "all responses, divided by Σ|o_i|; ratio and clip stay.",
        per_response_log_loss,
        dapo,
    ),
    Misreading(
        "overlong_beyond_the_limit",
        "R' = R − λ max(0, |y| − L_max).",
        "Generation stops at L_max, so that is always 0. Eq. 13 ramps down over the "
        "last L_cache tokens before L_max, and never below −1.",
        penalty_beyond_the_limit,
        punishment,
    ),
    Misreading(
        "dapo_drops_samples",
        "Dynamic sampling discards samples whose reward is 0 or 1.",
        "It discards whole groups whose accuracy is 0 or 1, and samples new prompts "
        "until the batch is full. With 0/1 rewards the claim would keep nothing.",
        samples_not_0_or_1,
        groups_of_mixed_accuracy,
    ),
    Misreading(
        "collapse_from_common_tokens",
        "Entropy collapses because the clip stops high-probability tokens.",
        "The upper clip stops *low*-probability tokens: 0.01 may rise to 0.012, while "
        "0.9 would have to pass 1.08. Above 1/(1+ε) it cannot act.",
        {"< 1": ">= 1"},
        clip_can_stop,
    ),
]
