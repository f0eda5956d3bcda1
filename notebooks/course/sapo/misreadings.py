"""Misreadings of SAPO: chapter 10."""

import torch

from course.kit.misreading import Misreading
from course.kit.plain import mean_of_rows


def sapo(z, advantages, mask, tau_pos=1.0, tau_neg=1.05):
    """(1/G) Σ_i (1/|o_i|) Σ_t (4/τ) σ(τ(r − 1)) Â; z, advantages, mask are (B, T)."""
    tau = torch.full_like(z, tau_neg).masked_fill(advantages > 0, tau_pos)
    f = 4 / tau * torch.sigmoid(tau * (z.exp() - 1))
    return mean_of_rows(f * advantages, mask)


MISREADINGS = [
    Misreading(
        "sapo_on_sequence_ratio",
        "SAPO's gate takes the sequence ratio.",
        "It takes each token's own. Only where a response's log-ratios hardly vary is "
        "the mean of the gates close to the gate of the mean (chapter 11).",
        {
            "z.exp()": (
                "((z * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()"
            )
        },
        sapo,
    ),
    Misreading(
        "sapo_tau_scales_advantage",
        "SAPO divides advantages by τ.",
        "τ sets how fast the gate closes. On policy no gradient depends on it.",
        {"f * adv": "z.exp() / tau * adv"},
        sapo,
    ),
    Misreading(
        "sapo_taus_exchanged",
        "τ_neg < τ_pos: bad tokens get the gentler gate.",
        "τ_neg > τ_pos: 1.05 against 1.0, so the gate of bad tokens is the narrower "
        "one. The paper's reason is that pushing a token down lifts all others, which "
        "is not intended.",
        {"advantages > 0": "advantages <= 0"},
        sapo,
    ),
]
