"""Advantages: how much better a response, or a token, was than expected.

An estimator is a function of one argument, `Scored`, which holds everything that an
advantage may depend on. It returns (B,), copied to every token, or (B, T).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from refimpl.importance import Mask
from refimpl.validation import (
    Share,
    UserError,
    check_finite,
    checked,
    guarded,
    shown,
)


@checked
class Scored:
    """B responses with their rewards.

    `rewards`: (B,), one number per response, or (B, T), one per token. In a run they
    are always per token, with a response's reward on its last one and a KL in the
    reward on all; `total` is each response's sum. `group`: rows with the same id answer
    the same prompt; ids are any integers, in any order, and groups may differ in size.
    `mask`: 1 on response tokens. `values`: a critic's, in reward units. `gamma` and
    `lam`: γ and λ of GAE; λ may be one number per response, from `lam_by_length`.
    `components`: the parts of the reward, and their `weights` in it (None: 1 each).
    `logp` and `teacher_logp`: log π_old and log π_T of the tokens, with a teacher π_T,
    nats. For answers of several turns, `states` numbers the state before each turn (−1:
    there is no such turn), and `state_scores` rates the states before and after each
    turn; see `refimpl.turns`.
    """

    rewards: Real[Tensor, " B"] | Real[Tensor, "B T"]
    group: Int[Tensor, " B"]
    mask: Mask | None = None
    values: Float[Tensor, "B T"] | None = None
    gamma: Share = 1.0
    lam: Share | Float[Tensor, " B"] = 0.95
    components: Real[Tensor, "B K"] | None = None
    weights: Sequence[float] | None = None
    logp: Float[Tensor, "B T"] | None = None
    teacher_logp: Float[Tensor, "B T"] | None = None
    states: Int[Tensor, "B n"] | None = None
    state_scores: Float[Tensor, "B m"] | None = None

    def __post_init__(self):
        if self.rewards.ndim == 2 and self.mask is None:
            raise UserError(
                f"rewards {tuple(self.rewards.shape)} are one per token, which needs "
                "mask=…; for one per response, hand in rewards.flatten()"
            )
        given = {n: getattr(self, n) for n in ("mask", "rewards", "values")}
        check_finite({name: x for name, x in given.items() if x is not None})

    @property
    def total(self) -> Float[Tensor, " B"]:
        """The reward of each response, as a float."""
        dtype = torch.promote_types(self.rewards.dtype, torch.float32)
        rewards = self.rewards.to(dtype)
        return rewards if rewards.ndim == 1 else rewards.sum(-1)


def token_rewards(
    paid: Real[Tensor, " B"], mask: Mask, penalty: Float[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T"]:
    """r_t = 1[t = last] · paid − penalty_t, detached; all 0 for an empty row.

    `paid` is each response's reward. In the RLHF form of PPO
    (openai/lm-human-preferences), with the KL in the reward, `penalty` is
    β (log π_old − log π_ref), with β in reward units per nat. It is constant over the
    updates of one rollout. The mask may have holes.
    """
    response = mask.bool()
    left = response.int().flip(-1).cumsum(-1).flip(-1)  # response tokens from here on
    rewards = (response & (left == 1)) * paid[:, None]
    if penalty is not None:
        rewards = rewards - torch.where(response, penalty, 0.0)
    return rewards.detach()


def group_relative(scored: Scored, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Â_i = (R_i − mean R) / (std R + eps). GRPO (2402.03300), §4.1.2.

    The paper states neither the std's degrees of freedom nor eps. Code in the field
    uses the sample std (ddof = 1), as here, with eps 1e-6 (verl), 1e-4 (TRL) or 1e-8
    (Oat). A group whose rewards are all equal gets exactly 0, not rounding noise
    divided by eps.

    Raises `UserError` if a group has fewer than two responses.
    """
    centred, size = group_centred(scored), group_size(scored.group)
    variance = group_sum(centred**2, scored.group) / (size - 1)
    return centred / (variance.sqrt() + eps)


@guarded
def group_centred(scored: Scored, weight: Tensor | None = None) -> Float[Tensor, " B"]:
    """Ã_i = R_i − mean R, weighted or not, without the std. Dr. GRPO (2503.20783).

    Raises `UserError` if a group has fewer than two responses.
    """
    rewards, group = scored.total, scored.group
    size = group_size(group)
    if (size < 2).any():
        raise UserError(
            "a group baseline needs at least 2 responses to the same prompt, but "
            f"group {group[size < 2].min().item()} has 1; sample with group_size ≥ 2"
        )
    weight = torch.ones_like(rewards) if weight is None else weight
    centred = rewards - group_sum(weight * rewards, group) / group_sum(weight, group)
    # The float mean of n equal numbers need not be that number, so compare instead.
    return torch.where(all_equal(rewards, group), 0.0, centred)


