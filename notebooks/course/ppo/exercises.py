"""Exercises of chapter 02: the gate, critic and GAE, KL, value loss, a bug."""

import torch

from course.kit.exercise import Exercise


def clip_gate(r, advantage, epsilon):
    """Closed in case 3 (Â > 0, r above 1+ε) and case 4 (Â < 0, r below 1−ε)."""
    risen = (advantage > 0) & (r > 1 + epsilon)
    fallen = (advantage < 0) & (r < 1 - epsilon)
    return (~(risen | fallen)).float()


def cut_off_gae(rewards, values, mask, last_value, gamma, lam):
    """Backwards: Â_t = δ_t + γλ Â_{t+1}; padding leaves `last_value` as it is."""
    result = torch.zeros_like(values)
    next_value, next_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (delta + gamma * lam * next_advantage) * mask[:, t]
        next_value = torch.where(mask[:, t] > 0, values[:, t], next_value)
        result[:, t] = next_advantage
    return result


def clipped_value_loss(value, old_value, target, epsilon):
    """½ max of the two squared errors: the clip may not make the loss smaller."""
    clipped = old_value + (value - old_value).clamp(-epsilon, epsilon)
    return torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2


def token_rewards(score, logp, ref_logp, beta):
    """−β k1 at every token, and the score at the last one."""
    rewards = -beta * (logp - ref_logp)
    rewards[-1] += score
    return rewards


_R = torch.tensor([0.5, 0.78, 1.0, 1.21, 1.5])
_UP, _DOWN = torch.full((5,), 2.0), torch.full((5,), -2.0)

_REWARDS = torch.tensor([[0.0, 0.0, 1.0, 0.0], [-0.2, 0.5, 0.0, 0.0]])
_VALUES = torch.tensor([[0.3, 0.6, 0.9, 0.7], [0.4, 0.2, 0.8, 0.5]])
_MASK = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
_LAST = torch.tensor([0.25, 0.6])

_LOGP = torch.tensor([-0.1, -1.0, -3.0])
_REF = torch.tensor([-0.5, -1.0, -1.5])

_V = torch.tensor([-0.4, 0.1, 0.5, 1.4])
_V_OLD = torch.tensor([0.0, 0.0, 0.3, 0.2])
_TARGET = torch.tensor([1.0, 0.8, 0.5, 1.0])


def _by_min(r, advantage, epsilon):
    """The gate as autograd finds it."""
    z = r.log().requires_grad_()
    inside = z.exp().clamp(1 - epsilon, 1 + epsilon)
    J = torch.minimum(z.exp() * advantage, inside * advantage)
    return torch.autograd.grad(J.sum(), z)[0] / (r * advantage)


def _gate_where(r, advantage, epsilon):
    return torch.where(advantage > 0, r <= 1 + epsilon, r >= 1 - epsilon).float()


def _outside(r, epsilon):
    return (r < 1 - epsilon) | (r > 1 + epsilon)


def _gae(rewards, values, mask, last, gamma, lam, *, decay=None, after="last"):
    """GAE with one thing done differently.

    `after` is what V is behind a response's last token: "last", "zero", the "padding"
    that stands there, or "own", the last token's value again.
    """
    decay = gamma * lam if decay is None else decay
    behind = torch.cat([values[:, 1:], last[:, None]], 1)
    ends = mask * (1 - torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1))
    given = {
        "last": last[:, None].expand_as(values),
        "zero": torch.zeros_like(values),
        "padding": behind,
        "own": values,
    }
    following_value = torch.where(ends.bool(), given[after], behind)
    delta = rewards + gamma * following_value - values
    result, following = torch.zeros_like(values), torch.zeros_like(last)
    for t in reversed(range(values.shape[1])):
        following = (delta[:, t] + decay * following) * mask[:, t]
        result[:, t] = following
    return result


def _summed_gae(rewards, values, mask, last, gamma, lam):
    """Σ_l (γλ)^l δ_{t+l}, written as the sum that it is."""
    result = torch.zeros_like(values)
    for i, n in enumerate(mask.sum(-1).long().tolist()):
        V = torch.cat([values[i, :n], last[i : i + 1]])
        delta = rewards[i, :n] + gamma * V[1:] - V[:-1]
        for t in range(n):
            powers = (gamma * lam) ** torch.arange(n - t)
            result[i, t] = (powers * delta[t:]).sum()
    return result


def _forward(rewards, values, mask, last, gamma, lam):
    delta = _gae(rewards, values, mask, last, gamma, 0.0)
    result, carried = torch.zeros_like(values), torch.zeros_like(last)
    for t in range(values.shape[1]):
        carried = delta[:, t] + gamma * lam * carried
        result[:, t] = carried
    return result * mask


