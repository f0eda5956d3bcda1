"""Misreadings of GRPO: chapter 03."""

import math

import torch

from course.kit.misreading import Misreading
from course.kit.plain import clipped, mean_of_rows


def loss_with_stored_old_logp(logp, old_logp, advantages, mask):
    """GRPO's loss with r_t = π_θ(o_t)/π_old(o_t), π_old as it was at the rollout."""
    r = (logp - old_logp).exp()
    return -mean_of_rows(clipped(r, advantages[:, None]), mask)


def k3(logp, ref_logp):
    """π_ref/π_θ − log(π_ref/π_θ) − 1, on samples of π_θ (2402.03300, Eq. 4)."""
    return (ref_logp - logp).exp() - (ref_logp - logp) - 1


def mean_of_micro_batch_means(per_token, mask, rows):
    """The average of each micro-batch's own token mean; `rows` in a micro-batch."""
    parts = zip(per_token.split(rows), mask.split(rows), strict=True)
    return torch.stack([(x * m).sum() / m.sum() for x, m in parts]).mean()


def mean_over_the_whole_batch(per_token, mask, rows):
    """Every micro-batch divides by the token count of the *whole* batch."""
    parts = zip(per_token.split(rows), mask.split(rows), strict=True)
    return sum((x * m).sum() / mask.sum() for x, m in parts)


def grpo_as_kl_minus_reward(logp, old_logp, rewards, mask):
    """KL(π_old‖π_θ) − R̄ A on one group: nothing that A multiplies depends on θ."""
    kl = mean_of_rows(old_logp - logp, mask)
    return kl - rewards.mean() * ((rewards - rewards.mean()) / rewards.std()).mean()


def grpo(logp, old_logp, rewards, mask):
    """−(1/G) Σ_i (1/|o_i|) Σ_t min(r Â_i, clip(r) Â_i), Â = (R − mean)/std."""
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return loss_with_stored_old_logp(logp, old_logp, advantages, mask)


def boost_of_the_std(correct, size):
    """1/√(p(1−p)), the boost that dividing by the std gives, taken for the weight."""
    p = correct / size
    return math.inf if p in (0, 1) else 1 / math.sqrt(p * (1 - p))


def total_advantage(correct, size):
    """Σ_i |Â_i| = 2 √(k(G−k)(G−1)/G): largest in the middle, exactly 0 at the ends."""
    return 2 * math.sqrt(correct * (size - correct) * (size - 1) / size)


def expected_k2_loss(logp, ref_logp):
    """Σ_a sg[π_θ(a)] ½ log²(π_θ/π_ref): its gradient is ∇KL(π_θ‖π_ref)."""
    return (logp.exp().detach() * (logp - ref_logp) ** 2 / 2).sum()


MISREADINGS = [
    Misreading(
        "recomputed_old_logp",
        "π_old is the model at the start of each update.",
        "π_old is the policy before the first update. Recomputed in the loop it makes "
        "every ratio 1, the clip inert, and stale data silently on-policy.",
        {"- old_logp": "- logp.detach()"},
        loss_with_stored_old_logp,
    ),
    Misreading(
        "summed_log_ratio",
        "A response's ratio is the exponential of its summed log-ratios.",
        "GRPO's ratio belongs to a token. A product of ratios moves away with the "
        "length: ten tokens at 1.05 give 1.63 and are clipped, though no token is near "
        "its bound.",
        {
            "(logp - old_logp).exp()": (
                "((logp - old_logp) * mask).sum(-1, keepdim=True).exp().expand_as(mask)"
            )
        },
        loss_with_stored_old_logp,
    ),
    Misreading(
        "swapped_kl",
        "k3 = π_θ/π_ref − log(π_θ/π_ref) − 1.",
        "π_ref is on top. Swapped, the mean under π_θ is χ² − KL, which is no KL.",
        {"ref_logp - logp": "logp - ref_logp"},
        k3,
    ),
    Misreading(
        "mean_of_means",
        "The mean of the micro-batches' token means is the token mean.",
        "Only if all micro-batches hold equally many tokens. Divide by the whole "
        "batch's count.",
        mean_of_micro_batch_means,
        mean_over_the_whole_batch,
    ),
    Misreading(
        "grpo_as_kl",
        "GRPO minimises KL(π_old‖π_θ) − R̄ A.",
        "GRPO has a ratio, a clip and an advantage for each response. The formula's "
        "only gradient is the KL's, which raises every sampled token regardless of "
        "its reward.",
        grpo_as_kl_minus_reward,
        grpo,
    ),
    Misreading(
        "std_upweights_extremes",
        "Dividing by the std upweights easy and impossible prompts.",
        "A group of equal rewards counts exactly 0. Dividing by the std helps uneven "
        "groups most, by about 1/√(p(1−p)), but they still weigh less than even ones.",
        boost_of_the_std,
        total_advantage,
    ),
    Misreading(
        "k1_as_a_loss",
        "k1 is unbiased, so adding β k1 to the loss pulls towards π_ref.",
        "Its value is unbiased, but its expected gradient is 0. That of k2 is "
        "∇KL(π_θ‖π_ref).",
        {" ** 2 / 2": ""},
        expected_k2_loss,
    ),
]
