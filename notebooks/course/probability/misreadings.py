"""Misreadings of masks and of the methods that look at a probability: chapter 16.

Those of the methods are losses of (logp, old_logp, advantages, mask), advantages (B,).
"""

import torch

from course.kit.misreading import Misreading
from course.kit.plain import token_mean


def share_of_tokens(kept, push):
    """How many tokens the mask drops; `kept` is 1 or 0, `push` is |w r Â|."""
    return 1 - kept.mean()


def share_of_push(kept, push):
    """How much of the push the mask takes."""
    return (push * (1 - kept)).sum() / push.sum()


def _masked(kept, logp, old_logp, advantages, mask):
    """CISPO's form: a constant ratio times log π, for the tokens that are kept."""
    ratio = (logp - old_logp).exp().clamp(max=20).detach()
    return -token_mean(kept * ratio * advantages[:, None] * logp, mask)


def bound_on_probability(logp, old_logp, advantages, mask):
    up, moved = advantages[:, None] > 0, logp.exp() - old_logp.exp()
    kept = torch.where(up, moved <= 0.2, moved >= -0.2)
    return _masked(kept, logp, old_logp, advantages, mask)


def _binary_kl(logp, mu):
    others = (1 - logp.exp()).clamp(min=0) + 1e-8
    rest = (1 - mu.exp()) * ((1 - mu.exp() + 1e-8) / others).log()
    return mu.exp() * (mu - logp) + rest


def tokens_moving_on_dropped(logp, old_logp, advantages, mask):
    back = (logp - old_logp) * advantages[:, None] <= 0
    kept = (_binary_kl(logp, old_logp) <= 0.05) | back
    return _masked(kept, logp, old_logp, advantages, mask)


def ipo(logp, old_logp, advantages, mask):
    kept = (logp.exp() - old_logp.exp()).abs() <= 0.3
    return -token_mean(kept * (logp - old_logp).exp() * advantages[:, None], mask)


def ratio_held(logp, old_logp, advantages, mask):
    ratio = (logp - old_logp).exp().clamp(0.8, 1.2).detach()
    return -token_mean(ratio * advantages[:, None] * logp, mask)


def tokens_outside_dropped(logp, old_logp, advantages, mask):
    ratio = (logp - old_logp).exp().detach()
    kept = (ratio > 0.8) & (ratio < 1.2)
    return _masked(kept, logp, old_logp, advantages, mask)


def within_epsilon_of_one(ratio, low, high):
    """Kept, with ε as the distance from 1 (2607.07508, 2602.15763)."""
    return (ratio > 1 - low) & (ratio < 1 + high)


def log_prob_and_leash(logp, old_logp, advantages, mask):
    leash = 0.05 * (logp - old_logp) ** 2
    return -token_mean(logp * advantages[:, None] - leash, mask)


def band_of_ppo(logp, old_logp, advantages, mask):
    z, a = logp - old_logp, advantages[:, None]
    gained = torch.minimum(z.exp() * a, z.clamp(-1.609, 1.609).exp() * a)
    return -token_mean(gained - 1e-3 * z**2, mask)


def band_of_kimi(logp, old_logp, advantages, mask):
    z = logp - old_logp
    gained = z.clamp(-1.609, 1.609).exp() * advantages[:, None]
    return -token_mean(gained - 1e-3 * z**2, mask)


MISREADINGS = [
    Misreading(
        "mask_share_is_gradient_share",
        "The mask drops 2 % of the tokens, so it takes 2 % of the gradient.",
        "It drops the tokens that move, which carry most of the gradient. Weight the "
        "dropped tokens by their push, and look at which ones they are.",
        share_of_tokens,
        share_of_push,
    ),
    Misreading(
        "dppo_bounds_the_ratio",
        "DPPO's δ is PPO's ε: how far the ratio may go.",
        "δ bounds π_θ − μ. A token of probability 0.001 may grow two hundredfold, one "
        "of 0.9 may not fall to 0.69.",
        {"logp.exp() - old_logp.exp()": "(logp - old_logp).exp() - 1"},
        bound_on_probability,
    ),
    Misreading(
        "dppo_kl_drops_what_is_far",
        "DPPO drops every token whose divergence is above δ.",
        "It drops only tokens that move on. A token that comes back is kept, however "
        "far away it is.",
        {" | back": ""},
        tokens_moving_on_dropped,
    ),
    Misreading(
        "ipo_is_one_sided",
        "IPO is DPPO with another threshold.",
        "Its mask does not look at the sign of Â: a token that comes back is dropped "
        "too.",
        {
            "(logp.exp() - old_logp.exp()).abs()": (
                "(logp.exp() - old_logp.exp()) * advantages[:, None].sign()"
            )
        },
        ipo,
    ),
    Misreading(
        "glm5_holds_the_ratio",
        "Outside the interval GLM-5's ratio is held at the bound, as CISPO's is.",
        "The ratio is set to 0 there: the token is dropped regardless of the sign of "
        "Â.",
        ratio_held,
        tokens_outside_dropped,
    ),
    Misreading(
        "sao_epsilon_is_a_ratio",
        "SAO's 0.3 and 5 keep ratios from 0.3 to 5.",
        "They are distances from 1: 0.7 to 6, for reasoning. For code, 0.8 and 3 keep "
        "ratios from 0.2 to 4.",
        {"1 - low": "low", "1 + high": "high"},
        within_epsilon_of_one,
    ),
    Misreading(
        "dro_weighs_by_the_ratio",
        "DRO is the unclipped ratio with a quadratic penalty.",
        "There is no ratio: log π is weighted by Â alone, so stale tokens are not "
        "corrected, and only the penalty holds the policy back.",
        {"logp * adv": "(logp - old_logp).exp() * adv"},
        log_prob_and_leash,
    ),
    Misreading(
        "kimi_clips_as_ppo",
        "K2.5's clip is PPO's with wide bounds.",
        "PPO's min keeps what comes back. K2.5 removes the reward's gradient on both "
        "sides for both signs, and leaves it to the penalty to bring the token back.",
        band_of_ppo,
        band_of_kimi,
    ),
]
