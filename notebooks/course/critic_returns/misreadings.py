"""Misreadings of the critic's return: chapter 19."""

import torch

from course.kit.misreading import Misreading


def gae(reward, values, lam):
    """Â of each token of one response: the reward stands on the last, γ = 1."""
    A, after, found = 0.0, 0.0, torch.zeros_like(values)
    for t in reversed(range(len(values))):
        delta = (reward if t == len(values) - 1 else 0.0) + after - values[t]
        A = delta + lam * A
        found[t], after = A, values[t]
    return found


def targets_are_returns(reward, values, lam):
    """Â + V with λ = 1, the return, whatever V says."""
    return gae(reward, values, 1.0) + values


def by_length(length, alpha):
    """λ = 1 − 1/(α l), at least 0."""
    return 1 - 1 / (alpha * length).clamp(min=1)


def whole_answers_dropped(logp, old_logp, advantages, mask):
    """FlashREINFORCE's loss, with δ = 0.003."""
    mu, pi, lengths = old_logp.exp(), logp.detach().exp(), mask.sum(-1, keepdim=True)
    kl = mu * (mu / pi).log() + (1 - mu) * ((1 - mu) / (1 - pi)).log()
    far = (kl * mask).sum(-1, keepdim=True) / lengths > 0.003
    r = (logp - old_logp).exp().detach() * ~far
    each = r * advantages[:, None] * logp * mask / lengths
    return -each.sum() / len(mask)


MISREADINGS = (
    Misreading(
        "critic_targets_share_lambda",
        "One λ for the advantages and for the critic's targets.",
        "With λ < 1 the targets contain V itself, so a critic that starts wrong "
        "learns its own mistakes. With λ = 1 they are the returns.",
        {"values, 1.0": "values, lam"},
        targets_are_returns,
    ),
    Misreading(
        "critic_one_lambda_for_all_lengths",
        "λ = 0.95 is a good value for every length.",
        "The reward at the end reaches the first token as λ^(l − 1). At a thousand "
        "tokens 0.95 leaves almost nothing of it.",
        {"1 - 1 / (alpha * length).clamp(min=1)": "torch.full_like(length, 0.95)"},
        by_length,
    ),
    Misreading(
        "flash_ratio_in_the_gradient",
        "FlashREINFORCE's loss is ratio times advantage times log π.",
        "The ratio is detached. Otherwise the gradient has the factor 1 + log π, and "
        "its sign is wrong for tokens less likely than 1/e.",
        {"(logp - old_logp).exp().detach()": "(logp - old_logp).exp()"},
        whole_answers_dropped,
    ),
    Misreading(
        "flash_rows_leave_the_denominator",
        "The mean is taken over the answers that were kept.",
        "A dropped answer still counts in B. Otherwise a step grows as more answers "
        "are dropped.",
        {"len(mask)": "(~far).sum()"},
        whole_answers_dropped,
    ),
    Misreading(
        "flash_drops_tokens",
        "FlashREINFORCE drops the tokens that are too far from the sampler.",
        "It drops an answer by the mean over its tokens, and keeps single far tokens "
        "of an answer that is close on the whole.",
        {"(kl * mask).sum(-1, keepdim=True) / lengths > 0.003": "kl > 0.003"},
        whole_answers_dropped,
    ),
)
