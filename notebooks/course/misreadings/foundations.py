"""Misreadings of what every method shares, of PPO and of GRPO: chapters 01 to 03."""

import math

import torch

from course.misreadings.base import Misreading

EPSILON = 0.2


def clipped(r, advantage):
    """min(r A, clip(r, 1−ε, 1+ε) A): PPO's objective (1707.06347, Eq. 7)."""
    inside = r.clamp(1 - EPSILON, 1 + EPSILON)
    return torch.minimum(r * advantage, inside * advantage)


def clipped_on_wrong_sides(r, advantage):
    """min(r A, clip(r) A) where A ≥ 0, but max(…) where A < 0."""
    plain, inside = r * advantage, r.clamp(1 - EPSILON, 1 + EPSILON) * advantage
    worst, best = torch.minimum(plain, inside), torch.maximum(plain, inside)
    return torch.where(advantage >= 0, worst, best)


def clipped_without_min(r, advantage):
    """clip(r, 1−ε, 1+ε) A: flat on both sides for both signs."""
    return r.clamp(1 - EPSILON, 1 + EPSILON) * advantage


def ratios_after_updates(advantages, steps=400, learning_rate=0.02, momentum=0.0):
    """π_θ/π_old of V tokens after `steps` updates of one clipped loss.

    One uniform categorical over V tokens, each sampled once with its own advantage.
    """
    logits = torch.zeros_like(advantages, requires_grad=True)
    old_logp = logits.detach().log_softmax(-1)
    optimizer = torch.optim.SGD([logits], lr=learning_rate, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        r = (logits.log_softmax(-1) - old_logp).exp()
        (-clipped(r, advantages).mean()).backward()
        optimizer.step()
    return (logits.detach().log_softmax(-1) - old_logp).exp()


def ratios_if_clipping_bounded_them(advantages, **settings):
    """What "the ratio is kept within [1−ε, 1+ε]" would make of the same updates."""
    return ratios_after_updates(advantages, **settings).clamp(1 - EPSILON, 1 + EPSILON)


def _mean_of_rows(per_token, mask):
    """(1/B) Σ_i (1/|o_i|) Σ_t."""
    return ((per_token * mask).sum(-1) / mask.sum(-1)).mean()


def loss_with_stored_old_logp(logp, old_logp, advantages, mask):
    """GRPO's loss with r_t = π_θ(o_t)/π_old(o_t), π_old as it was at the rollout."""
    r = (logp - old_logp).exp()
    return -_mean_of_rows(clipped(r, advantages[:, None]), mask)


def loss_with_recomputed_old_logp(logp, old_logp, advantages, mask):
    """The same with "π_old" taken from the current model: r ≡ 1 at every update."""
    return loss_with_stored_old_logp(logp, logp.detach(), advantages, mask)


def loss_with_summed_log_ratio(logp, old_logp, advantages, mask):
    """r = exp(Σ_t (log π_θ − log π_old)): the whole response as one ratio."""
    z = ((logp - old_logp) * mask).sum(-1, keepdim=True)
    return -_mean_of_rows(clipped(z.exp(), advantages[:, None]).expand_as(mask), mask)


def k3_swapped(logp, ref_logp):
    """π_θ/π_ref − log(π_θ/π_ref) − 1, on samples of π_θ."""
    return (logp - ref_logp).exp() - (logp - ref_logp) - 1


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
    kl = _mean_of_rows(old_logp - logp, mask)
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


def expected_k1_loss(logp, ref_logp):
    """Σ_a sg[π_θ(a)] log(π_θ/π_ref): its gradient is Σ_a ∇π_θ(a) = 0."""
    return (logp.exp().detach() * (logp - ref_logp)).sum()


def expected_k2_loss(logp, ref_logp):
    """Σ_a sg[π_θ(a)] ½ log²(π_θ/π_ref): its gradient is ∇KL(π_θ‖π_ref)."""
    return (logp.exp().detach() * (logp - ref_logp) ** 2 / 2).sum()


def mask_before_eos(tokens, eos):
    """1 on tokens with no EOS up to and including them."""
    return ((tokens == eos).cumsum(-1) == 0).float()


def mask_through_eos(tokens, eos):
    """1 on tokens with no EOS *before* them, so that the EOS itself is learned."""
    ends = (tokens == eos).long()
    return (ends.cumsum(-1) - ends == 0).float()


MISREADINGS = [
    Misreading(
        "clip_on_wrong_sides",
        "Clipping takes the min for A ≥ 0 and the max for A < 0.",
        "Take the min for both signs: it is the more pessimistic of two objectives.",
        clipped_on_wrong_sides,
        clipped,
    ),
    Misreading(
        "clip_without_min",
        "PPO's objective is clip(r, 1−ε, 1+ε) A.",
        "Without the min, a bad token that rose above 1+ε or a good one that fell "
        "below 1−ε gets no gradient back. The clip is one-sided.",
        clipped_without_min,
        clipped,
    ),
    Misreading(
        "ratio_is_bounded",
        "Clipping keeps the ratio within [1−ε, 1+ε].",
        "It removes the reward for going further. Because other tokens share the "
        "parameters, and because of momentum, the ratio moves on all the same.",
        ratios_if_clipping_bounded_them,
        ratios_after_updates,
    ),
    Misreading(
        "recomputed_old_logp",
        "π_old is the model at the start of each update.",
        "π_old is the model that sampled. Recomputed in the mini-batch loop it makes "
        "every ratio 1, the clip inert, and stale data silently on-policy.",
        loss_with_recomputed_old_logp,
        loss_with_stored_old_logp,
    ),
    Misreading(
        "summed_log_ratio",
        "A response's ratio is the exponential of its summed log-ratios.",
        "GRPO's ratio belongs to a token. The sum grows with the length: ten tokens at "
        "1.05 give 1.63 and are clipped, though no token is near its bound.",
        loss_with_summed_log_ratio,
        loss_with_stored_old_logp,
    ),
    Misreading(
        "swapped_kl",
        "k3 = π_θ/π_ref − log(π_θ/π_ref) − 1.",
        "π_ref is on top. Swapped, the mean under π_θ is χ² − KL, which is no KL.",
        k3_swapped,
        k3,
    ),
    Misreading(
        "mean_of_means",
        "The mean of the micro-batches' token means is the token mean.",
        "Only if all hold equally many tokens: divide by the whole batch's count.",
        mean_of_micro_batch_means,
        mean_over_the_whole_batch,
    ),
    Misreading(
        "grpo_as_kl",
        "GRPO minimises KL(π_old‖π_θ) − R̄ A.",
        "GRPO has a ratio, a clip and an advantage for each response. The formula's "
        "only gradient is the KL's, which raises every sampled token, whatever it "
        "was paid.",
        grpo_as_kl_minus_reward,
        grpo,
    ),
    Misreading(
        "std_upweights_extremes",
        "Dividing by the std upweights easy and impossible prompts.",
        "A group of equal rewards counts exactly 0. Uneven groups gain a factor of "
        "1/√(p(1−p)) over no std, and still weigh less than even ones.",
        boost_of_the_std,
        total_advantage,
    ),
    Misreading(
        "k1_as_a_loss",
        "k1 is unbiased, so adding β k1 to the loss pulls towards π_ref.",
        "Its value is unbiased, but its expected gradient is 0. That of k2 is "
        "∇KL(π_θ‖π_ref).",
        expected_k1_loss,
        expected_k2_loss,
    ),
    Misreading(
        "mask_without_eos",
        "EOS is not text, so the mask ends before it.",
        "Stopping is an action: without EOS in the mask the policy never learns when.",
        mask_before_eos,
        mask_through_eos,
    ),
]
