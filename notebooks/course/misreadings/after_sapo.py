"""Misreadings of the methods after SAPO.

Each pair is a loss of (logp, old_logp, advantages, mask), advantages (B,).
"""

import torch

from course.misreadings.base import Misreading


def _mean(each, mask):
    return -(each * mask).sum() / mask.sum()


def _masked(kept, logp, old_logp, advantages, mask):
    """CISPO's form: a constant ratio times log π, for the tokens that are kept."""
    ratio = (logp - old_logp).exp().clamp(max=20).detach()
    return _mean(kept * ratio * advantages[:, None] * logp, mask)


def bound_on_ratio(logp, old_logp, advantages, mask):
    up, ratio = advantages[:, None] > 0, (logp - old_logp).exp()
    kept = torch.where(up, ratio <= 1.2, ratio >= 0.8)
    return _masked(kept, logp, old_logp, advantages, mask)


def bound_on_probability(logp, old_logp, advantages, mask):
    up, moved = advantages[:, None] > 0, logp.exp() - old_logp.exp()
    kept = torch.where(up, moved <= 0.2, moved >= -0.2)
    return _masked(kept, logp, old_logp, advantages, mask)


def _binary_kl(logp, mu):
    others = (1 - logp.exp()).clamp(min=0) + 1e-8
    rest = (1 - mu.exp()) * ((1 - mu.exp() + 1e-8) / others).log()
    return mu.exp() * (mu - logp) + rest


def far_tokens_dropped(logp, old_logp, advantages, mask):
    kept = _binary_kl(logp, old_logp) <= 0.05
    return _masked(kept, logp, old_logp, advantages, mask)


def tokens_moving_on_dropped(logp, old_logp, advantages, mask):
    back = (logp - old_logp) * advantages[:, None] <= 0
    kept = (_binary_kl(logp, old_logp) <= 0.05) | back
    return _masked(kept, logp, old_logp, advantages, mask)


def one_sided_ipo(logp, old_logp, advantages, mask):
    moved = (logp.exp() - old_logp.exp()) * advantages[:, None].sign()
    kept = moved <= 0.3
    return _mean(kept * (logp - old_logp).exp() * advantages[:, None], mask)


def ipo(logp, old_logp, advantages, mask):
    kept = (logp.exp() - old_logp.exp()).abs() <= 0.3
    return _mean(kept * (logp - old_logp).exp() * advantages[:, None], mask)


def ratio_held(logp, old_logp, advantages, mask):
    ratio = (logp - old_logp).exp().clamp(0.8, 1.2).detach()
    return _mean(ratio * advantages[:, None] * logp, mask)


def tokens_outside_dropped(logp, old_logp, advantages, mask):
    ratio = (logp - old_logp).exp().detach()
    kept = (ratio > 0.8) & (ratio < 1.2)
    return _masked(kept, logp, old_logp, advantages, mask)


def _kernel(w, logp, advantages, mask):
    k = torch.where(advantages >= 0, 2.0, 3.0)[:, None]
    phi = w**k * ((5 - k) * (1 - w)).exp()
    return _mean(phi.detach() * advantages[:, None] * logp, mask)


