"""Exercises of chapter 02: the gate, the clipped loss, critic and GAE, a bug."""

import torch

from course.kit.by_hand import answers
from course.kit.exercise import Exercise, edited
from course.kit.usual import usual


def ppo_loss(logp, old_logp, advantages, mask, epsilon=0.2):
    r = (logp - old_logp).exp()
    A, clipped = advantages, r.clamp(1 - epsilon, 1 + epsilon)
    # The smaller of the two: going further is not rewarded, coming back is.
    J = torch.minimum(r * A, clipped * A)
    w = mask / mask.sum()  # every response token weighs the same, padding nothing
    return -(w * J).sum()


def gae(rewards, values, mask, gamma=1.0, lam=0.95):
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        on = mask[:, t] > 0
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(on, here, 0.0)
        # Where the mask is 0, both stay those of the next response token.
        next_advantage = torch.where(on, here, next_advantage)
        next_value = torch.where(on, values[:, t], next_value)
    return advantages


def clip_gate(r, advantage, epsilon):
    """Closed in case 3 (Â > 0, r above 1+ε) and case 4 (Â < 0, r below 1−ε)."""
    risen = (advantage > 0) & (r > 1 + epsilon)
    fallen = (advantage < 0) & (r < 1 - epsilon)
    return (~(risen | fallen)).float()


def cut_off_gae(rewards, values, mask, last_value, gamma, lam):
    """Backwards: Â_t = δ_t + γλ Â_{t+1}; where the mask is 0, nothing changes."""
    result = torch.zeros_like(values)
    next_value, next_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(values.shape[1])):
        on = mask[:, t] > 0
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = delta + gamma * lam * next_advantage
        result[:, t] = torch.where(on, here, 0.0)
        next_advantage = torch.where(on, here, next_advantage)
        next_value = torch.where(on, values[:, t], next_value)
    return result


# The loss: all six cases, padding with an advantage, a hole, another ε.

_ONE = answers()
_A = torch.tensor(
    [[0.7, 0.1, 0.2, 3.0], [-0.2, -0.6, -0.4, -0.1], [-0.3, -0.1, 2.0, -2.0]]
).double()
_HOLE = torch.tensor([[1.0, 0, 1, 0], [1, 1, 0, 1], [1, 1, 0, 0]]).double()
_LOSS = (
    (_ONE.logp, _ONE.old_logp, _A, _ONE.mask),
    (_ONE.logp, _ONE.old_logp, -_A, _ONE.mask, 0.2),
    (_ONE.logp, _ONE.old_logp, _A, _HOLE, 0.35),
)


# GAE: padding and a hole, with garbage in both.

