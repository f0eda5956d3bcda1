"""Exercises of chapter 02: clip, cases, GAE, KL, value loss, KL in the reward."""

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter02 as solutions

_R = torch.tensor([0.5, 0.78, 1.0, 1.21, 1.5])
_UP, _DOWN = torch.full((5,), 2.0), torch.full((5,), -2.0)

_REWARDS = torch.tensor([[0.0, 0.0, 1.0, 0.0], [-0.2, 0.5, 0.0, 0.0]])
_VALUES = torch.tensor([[0.3, 0.6, 0.9, 0.7], [0.4, 0.2, 0.8, 0.5]])
_MASK = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])

_LOGP = torch.tensor([-0.1, -1.0, -3.0])
_REF = torch.tensor([-0.5, -1.0, -1.5])

_V = torch.tensor([-0.4, 0.1, 0.5, 1.4])
_V_OLD = torch.tensor([0.0, 0.0, 0.3, 0.2])
_TARGET = torch.tensor([1.0, 0.8, 0.5, 1.0])


def _gae(rewards, values, mask, gamma, lam, *, decay=None, end=0.0, padding=False):
    """GAE with one thing done differently."""
    decay = gamma * lam if decay is None else decay
    result = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    after = end * values[:, -1]
    for t in reversed(range(values.shape[1])):
        last = mask[:, t] * (1 - (mask[:, t + 1] if t + 1 < mask.shape[1] else 0))
        here = torch.where(last.bool(), end * values[:, t], after)
        delta = rewards[:, t] + gamma * (after if padding else here) - values[:, t]
        following = (delta + decay * following) * (1 if padding else mask[:, t])
        after = values[:, t]
        result[:, t] = following
    return result * mask


def _forward(rewards, values, mask, gamma, lam):
    following = torch.cat([values[:, 1:] * mask[:, 1:], values[:, :1] * 0], 1)
    delta = (rewards + gamma * following - values) * mask
    result, carried = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    for t in range(values.shape[1]):
        carried = delta[:, t] + gamma * lam * carried
        result[:, t] = carried
    return result * mask


def _add_to_last(rewards, score):
    return torch.cat([rewards[:-1], rewards[-1:] + score])