def kernel_of_mean(logp, old_logp, advantages, mask):
    z = (logp - old_logp) * mask
    w = (z.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
    return _kernel(w, logp, advantages, mask)


def kernel_of_product(logp, old_logp, advantages, mask):
    w = ((logp - old_logp) * mask).sum(-1, keepdim=True).exp()
    return _kernel(w, logp, advantages, mask)


def _gspo(logp, old_logp, advantages, mask):
    """GSPO's term of each answer, with LUSPO's bounds."""
    s = (((logp - old_logp) * mask).sum(-1) / mask.sum(-1)).exp()
    return torch.minimum(s * advantages, s.clamp(1 - 2e-3, 1 + 2.5e-3) * advantages)


def over_length(logp, old_logp, advantages, mask):
    return -(_gspo(logp, old_logp, advantages, mask) / mask.sum(-1)).mean()


def times_length(logp, old_logp, advantages, mask):
    return -(_gspo(logp, old_logp, advantages, mask) * mask.sum(-1)).mean()


def _clipped(logp, old_logp, advantages, low, high):
    ratio, a = (logp - old_logp).exp(), advantages[:, None]
    return torch.minimum(ratio * a, ratio.clamp(low, high) * a)


def clip_over_tokens(logp, old_logp, advantages, mask):
    return _mean(_clipped(logp, old_logp, advantages, 0.8, 1.27), mask)


def clip_over_answers(logp, old_logp, advantages, mask):
    each = _clipped(logp, old_logp, advantages, 0.8, 1.27)
    return -(each * mask).sum(-1).mean()


def ratio_and_leash(logp, old_logp, advantages, mask):
    z = logp - old_logp
    return _mean(z.exp() * advantages[:, None] - 0.05 * z**2, mask)


def log_prob_and_leash(logp, old_logp, advantages, mask):
    leash = 0.05 * (logp - old_logp) ** 2
    return _mean(logp * advantages[:, None] - leash, mask)


def band_of_ppo(logp, old_logp, advantages, mask):
    band = torch.tensor(1.609, dtype=logp.dtype).exp()
    gained = _clipped(logp, old_logp, advantages, 1 / band, band)
    return _mean(gained - 1e-3 * (logp - old_logp) ** 2, mask)


def band_of_kimi(logp, old_logp, advantages, mask):
    z = logp - old_logp
    gained = z.clamp(-1.609, 1.609).exp() * advantages[:, None]
    return _mean(gained - 1e-3 * z**2, mask)


MISREADINGS = [
    Misreading(
        "dppo_bounds_the_ratio",
        "DPPO's δ is PPO's ε: how far the ratio may go.",
        "δ bounds π_θ − μ. A token of probability 0.001 may grow two hundredfold, one "
        "of 0.9 may not fall to 0.69.",
        bound_on_ratio,
        bound_on_probability,
    ),
    Misreading(
        "dppo_kl_drops_what_is_far",
        "DPPO drops every token whose divergence is above δ.",
        "Only one that moves on. A token that comes back is kept, however far away.",
        far_tokens_dropped,
        tokens_moving_on_dropped,
    ),
    Misreading(
        "ipo_is_one_sided",
        "IPO is DPPO with another threshold.",
        "Its mask does not look at the sign of Â: a token that comes back is dropped "
        "too.",
        one_sided_ipo,
        ipo,
    ),
    Misreading(
        "glm5_holds_the_ratio",
        "Outside the interval GLM-5's ratio is held at the bound, as CISPO's is.",
        "It is 0 there: the token is dropped, whatever the sign of Â.",
        ratio_held,
        tokens_outside_dropped,
    ),
    Misreading(
        "vespo_takes_the_root",
        "VESPO's W is GSPO's ratio of the answer.",
        "It is the product of the tokens' ratios, without the root of the length.",
        kernel_of_mean,
        kernel_of_product,
    ),
    Misreading(
        "luspo_divides_by_length",
        "Length-unbiased means: LUSPO divides an answer's term by its length.",
        "It multiplies. The gradient of a geometric mean is divided already.",
        over_length,
        times_length,
    ),
    Misreading(
        "minirl_is_a_token_mean",
        "MiniRL has no division by a length, so it averages over all tokens.",
        "It sums over an answer's tokens and averages over answers; the mean over all "
        "tokens divides by the batch's lengths.",
        clip_over_tokens,
        clip_over_answers,
    ),
    Misreading(
        "dro_weighs_by_the_ratio",
        "DRO is the unclipped ratio with a quadratic penalty.",
        "There is no ratio: log π is weighed by Â alone, so stale tokens are not "
        "corrected, and the penalty is all that holds the policy.",
        ratio_and_leash,
        log_prob_and_leash,
    ),
    Misreading(
        "kimi_clips_as_ppo",
        "K2.5's clip is PPO's with wide bounds.",
        "PPO's min keeps what comes back. K2.5 takes the reward's gradient on both "
        "sides, whatever the sign, and leaves the way back to the penalty.",
        band_of_ppo,
        band_of_kimi,
    ),
]