_REWARDS = torch.tensor([[0.0, 0, 0, 0, 1], [0, 0, 1, 0, 0], [-0.2, 0.5, 0, 0, 0]])
_VALUES = torch.tensor(
    [[0.5, 0.6, 7.0, -3.0, 0.8], [0.3, 0.6, 0.9, 0.7, 4.0], [0.4, 0.2, 0.8, 0.5, 2.0]]
)
_MASK = torch.tensor([[1.0, 1, 0, 0, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
_LAST = torch.tensor([0.35, 0.25, 0.6])
_ZERO = torch.zeros(3)


def _gae(rewards, values, mask, last, gamma, lam, *, after="last", **hole):
    """GAE with one thing done differently.

    `after` says what V is after a response's last token: "last", "zero", the "padding"
    that follows, or "own", the last token's value again. `hole` says what is reset at a
    hole in the mask: `value`, `sum`, or both.
    """
    result, following = torch.zeros_like(values), torch.zeros_like(last)
    behind = torch.zeros_like(last) if after == "zero" else last
    ended = torch.zeros_like(last).bool()  # its last token was passed
    for t in reversed(range(values.shape[1])):
        on = mask[:, t] > 0
        if after == "own":
            behind = torch.where(on & ~ended, values[:, t], behind)
        here = rewards[:, t] + gamma * behind - values[:, t] + gamma * lam * following
        result[:, t] = torch.where(on, here, 0.0)
        ended |= on
        kept = 0.0 * following if hole.get("sum") else following
        following = torch.where(on, here, kept)
        kept = torch.where(ended, 0.0, behind) if hole.get("value") else behind
        kept = torch.where(ended, kept, values[:, t]) if after == "padding" else kept
        behind = torch.where(on, values[:, t], kept)
    return result


def _carried(rewards, values, mask, last, gamma, lam):
    """Right, but padding and holes have the advantage of the next response token."""
    result = cut_off_gae(rewards, values, mask, last, gamma, lam)
    following = torch.zeros_like(last)
    for t in reversed(range(values.shape[1])):
        following = torch.where(mask[:, t] > 0, result[:, t], following)
        result[:, t] = following
    return result


def _forward(rewards, values, mask, last, gamma, lam):
    delta = _gae(rewards, values, mask, last, gamma, 0.0)
    result, carried = torch.zeros_like(values), torch.zeros_like(last)
    for t in range(values.shape[1]):
        carried = delta[:, t] + gamma * lam * carried
        result[:, t] = carried
    return result * mask


def _by_column(*masked, targets=False):
    """GAE whose next value and advantage are the next column's, whatever that is.

    `masked` names what is multiplied by the mask: all `values`, the `next` value, `δ`,
    the `sum` of the later δ, or the `result`, to which `targets` adds V.
    """

    def gae(rewards, values, mask, last, gamma, lam):
        V = values * mask if "values" in masked else values
        result, following = torch.zeros_like(V), torch.zeros_like(last)
        for t in reversed(range(V.shape[1])):
            within = t + 1 < V.shape[1]
            behind, on = V[:, t + 1] if within else last, mask[:, t]
            if within and "next" in masked:
                behind = behind * mask[:, t + 1]
            delta = rewards[:, t] + gamma * behind - V[:, t]
            delta = delta * on if "δ" in masked else delta
            following = delta + gamma * lam * following
            following = following * on if "sum" in masked else following
            result[:, t] = following
        result = result + values if targets else result
        return result * mask if "result" in masked else result

    return gae


_GARBAGE = [_by_column(*one.split()) for one in ("result", "δ", "sum", "δ result")]
"""What stands in padding and holes is taken for the next value."""
_NOTHING = [
    _by_column(*one.split())
    for one in (
        *("values", "values result", "values δ", "values δ result"),
        *("next", "next result", "next δ", "next δ result"),
    )
]
"""The next value is 0 in padding and holes; the sum of later δ goes on."""
_ENDED = _by_column("values", "sum")
"""The sum starts anew at a hole as well."""


def _ended(f=_gae, **settings):
    """The same for answers that end: V behind the last token is 0."""

    def gae(rewards, values, mask, gamma=1.0, lam=0.95):
        return f(rewards, values, mask, _ZERO, gamma, lam, **settings)

    return gae


TYPED = (
    Exercise(
        "02.ppo_loss",
        solution=ppo_loss,
        cases=_LOSS,
        gradient=True,
        mistakes={
            **usual(ppo_loss),
            "The value is right, but the ratio is detached, so nothing is learned. "
            "Only old_logp is a constant.": {".exp()": ".exp().detach()"},
        },
    ),
    Exercise(
        "02.gae",
        solution=gae,
        cases=(
            (_REWARDS, _VALUES, _MASK, 1.0, 0.9),
            (_REWARDS, _VALUES, _MASK, 0.9, 0.8),
        ),
        mistakes={
            "Your version does not step over a hole in the mask. In the middle of a "
            "row it uses 0 as the next value and the next advantage, as if the answer "
            "ended there. Both should come from the next *response* token.": (
                _ended(value=True, sum=True)
            ),
            "At a hole in the mask your sum starts anew. Hand the next *response* "
            "token's advantage on, as you do with its value.": _ended(sum=True),
            "At a hole in the mask your next value is 0. Hand the next *response* "
            "token's value on, as you do with its advantage.": _ended(value=True),
            "Your version uses values where the mask is 0: padding and holes are not "
            "part of the answer.": {"on = mask[:, t] > 0": "on = mask[:, t] >= 0"},
            "Part of yours is masked, but values in padding and holes still enter the "
            "advantages of earlier tokens. The next value should be that of the next "
            "*response* token.": [_ended(one) for one in _GARBAGE],
            "You multiply by the mask, so in a hole the next value is 0, as if the "
            "answer ended there. It should be that of the next *response* "
            "token.": [_ended(one) for one in _NOTHING],
            "The advantages of the answers' own tokens are right. But you return "
            "something in padding and holes as well: put 0 there.": [
                _ended(_carried),
                edited(gae, {"torch.where(on, here, 0.0)": "here"}),
            ],
            "The sum decays by γλ, not by γ alone: λ has no effect in yours.": {
                "gamma * lam": "gamma"
            },
            "The sum decays by γλ, not by λ alone.": {"gamma * lam *": "lam *"},
            "In δ the next value counts γ times: R + γ V' − V.": {
                "gamma * next_value": "next_value"
            },
            "γ has no effect in yours. It multiplies the next value, and with λ the "
            "next advantage.": {
                "gamma * next_value": "next_value",
                "gamma * lam": "lam",
            },
            "You go forward: a token would be credited for what came *before* it. Run "
            "t from the end.": _ended(_forward),
            "That is δ_t alone, the case λ = 0. Add γλ times the next advantage.": {
                "delta + gamma * lam * next_advantage": "delta"
            },
            "Those are the critic's targets, Â + V. Subtract V.": [
                *(
                    edited(gae, {"return advantages": f"return advantages + {values}"})
                    for values in ("values * mask", "values")
                ),
                _ended(lambda *given: _carried(*given) + given[1]),
            ],
            "After the last token you use that token's own V again. The answer is "
            "over: V is 0 there.": _ended(after="own"),
        },
    ),
)


# Exercises

_R = torch.tensor([0.5, 0.72, 0.78, 1.0, 1.21, 1.25, 1.35, 1.5])


def _gate_case(size, epsilon):
    """Every ratio with either sign of an advantage of this size."""
    signs = torch.tensor([size, -size]).repeat_interleave(len(_R))
    return _R.repeat(2), signs, epsilon


def _gate_where(r, advantage, epsilon):
    return torch.where(advantage > 0, r <= 1 + epsilon, r >= 1 - epsilon).float()


def _outside(r, epsilon):
    return (r < 1 - epsilon) | (r > 1 + epsilon)


EXERCISES = (
    Exercise(
        "2.1",
        solution=clip_gate,
        cases=(_gate_case(2.0, 0.2), _gate_case(0.5, 0.3)),
        mistakes={
            "You close the gate wherever r is outside 1 ± ε. Then the corrections are "
            "lost too: a good token below 1−ε and a bad one above 1+ε must be able to "
            "come back.": (lambda r, a, e: (~_outside(r, e)).float()),
            "For a bad token you close the wrong side. Its gate closes *below* 1−ε, "
            "where it has fallen far enough.": (lambda r, a, e: (r <= 1 + e).float()),
            "The other way round: those are the corrections. The gate closes where the "
            "token has moved far enough in the direction that A asks for.": (
                lambda r, a, e: torch.where(a > 0, r >= 1 - e, r <= 1 + e).float()
            ),
            "That is where the clip *stops* the token. The gate is 1 minus this.": (
                lambda r, a, e: 1 - _gate_where(r, a, e)
            ),
            "That is the coefficient c = g r. Divide it by r.": lambda r, a, e: (
                _gate_where(r, a, e) * r
            ),
            "That is the clipped objective. The gate says whether its gradient "
            "passes: 1 or 0.": lambda r, a, e: torch.minimum(
                r * a, r.clamp(1 - e, 1 + e) * a
            ),
            "Your gate depends on the size of the advantage. Only its sign says which "
            "bound counts; the bound itself is on r.": (
                lambda r, a, e: ((r - 1) * a <= e).float()
            ),
            "Your bounds are the numbers 0.8 and 1.2. Compute them from epsilon, which "
            "is 0.3 in one of the cases.": lambda r, a, e: _gate_where(r, a, 0.2),
            "Your lower bound is 1/(1+ε). The paper's is 1−ε: at ε = 0.3 that is 0.7, "
            "not 0.77.": (
                lambda r, a, e: torch.where(a > 0, r <= 1 + e, r >= 1 / (1 + e)).float()
            ),
        },
    ),
    Exercise(
        "2.2",
        solution=(0.0, 0.5),
        why="λ = 0: its own δ, where nothing changes. λ = 1: the return minus V, 1 − "
        "0.5.",
        parts=("with λ = 0", "with λ = 1"),
        mistakes={
            "With λ = 0 the first token gets its own δ alone. V does not change there "
            "and nothing is rewarded, so δ is 0: only the last token is praised.": (
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
        solution=cut_off_gae,
        cases=(
            (_REWARDS, _VALUES, _MASK, _LAST, 0.9, 0.8),
            (_REWARDS, _VALUES, _MASK, _LAST, 1, 1),
        ),
        mistakes={
            "last_value is a value. The sum of later surprises still starts at 0.": {
                "torch.zeros_like(last_value)": "last_value"
            },
            "After the last token you use 0. These answers go on: V there is "
            "last_value.": {"last_value, torch": "0 * last_value, torch"},
            "After the last token you use what stands in the padding. last_value "
            "belongs behind each answer's own last token, not at the tensor's end.": (
                lambda *given: _gae(*given, after="padding")
            ),
            "After the last token you use that token's own V again, not "
            "last_value.": lambda *given: _gae(*given, after="own"),
            "A hole in the mask is taken for the answer's end. Step over it, as the "
            "chapter's gae does.": lambda *given: _gae(*given, value=True, sum=True),
            "You did not step over the holes and the padding: your next value is "
            "the next column's. It should be that of the next *response* token, and "
            "last_value behind the last one.": [
                *(_by_column(), *_GARBAGE, *_NOTHING, _ENDED),
            ],
            "The advantages of the answers' own tokens are right. But you return "
            "something in padding and holes as well: put 0 there.": [
                _carried,
                edited(cut_off_gae, {"torch.where(on, here, 0.0)": "here"}),
            ],
            "γ has no effect in yours. It multiplies the next value, and with λ the "
            "next advantage.": {
                "gamma * next_value": "next_value",
                "gamma * lam": "lam",
            },
            "The sum decays by γλ, not by γ alone: λ has no effect in yours.": {
                "gamma * lam": "gamma"
            },
            "The sum decays by γλ, not by λ alone.": {"gamma * lam *": "lam *"},
            "In δ the next value counts γ times: R + γ V' − V.": {
                "gamma * next_value": "next_value"
            },
            "You go forward: a token would be credited for what came *before* it. Run "
            "t from the end.": _forward,
            "That is δ_t alone, the case λ = 0. Add γλ times the next advantage.": {
                "delta + gamma * lam * next_advantage": "delta"
            },
            "Those are the targets Â + V of the critic. Subtract V.": [
                *(
                    edited(cut_off_gae, {"return result": f"return result + {values}"})
                    for values in ("values * mask", "values")
                ),
                lambda *given: _carried(*given) + given[1],
                *(_by_column(*one, targets=True) for one in ((), ("result",))),
            ],
        },
    ),
    Exercise(
        "2.4",
        solution="4b",
        why="The targets are *raw* + V. Whitened advantages have mean 0 for any V, so "
        "nothing ties V to the reward: it may drift anywhere, and the clip and "
        "the whitening hide this from the policy.",
        lines=10,
        mistakes={
            "Line 3 does what it should: the policy learns from whitened advantages, "
            "and the clip looks at ratios and signs, which no division changes.": "3d",
            "The reason is the right one. But line 3 itself is fine, since the policy "
            "is to learn from whitened advantages. Who else uses them?": "3b",
            "Line 6 is right, and so is line 1: π_old is the policy that sampled, and "
            "it stays the same for all four passes.": "6a",
            "Line 1 is right: the log-probs of the policy that sampled, detached, are "
            "constants during all updates.": "1a",
            "A value clip would hide the drift, not repair it. The error in line 9 is "
            "right if its targets are right. Are they?": "9c",
            "That is the line. But the problem is not the size of the steps: what is "
            "the mean of these targets?": "4c",
            "Line 2 is right: the raw advantages, in units of reward.": "2b",
            "Line 10 is right: half the squared error minus the objective is "
            "minimised. In tables, policy and critic share no parameters.": "10b",
        },
    ),
    Exercise(
        "2.6",
        solution="SFT first",
        why="RL makes more likely what the policy already samples. What it never "
        "samples, it has to be shown first.",
        choices=("more RL", "smaller steps", "SFT first"),
        mistakes={
            "All rewards are equal, so every advantage is 0. RL makes more likely what "
            "the policy already samples, and here none of that is right.": "more RL",
            "The gradient is 0, and a smaller step along it is no step either. What "
            "can show the policy a right answer?": "smaller steps",
        },
    ),
    Exercise(
        "2.7",
        solution="the likeliest",
        why="The others' logits move in proportion to their probabilities, so the "
        "likeliest of them gains most.",
        choices=("the likeliest", "the rarest", "all alike"),
        mistakes={
            "The other way round: a rare token's logit hardly moves. The others share "
            "the push in proportion to their probabilities.": "the rarest",
            "They share the push in proportion to their probabilities, not in equal "
            "parts.": "all alike",
        },
    ),
    Exercise(
        "2.8",
        solution="the noise",
        why="The score function has mean 0, so whatever multiplies it and does not "
        "depend on the sample leaves the mean alone.",
        choices=("the mean", "the noise", "both"),
        mistakes={
            "The mean stays: the baseline multiplies the score, whose mean is 0. What "
            "is left?": "the mean",
            "The noise, yes. But the mean stays, because the baseline multiplies the "
            "score, whose mean is 0.": "both",
        },
    ),
)