def _larger_half(value, old, target, epsilon):
    held = value.clamp(min=old - epsilon, max=old + epsilon)
    errors = torch.stack([value - target, held - target])
    return 0.5 * errors.square().amax(0)


def _add_to_last(rewards, score):
    return torch.cat([rewards[:-1], rewards[-1:] + score])


def _paid_at_the_end(score, logp, ref_logp, beta):
    paid = torch.zeros_like(logp)
    paid[-1] = score
    return paid + beta * (ref_logp - logp)


EXERCISES = (
    Exercise(
        "2.1",
        minutes=10,
        solution=clip_gate,
        also=(_by_min, _gate_where),
        cases=((_R, _UP, 0.2), (_R, _DOWN, 0.2)),
        mistakes={
            "You close the gate wherever r is outside 1 ± ε. Then the corrections die "
            "too: a good token below 1−ε and a bad one above 1+ε must come back.": (
                lambda r, a, e: (~_outside(r, e)).float()
            ),
            "For a bad token you close the wrong side. Its gate closes *below* 1−ε, "
            "where it has fallen far enough.": (lambda r, a, e: (r <= 1 + e).float()),
            "The other way round: those are the corrections. The gate closes where the "
            "token has moved far enough in the direction that A asks for.": (
                lambda r, a, e: torch.where(a > 0, r >= 1 - e, r <= 1 + e).float()
            ),
            "That is where the clip *stops* the token. The gate is 1 minus this.": (
                lambda r, a, e: 1 - _gate_where(r, a, e)
            ),
            "That is the coefficient c = g r. The gate is what is left when r is "
            "divided out.": lambda r, a, e: _gate_where(r, a, e) * r,
            "That is the clipped objective. The gate is what its gradient leaves: 1 or "
            "0.": lambda r, a, e: torch.minimum(r * a, r.clamp(1 - e, 1 + e) * a),
        },
    ),
    Exercise(
        "2.2",
        minutes=5,
        solution=(0.0, 0.5),
        why="λ = 0: its own δ, where nothing changes. λ = 1: the return minus V, 1 − "
        "0.5.",
        parts=("with λ = 0", "with λ = 1"),
        mistakes={
            "With λ = 0 the first token gets its own δ alone. V does not change there "
            "and nothing is paid, so δ is 0: only the last token is praised.": (
                (0.5, 0.5)
            ),
            "The other way round: λ = 0 is δ alone, λ = 1 is the whole return minus "
            "V.": (0.5, 0.0),
            "With λ = 1 you forgot to subtract V: the advantage is the return minus "
            "0.5.": (0.0, 1.0),
            "With λ = 1 nothing fades on the way back: every token gets the return "
            "minus V.": (0.0, 0.0),
        },
    ),
    Exercise(
        "2.3",
        minutes=15,
        solution=cut_off_gae,
        also=(_gae, _summed_gae),
        cases=(
            (_REWARDS, _VALUES, _MASK, _LAST, 0.9, 0.8),
            (_REWARDS, _VALUES, _MASK, _LAST, 1, 1),
        ),
        mistakes={
            "After the last token you use 0. These answers go on: V there is "
            "last_value.": lambda *given: _gae(*given, after="zero"),
            "After the last token you use what stands in the padding. last_value "
            "belongs behind each answer's own last token, not at the tensor's end.": (
                lambda *given: _gae(*given, after="padding")
            ),
            "After the last token you use that token's own V again, not "
            "last_value.": lambda *given: _gae(*given, after="own"),
            "What stands behind the mask enters: rewards and values are no part of the "
            "answer there.": (
                lambda r, v, m, last, g, lam: _gae(
                    r, v, torch.ones_like(m), last, g, lam
                )
            ),
            "The sum decays by γλ, not by γ alone: λ has no effect in yours.": (
                lambda r, v, m, last, g, lam: _gae(r, v, m, last, g, lam, decay=g)
            ),
            "The sum decays by γλ, not by λ alone.": (
                lambda r, v, m, last, g, lam: _gae(r, v, m, last, g, lam, decay=lam)
            ),
            "You go forward: a token would be credited for what came *before* it. Run "
            "t from the end.": _forward,
            "That is δ_t alone, the case λ = 0. Add γλ times the next advantage.": (
                lambda r, v, m, last, g, lam: _gae(r, v, m, last, g, 0.0)
            ),
            "Those are the targets Â + V of the critic. Subtract V.": (
                lambda r, v, m, last, g, lam: _gae(r, v, m, last, g, lam) + v * m
            ),
        },
    ),
    Exercise(
        "2.4",
        minutes=5,
        solution=("k3", "k1"),
        why="At d = −2 the slopes are 1 (k1), −2 (k2) and 1 − e² = −6.4 (k3).",
        parts=("pulls back hardest", "pushes further away"),
        mistakes={
            "The first is right. k2 pulls back too, only less hard: its slope at d = "
            "−2 is −2. Look for a slope above 0.": ("k3", "k2"),
            "At d = −2 look how far below 0 each slope lies: k3's is −6.4, k2's −2.": (
                ("k2", "k1")
            ),
            "The other way round: a loss with a positive slope falls when d falls, and "
            "d = −2 is already too low.": ("k1", "k3"),
            "k2 pulls hardest at d = +2, where the slopes are positive and push the "
            "token down again. For d = −2 look at the left end.": ("k2", "k3"),
        },
    ),
    Exercise(
        "2.5",
        minutes=10,
        solution=clipped_value_loss,
        also=(_larger_half,),
        cases=((_V, _V_OLD, _TARGET, 0.2),),
        mistakes={
            "min rewards the clip with a smaller loss. A loss takes the max, as the "
            "objective takes the min: the pessimistic one.": (
                lambda v, old, t, e: (
                    torch.minimum((v - t) ** 2, (old + (v - old).clamp(-e, e) - t) ** 2)
                    / 2
                )
            ),
            "The clipped error alone has no gradient outside V_old ± ε, also when V "
            "went the wrong way. Take the max with the plain error.": (
                lambda v, old, t, e: (old + (v - old).clamp(-e, e) - t) ** 2 / 2
            ),
            "That is the plain squared error: nothing is clipped (a clip around the "
            "target does nothing either). Clip V around V_old.": (
                lambda v, old, t, e: (v - t) ** 2 / 2
            ),
            "V is no ratio: clip the change V − V_old to ±ε, not V to 1 ± ε.": (
                lambda v, old, t, e: (
                    torch.maximum((v - t) ** 2, (v.clamp(1 - e, 1 + e) - t) ** 2) / 2
                )
            ),
            "The ½ is missing.": (
                lambda v, old, t, e: torch.maximum(
                    (v - t) ** 2, (old + (v - old).clamp(-e, e) - t) ** 2
                )
            ),
        },
    ),
    Exercise(
        "2.6",
        minutes=5,
        solution=token_rewards,
        also=(_paid_at_the_end,),
        cases=((1.0, _LOGP, _REF, 0.1), (0.0, _LOGP, _REF, 0.5)),
        mistakes={
            "The score is paid once, at the last token.": (
                lambda score, logp, ref, beta: score - beta * (logp - ref)
            ),
            "The KL is a price: subtract it.": (
                lambda score, logp, ref, beta: _add_to_last(beta * (logp - ref), score)
            ),
            "The last token pays its KL, too: add the score to that, do not replace "
            "it.": (
                lambda score, logp, ref, beta: torch.cat(
                    [-beta * (logp - ref)[:-1], torch.tensor([score])]
                )
            ),
            "Every token pays its own KL, not only the last.": (
                lambda score, logp, ref, beta: _add_to_last(
                    torch.zeros_like(logp), score - beta * (logp - ref).sum()
                )
            ),
            "In the reward k1 is right: the score function turns it into the KL's "
            "gradient. k3 there would not.": (
                lambda score, logp, ref, beta: _add_to_last(
                    -beta * ((ref - logp).exp() - 1 + logp - ref), score
                )
            ),
        },
    ),
    Exercise(
        "2.7",
        minutes=10,
        solution=4,
        why="The targets are *raw* + V. Whitened advantages have mean 0, whatever V "
        "is. So nothing ties V to the reward: it may drift anywhere, and the clip and "
        "the whitening hide it from the policy.",
        mistakes={
            "Line 1 is right: the log-probs and values of the rollout, detached, stay "
            "constants during the updates.": 1,
            "Line 2 is right: the raw advantages, in units of reward.": 2,
            "Line 3 is right: the policy learns from whitened advantages. But who else "
            "uses them?": 3,
            "Line 5 is right: four passes over the rollout.": 5,
            "Line 6 is right: the ratio to the policy that sampled.": 6,
            "Line 7 is right: ε = 0.2 on both sides.": 7,
            "Line 8 is right: the min of two products, for both signs of the "
            "advantage.": 8,
            "Line 9 is right: a squared error to the targets. Are they the right "
            "targets?": 9,
            "Line 10 is right: half the squared error minus the objective is "
            "minimised. In tables, policy and critic share no parameters.": 10,
        },
    ),
)