EXERCISES = (
    Exercise(
        "2.1",
        "The clipped objective",
        difficulty=2,
        minutes=10,
        solution=solutions.clipped_objective,
        cases=((_R, _UP, 0.2), (_R, _DOWN, 0.2)),
        mistakes={
            "min for A ≥ 0 but max for A < 0 (min(r, clip r) · A is the same): a bad "
            "token past 1+ε gets no gradient back, one below 1−ε is pushed on for "
            "ever. Take the min for both signs, after multiplying by A.": (
                lambda r, a, e: torch.where(
                    a >= 0,
                    torch.minimum(r * a, r.clamp(1 - e, 1 + e) * a),
                    torch.maximum(r * a, r.clamp(1 - e, 1 + e) * a),
                )
            ),
            "clip(r) A alone is flat on both sides: corrections die too. Take the min "
            "with r A.": lambda r, a, e: r.clamp(1 - e, 1 + e) * a,
            "You clip the log-ratio at ±ε. PPO clips r itself to [1−ε, 1+ε]; GMPO is "
            "the one that clips logs.": (
                lambda r, a, e: torch.minimum(r * a, r.log().clamp(-e, e).exp() * a)
            ),
            "max takes the optimistic one: nothing stops the ratio. Take the min.": (
                lambda r, a, e: torch.maximum(r * a, r.clamp(1 - e, 1 + e) * a)
            ),
            "That is the unclipped r A.": lambda r, a, e: r * a,
            "That is the loss: the objective has the opposite sign.": (
                lambda r, a, e: -torch.minimum(r * a, r.clamp(1 - e, 1 + e) * a)
            ),
        },
    ),
    Exercise(
        "2.2",
        "Which of the six cases have no gradient",
        difficulty=2,
        minutes=5,
        solution=solutions.NO_GRADIENT,
        mistakes={
            "Not every case outside 1 ± ε: in 1 and 6 the step would be a correction, "
            "and the min lets it through.": [True, False, True, True, False, True],
            "The other way round: 1 and 6 are the corrections.": (
                [True, False, False, False, False, True]
            ),
            "Case 6 is A < 0 with a ratio that *rose*: the gradient pulls it back, "
            "with weight r. The dual clip exists because that weight has no bound.": (
                [False, False, True, False, False, True]
            ),
            "Inside the bounds the clip does nothing: cases 2 and 5 are alive.": (
                [False, True, False, False, True, False]
            ),
        },
    ),
    Exercise(
        "2.3",
        "Generalised advantage estimation",
        difficulty=3,
        minutes=15,
        solution=solutions.advantages,
        cases=((_REWARDS, _VALUES, _MASK, 0.9, 0.8), (_REWARDS, _VALUES, _MASK, 1, 1)),
        mistakes={
            "You ignore the mask: the value of padding flows into the last token. An "
            "episode ends at its last response token, V after it is 0.": (
                lambda r, v, m, g, lam: _gae(r, v, m, g, lam, padding=True)
            ),
            "What stands behind the mask enters: rewards and values are 0 there.": (
                lambda r, v, m, g, lam: _gae(r, v, torch.ones_like(m), g, lam)
            ),
            "You bootstrap past the end: after the last token V is 0, not V of that "
            "token again.": lambda r, v, m, g, lam: _gae(r, v, m, g, lam, end=1.0),
            "The sum decays by γλ, not by γ alone: λ has no effect in yours.": (
                lambda r, v, m, g, lam: _gae(r, v, m, g, lam, decay=g)
            ),
            "The sum decays by γλ, not by λ alone.": (
                lambda r, v, m, g, lam: _gae(r, v, m, g, lam, decay=lam)
            ),
            "You go forward: a token would be credited for what came *before* it. Run "
            "t from the end.": _forward,
            "That is δ_t alone, the case λ = 0. Add γλ times the next advantage.": (
                lambda r, v, m, g, lam: _gae(r, v, m, g, 0.0)
            ),
            "Those are the targets Â + V of the critic. Subtract V.": (
                lambda r, v, m, g, lam: _gae(r, v, m, g, lam) + v * m
            ),
        },
    ),
    Exercise(
        "2.4",
        "k3",
        difficulty=1,
        minutes=5,
        solution=solutions.k3,
        cases=((_LOGP, _REF),),
        mistakes={
            "Swapped: π_ref belongs on top. Yours has mean χ² − KL under π_θ.": (
                lambda logp, ref: (logp - ref).exp() - 1 - (logp - ref)
            ),
            "That is k2, ½ d².": lambda logp, ref: (logp - ref) ** 2 / 2,
            "That is k1, the plain log-ratio: it can be negative.": (
                lambda logp, ref: logp - ref
            ),
            "The sign of the log is wrong: π_ref/π_θ − 1 − log(π_ref/π_θ) = "
            "e^−d − 1 + d.": (lambda logp, ref: (ref - logp).exp() - 1 - (logp - ref)),
        },
    ),
    Exercise(
        "2.5",
        "The clipped value loss",
        difficulty=2,
        minutes=10,
        solution=solutions.clipped_value_loss,
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
        "KL in the reward",
        difficulty=2,
        minutes=5,
        solution=solutions.token_rewards,
        cases=((1.0, _LOGP, _REF, 0.1), (0.0, _LOGP, _REF, 0.5)),
        mistakes={
            "The score is paid once, at the last token.": (
                lambda score, logp, ref, beta: score - beta * (logp - ref)
            ),
            "The KL is a price: subtract it.": (
                lambda score, logp, ref, beta: _add_to_last(beta * (logp - ref), score)
            ),
            "Every token pays its own KL, not only the last.": (
                lambda score, logp, ref, beta: _add_to_last(
                    torch.zeros_like(logp), score - beta * (logp - ref).sum()
                )
            ),
            "In the reward k1 is right: the score function turns it into the KL's "
            "gradient. k3 there would not.": (
                lambda score, logp, ref, beta: _add_to_last(
                    -beta * solutions.k3(logp, ref), score
                )
            ),
        },
    ),
)
