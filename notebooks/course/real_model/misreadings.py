"""Misreadings of pretrained models and their habits: chapter 13."""

import math

import torch

from course.kit.misreading import Misreading


def mask_without_padding(tokens, eos):
    """1 where the token is not padding, and padding is EOS; tokens (T,)."""
    return (tokens != eos).int()


def mask_through_eos(tokens, eos):
    """1 through the first EOS, 0 after it."""
    earlier = (tokens == eos).cumsum(-1) - (tokens == eos).int()
    return (earlier == 0).int()


def nucleus(logits, top_p):
    """Log-probs over the fewest most likely tokens with Σ p ≥ top_p; logits (V,)."""
    prob, order = logits.softmax(-1).sort(descending=True)
    beyond = order[prob.cumsum(-1) - prob >= top_p]
    return logits.index_fill(0, beyond, -torch.inf).log_softmax(-1)


def ratio_to_the_sampler(logits, old_logits, token, top_p):
    """π_θ over the truncated distribution that the token was drawn from."""
    new = logits.log_softmax(-1)[token]
    return (new - nucleus(old_logits, top_p)[token]).exp()


def ratio_to_the_policy(logits, old_logits, token, top_p):
    """π_θ / π_old, both over the whole vocabulary, however the token was drawn."""
    return (logits.log_softmax(-1)[token] - old_logits.log_softmax(-1)[token]).exp()


def pass_without_replacement(n, c, k):
    """1 − C(n−c, k) / C(n, k), Chen et al. 2021 (2107.03374), Eq. 1."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


MISREADINGS = [
    Misreading(
        "real_pad_is_eos",
        "Padding is EOS, so mask out every EOS.",
        "The EOS that ends an answer is a decision of the policy, and needs its "
        "gradient. Build the mask by position: 1 up to the first EOS, and 1 there.",
        mask_without_padding,
        mask_through_eos,
    ),
    Misreading(
        "real_sampler_is_old_policy",
        "Tokens were drawn with top_p, so their log-prob under top_p is old_logp.",
        "π_θ gives probability to all tokens. Against a distribution that was cut and "
        "renormalised its ratio is the mass that was kept, before any update.",
        ratio_to_the_sampler,
        ratio_to_the_policy,
    ),
    Misreading(
        "real_pass_with_replacement",
        "c of n answers are right, so pass@k is 1 − (1 − c/n)^k.",
        "c/n is an estimate, and a concave function of it is too low on average. "
        "Drawing k of the n without replacement is unbiased.",
        {"math.comb(n - c, k) / math.comb(n, k)": "(1 - c / n) ** k"},
        pass_without_replacement,
    ),
]
