"""Misreadings of GSPO and GSPO-token: chapter 05."""

from course.kit.misreading import Misreading
from course.kit.plain import clipped, mean_of_rows, sequence_ratio

LOW, HIGH = 3e-4, 4e-4
"""The paper's ε_low and ε_high (2507.18071, §5.1)."""


def gspo(logp, old_logp, advantages, mask):
    """−(1/B) Σ_i min(s_i Â_i, clip(s_i) Â_i) (Eq. 5)."""
    s = sequence_ratio(logp, old_logp, mask)
    return -clipped(s, advantages[:, None], LOW, HIGH).mean()


def gspo_without_root(logp, old_logp, advantages, mask):
    """The same with s_i = exp(Σ_t z_{i,t}): the ratio of the likelihoods as it is."""
    s = ((logp - old_logp) * mask).sum(-1, keepdim=True).exp()
    return -clipped(s, advantages[:, None], LOW, HIGH).mean()


def gspo_at_token_epsilon(logp, old_logp, advantages, mask):
    """GSPO with GRPO's ε = 0.2 on both sides."""
    s = sequence_ratio(logp, old_logp, mask)
    return -clipped(s, advantages[:, None]).mean()


def gspo_token(logp, old_logp, advantages, mask):
    """s_{i,t} = sg[s_i] · π_θ(o_{i,t}) / sg[π_θ(o_{i,t})] (Eq. 14); Â is (B, T)."""
    s = sequence_ratio(logp, old_logp, mask).detach()
    s = s * (logp - logp.detach()).exp()
    return -mean_of_rows(clipped(s, advantages, LOW, HIGH), mask)


def gspo_token_of_whole_ratio(logp, old_logp, advantages, mask):
    """s_{i,t} = sg[s_i] · s_i / sg[s_i]: every token has the gradient of all."""
    s = sequence_ratio(logp, old_logp, mask)
    s = (s.detach() * s / s.detach()).expand_as(mask)
    return -mean_of_rows(clipped(s, advantages, LOW, HIGH), mask)


MISREADINGS = [
    Misreading(
        "gspo_without_root",
        "GSPO's ratio is the ratio of the two likelihoods of a response.",
        "It is its |o|-th root, the geometric mean of the token ratios. Without the "
        "root its spread grows with length, and ε = 3e-4 clips nearly everything.",
        gspo_without_root,
        gspo,
    ),
    Misreading(
        "gspo_token_of_whole_ratio",
        "GSPO-token's ratio is s_{i,t} = sg[s_i] · s_i / sg[s_i].",
        "It is sg[s_i] · π_θ(o_t) / sg[π_θ(o_t)]. The other form is just GSPO again: "
        "each token pushes all tokens, and its own advantage is averaged away.",
        gspo_token_of_whole_ratio,
        gspo_token,
    ),
    Misreading(
        "gspo_at_token_epsilon",
        "GSPO is GRPO with another ratio; ε = 0.2 stays.",
        "A mean over |o| log-ratios is far narrower than one of them: at ε = 0.2 a "
        "long response is practically never clipped. The paper has 3e-4 and 4e-4.",
        gspo_at_token_epsilon,
        gspo,
    ),
]
