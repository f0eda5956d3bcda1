"""Misreadings of GSPO and GSPO-token: chapter 05."""

from course.kit.misreading import Misreading
from course.kit.plain import clipped, mean_of_rows, sequence_ratio

LOW, HIGH = 3e-4, 4e-4
"""The paper's ε_low and ε_high (2507.18071, §5.1)."""


def gspo(logp, old_logp, advantages, mask):
    """−(1/B) Σ_i min(s_i Â_i, clip(s_i) Â_i) (Eq. 5)."""
    s = sequence_ratio(logp, old_logp, mask)
    return -clipped(s, advantages[:, None], LOW, HIGH).mean()


def gspo_token(logp, old_logp, advantages, mask):
    """s_{i,t} = sg[s_i] · π_θ(o_{i,t}) / sg[π_θ(o_{i,t})] (Eq. 14); Â is (B, T)."""
    s = sequence_ratio(logp, old_logp, mask).detach()
    s = s * (logp - logp.detach()).exp()
    return -mean_of_rows(clipped(s, advantages, LOW, HIGH), mask)


MISREADINGS = [
    Misreading(
        "gspo_without_root",
        "GSPO's ratio is the ratio of the two likelihoods of a response.",
        "It is its |o|-th root, the geometric mean of the token ratios. Without the "
        "root its spread grows with length, and ε = 3e-4 clips nearly everything.",
        {
            "sequence_ratio(logp, old_logp, mask)": (
                "((logp - old_logp) * mask).sum(-1, keepdim=True).exp()"
            )
        },
        gspo,
    ),
    Misreading(
        "gspo_token_of_whole_ratio",
        "GSPO-token's ratio is s_{i,t} = sg[s_i] · s_i / sg[s_i].",
        "It is sg[s_i] · π_θ(o_t) / sg[π_θ(o_t)]. The other form is just GSPO again: "
        "each token pushes all tokens, and its own advantage is averaged away.",
        {".detach()\n": "\n", "s * (logp - logp.detach()).exp()": "s.expand_as(mask)"},
        gspo_token,
    ),
    Misreading(
        "gspo_at_token_epsilon",
        "GSPO is GRPO with another ratio; ε = 0.2 stays.",
        "A mean over |o| log-ratios is far narrower than one of them: at ε = 0.2 a "
        "long response is practically never clipped. The paper has 3e-4 and 4e-4.",
        {", LOW, HIGH": ""},
        gspo,
    ),
]