def leave_one_out(scored: Scored) -> Float[Tensor, " B"]:
    """A_i = R_i − mean_{j≠i} R_j = G/(G−1) · (R_i − mean R). RLOO (2402.14740).

    The baseline does not contain R_i, so it adds no bias.

    Raises `UserError` if a group has fewer than two responses.
    """
    size = group_size(scored.group).to(scored.total)
    return group_centred(scored) * (size / (size - 1))


def leave_one_out_std(scored: Scored, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Â_i = (R_i − mean_{j≠i} R_j) / (std_{j≠i} R_j + eps): NeMo-RL's default for GRPO.

    The std has ddof 1. Where the other rewards are equal, the numerator stays as it is.
    The advantages of a group need not add up to 0: for R = 1, 0, 0, 0 they are 1 and
    −0.577.
    """
    rewards, group, centred = scored.total, scored.group, leave_one_out(scored)
    others = (group[:, None] == group).fill_diagonal_(False)
    # Each row compares its own others with their mean.
    apart = torch.where(others, rewards - (rewards - centred)[:, None], 0.0)
    variance = (apart**2).sum(1) / (others.sum(1) - 1).clamp(min=1)
    least = torch.where(others, rewards, torch.inf).amin(1)
    equal = least == torch.where(others, rewards, -torch.inf).amax(1)
    return centred / torch.where(equal, 1.0, variance.sqrt() + eps)


def opo(scored: Scored) -> Float[Tensor, " B"]:
    """A_i = R_i − Σ_j |o_j| R_j / Σ_j |o_j|. OPO (2505.23585), as in verl 0.9.1: the
    baseline of least variance, if ‖∇log π(o)‖² is proportional to |o|."""
    length = needed(scored, "mask").to(scored.total).sum(-1)
    nothing = group_sum(length, scored.group) == 0  # then weights are equal
    return group_centred(scored, torch.where(nothing, 1.0, length))


def batch_std(scored: Scored, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Â_i = (R_i − mean_group R) / (std_batch R + eps), by the std of all rewards.
    Lite PPO (2508.08221); TRL's `scale_rewards="batch"` has eps 1e-4."""
    return group_centred(scored) / (scored.total.std() + eps)


def std_of_advantages(scored: Scored, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Â_i = A_i / (std_batch A + eps), A_i = R_i − mean_group R. ScaleRL (2510.13786),
    §4. This std is below `batch_std`'s if groups differ. ddof and eps are ours."""
    centred = group_centred(scored)
    return centred / (centred.std() + eps)


@guarded
def batch_centred(scored: Scored) -> Float[Tensor, " B"]:
    """Â_i = R_i − mean_batch R. FlashREINFORCE (Hu et al. 2026), for one or more
    responses per prompt.

    The mean contains R_i. That of the N − 1 others would give N/(N − 1) times as much.
    """
    # The constant makes equal rewards exactly 0, and cancels in any case.
    apart = scored.total - scored.total[0]
    return apart - apart.mean()


def reinforce_plus_plus(scored: Scored) -> Float[Tensor, "B T"]:
    """Â_t = whiten(Σ_{u≥t} r_u), over all response tokens of the batch. REINFORCE++
    (2501.03262, Eq. 8–10), for one or more responses per prompt. A KL in the reward
    counts for its token and the tokens before it, as in the paper. `whiten` has ddof 0
    and adds 1e-8 to the variance. verl 0.9.1 has ddof 1: for R = 1, 0, 0, 0 with three
    tokens each it gives 1.6583 and −0.5528, and this function 1.7321 and −0.5774."""
    paid = scored.rewards.to(scored.total).view(len(scored.rewards), -1)
    to_go = paid.flip(-1).cumsum(-1).flip(-1)
    # The constant makes equal returns exactly 0. Whitening removes it in any case.
    return whiten(to_go - to_go[0, 0], needed(scored, "mask"))


def reinforce_plus_plus_baseline(scored: Scored) -> Float[Tensor, "B T"]:
    """Â = whiten(R − mean_group R), over all response tokens of the batch. REINFORCE++
    with a baseline (2501.03262), whose KL is k2 in the loss. If responses differ in
    length, the mean that whitening subtracts is not 0, and a group with equal rewards
    gets Â ≠ 0.

    Raises `UserError` if a group has fewer than two responses.
    """
    return whiten(group_centred(scored)[:, None], needed(scored, "mask"))


def maxrl(scored: Scored) -> Float[Tensor, " B"]:
    """Â_i = (R_i − mean R) / mean R, 0 unless mean R > 0. MaxRL (2602.02710), prime-rl.
    For rewards ≥ 0: a mean near 0 makes Â large. For R in {0, 1} it follows
    Σ_{k<G−1} (1−p)^k ∇p, the first terms of ∇log p."""
    centred = group_centred(scored)
    mean = group_sum(scored.total, scored.group) / group_size(scored.group)
    none = (mean <= 0) & centred.isfinite()
    return torch.where(none, 0.0, centred / mean.where(~none, 1.0))


def gdpo(scored: Scored, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Â = A / (std_batch A + eps),  A = Σ_k w_k group_relative(R_k). GDPO (2601.05242).

    The std is over responses, as in the paper and TRL; their mean is already 0. verl
    takes std and mean over tokens. Raises `UserError` if the reward has no components,
    or one of them is None for some response.
    """
    if scored.components is None:
        raise UserError(
            "advantage='gdpo' needs a reward with components, such as "
            "refimpl.pretrained.rewards.Sum"
        )
    if scored.components.isnan().any():
        raise UserError(
            "gdpo compares every reward component, but one returned None; return a "
            "number"
        )
    columns = scored.components.unbind(-1)
    parts = [group_relative(replace(scored, rewards=x), eps) for x in columns]
    weights = parts[0].new_tensor(scored.weights or [1.0] * len(parts))
    total = torch.stack(parts, -1) @ weights
    return total / (total.std() + eps)


def distillation(scored: Scored) -> Float[Tensor, "B T"]:
    """Â_t = log π_T − log π_old of each sampled token, without a reward.

    Its expectation is −KL(π‖π_T), and Σ Â ∇log π descends this reverse KL: on-policy
    distillation, as in MOPD (2601.02780, Eq. 8). A constant added to log π_T is not
    harmless, since there is no baseline.
    """
    apart = needed(scored, "teacher_logp") - needed(scored, "logp")
    return torch.where(needed(scored, "mask").bool(), apart.detach(), 0.0)


@guarded
def with_teacher(estimator: Callable, weight: float = 1.0) -> Callable:
    """Return an estimator of Â + weight · (log π_T − log π_old), token by token.

    slime (`--use-opd`) and ms-swift have this. It is for methods without a critic.
    """

    def advantages(scored: Scored) -> Float[Tensor, "B T"]:
        plain = estimator(scored)
        plain = plain[:, None] if plain.ndim == 1 else plain
        total = plain + weight * distillation(scored)
        return torch.where(needed(scored, "mask").bool(), total, 0.0)

    return advantages


def gae(scored: Scored) -> Float[Tensor, "B T"]:
    """Generalised advantage estimation (1506.02438, Eq. 16).

        Â_t = Σ_l (γλ)^l δ_{t+l},   δ_t = r_t + γ V_{t+1} − V_t

    V after the last response token is 0: the episode ends there, even if the response
    was truncated. t + 1 is the next *response* token, so holes in the mask are skipped.
    λ = 1 telescopes to return − V; λ = 0 is δ. The critic's targets are Â + V. The
    result is detached. Raises `UserError` if rewards are not one per token.
    """
    response = needed(scored, "mask").bool()
    if scored.rewards.shape != response.shape:  # (B, 1) would broadcast
        raise UserError(
            f"gae needs a reward per token, {tuple(response.shape)}, as token_rewards "
            f"makes them, got {tuple(scored.rewards.shape)}"
        )
    rewards = torch.where(response, scored.rewards.detach(), 0.0)
    values = torch.where(response, needed(scored, "values").detach(), 0.0)
    advantages = torch.zeros_like(values)
    following = value_after = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + scored.gamma * value_after - values[:, t]
        here = delta + scored.gamma * scored.lam * following
        following = torch.where(response[:, t], here, following)
        value_after = torch.where(response[:, t], values[:, t], value_after)
        advantages[:, t] = here * response[:, t]
    return advantages


def lam_by_length(mask: Mask, alpha: float) -> Float[Tensor, " B"]:
    """λ = 1 − 1/(α l) for a response of l tokens, and 0 where α l < 1. VAPO
    (2504.05118) has α = 0.05: λ is 0 up to l = 20. SAO (2607.07508) has 1.5."""
    return 1 - 1 / (alpha * mask.sum(-1).float()).clamp(min=1)


@guarded
def needed(scored: Scored, name: str) -> Tensor:
    """Return an optional field of `scored`; `UserError` if it was not given."""
    if getattr(scored, name) is None:
        raise UserError(
            f"this advantage needs {name}: give Scored(…, {name}=…), or in a run what "
            "makes it: a teacher, a critic, or a task with turns"
        )
    return getattr(scored, name)


def check_estimate(estimate: Any, mask: Mask, whose: str) -> None:
    """Raise `UserError` unless an estimate is finite, per response or per token."""
    shapes = mask.shape, mask.shape[:1]
    fits = isinstance(estimate, Tensor) and estimate.shape in shapes
    if not (fits and estimate.isfinite().all()):
        raise UserError(
            f"{whose} must be {len(mask)} finite numbers, one per response, or "
            f"{tuple(mask.shape)}, one per token, in a tensor; got {shown(estimate)}"
        )


def whiten(advantages: Float[Tensor, "B _"], mask: Mask) -> Float[Tensor, "B T"]:
    """Shift and scale to mean 0 and std 1 over all response tokens; 0 elsewhere.

    The RLHF form of PPO whitens over the batch (openai/lm-human-preferences).
    """
    response = mask.bool()
    count = response.sum().clamp(min=1)  # an int: half precision is too small
    mean = torch.where(response, advantages, 0.0).sum() / count
    centred = torch.where(response, advantages - mean, 0.0)
    return centred / ((centred**2).sum() / count + 1e-8).sqrt()


def group_sum(x: Real[Tensor, " B"], group: Int[Tensor, " B"]) -> Real[Tensor, " B"]:
    """Return Σ x over the group of each row."""
    ids, index = group.unique(return_inverse=True)
    return x.new_zeros(len(ids)).index_add(0, index, x)[index]


def group_size(group: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the number of responses in the group of each row."""
    return group_sum(torch.ones_like(group), group)


def all_equal(x: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> Tensor:
    """Return a bool per row: True if `x` is the same throughout the row's group."""
    ids, index = group.unique(return_inverse=True)
    first = x.new_zeros(len(ids)).scatter(0, index, x)[index]  # any one of the group
    return group_sum((x != first).int(), group) == 0


CRITIC_FREE: dict[str | None, Callable] = {
    "grpo": group_relative,
    "dr_grpo": group_centred,
    "rloo": leave_one_out,
    "leave_one_out_std": leave_one_out_std,
    **{f.__name__: f for f in (opo, batch_std, std_of_advantages, maxrl, gdpo)},
    "batch_centred": batch_centred,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
"""The estimators that compare rewards alone."""
SINGLE = reinforce_plus_plus, batch_centred, distillation
"""The estimators that need no second response to a prompt."""
NAMED = CRITIC_FREE | {"gae": gae, "distillation": distillation}
"""The estimators that `TrainConfig.advantage` names."""


@dataclass(frozen=True)
class PerToken:
    """Advantages per token: those of a response are copied to its tokens.

    Also returns the targets and metrics of a critic: there is none.
    """

    estimator: Callable[[Scored], Tensor]
    whose: str = "the advantages"  # for an error message

    def __call__(self, scored: Scored) -> tuple[Tensor, None, dict]:
        estimate = self.estimator(scored)
        check_estimate(estimate, scored.mask, self.whose)
        estimate = estimate.to(scored.mask.dtype)
        if estimate.ndim == 1:
            estimate = estimate[:, None].expand_as(scored.mask)
        return estimate, None, {}


@dataclass(frozen=True)
class WithCritic:
    """Advantages of `estimate`, a critic's targets, and how well it predicts.

    The targets come before whitening, because a critic predicts raw returns. With
    `lam_critic` = 1 they are the returns, however wrong V is.
    """

    estimate: PerToken
    lam_critic: float | None = None
    whiten: bool = True

    def __call__(self, scored: Scored) -> tuple[Tensor, Tensor, dict]:
        def target(lam: float) -> Tensor:
            return gae(replace(scored, lam=lam)) + scored.values

        estimate, _, _ = self.estimate(scored)
        targets = estimate + scored.values
        if self.lam_critic is not None:
            targets = target(self.lam_critic)
        known = explained_variance(scored.values, target(1.0), scored.mask)
        if self.whiten:
            estimate = whiten(estimate, scored.mask)
        return estimate, targets, {"explained_var": known}


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """Return 1 − Var(R − V)/Var R over response tokens; None if all R are equal.

    1: the critic predicts every return R; 0: it predicts no better than their mean.
    """
    v, r = (x[mask.bool()].double() for x in (values, returns))
    if (r == r[0]).all():
        return None
    return (1 - (r - v).var() / r.var()).item()
