"""Exercises of chapter 09: router shift, replayed weights, RSPO, the clip's anchor."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl import History, TrainConfig, collect, prepare, updates


def router_shift(new: torch.Tensor, old: torch.Tensor, floor: float) -> float:
    """9.2: exp of minus the mean absolute change of log-probability, or the floor.

    `new` and `old` are (layers, experts): router *probabilities* of the experts that
    the old policy activated.
    """
    drift = (new.log() - old.log()).abs().mean().item()
    return max(math.exp(-drift), floor)


def replayed_weights(logits: torch.Tensor, experts: list[int]) -> list[float]:
    """9.3: softmax of the live logits over the replayed experts only."""
    return logits[experts].softmax(-1).tolist()


def rspo_objective(
    ratios: torch.Tensor, gammas: torch.Tensor, advantage: float
) -> float:
    """9.4: γ into the ratio, GMPO's clip at e^±0.4, geometric mean, times Â."""
    z = (ratios * gammas).log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


_OLD = torch.tensor([[0.5, 0.3], [0.4, 0.2]])
_NEW = torch.tensor([[0.45, 0.36], [0.42, 0.15]])
_FAR = torch.tensor([[0.05, 0.01], [0.9, 0.02]])
_SHIFTS = ((_NEW, _OLD, 0.7), (_FAR, _OLD, 0.7), (_OLD, _OLD, 0.9), (_NEW, _OLD, 0.1))

_LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.0])
_CHOICES = ((_LOGITS, [0, 3]), (_LOGITS, [1, 2]), (-_LOGITS, [3, 0]))

_R = torch.tensor([1.2, 1.8, 0.9])
_G = torch.tensor([0.9, 0.8, 1.0])
_LOW = torch.tensor([0.4, 1.2, 1.0])
_RSPO = ((_R, _G, 1.0), (_R, _G, -0.5), (1 / _R, _G, -2.0), (_LOW, _G, 1.0))


def _drift(new, old):
    return (new.log() - old.log()).abs()


def _gamma(drift, floor):
    return max(math.exp(-drift.item()), floor)


def _gmpo(z, advantage):
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


def anchored_at(anchor: str, model, tokenizer, rollouts: int = 8) -> History:
    """GRPO with K = 1 and a noisy sampler; the ratio is over π_old or μ."""
    config = TrainConfig(
        epochs=1, minibatches=1, allow_on_policy=True, router_noise=0.5
    )
    run, history = prepare("grpo", config, model, tokenizer), History("grpo")
    for step in range(rollouts):
        batch, metrics = collect(run, step)
        if anchor == "μ":
            batch = replace(batch, old_logp=batch.rollout.logp)
        history.rows.append({**metrics, **updates(run, batch, step)})
    return history


def _shift_by_loop(new, old, floor):
    """Layer by layer, as the sums of the formula stand."""
    drift = 0.0
    for now, was in zip(new.tolist(), old.tolist()):
        changes = [abs(math.log(a / b)) for a, b in zip(now, was)]
        drift += sum(changes) / len(changes)
    return max(math.exp(-drift / len(new)), floor)


def _weights_by_mask(logits, experts):
    hidden = torch.full_like(logits, -math.inf)
    hidden[experts] = logits[experts]
    return hidden.softmax(-1)[experts]


def _clipped(shifted, advantage):
    """γ r within the bound that the advantage moves it to."""
    if advantage > 0:
        return shifted.clamp(max=math.exp(0.4))
    return shifted.clamp(min=math.exp(-0.4))


def _rspo_as_product(ratios, gammas, advantage):
    clipped = _clipped(ratios * gammas, advantage)
    return advantage * clipped.prod() ** (1 / len(ratios))


EXERCISES = (
    Exercise(
        "9.1",
        minutes=5,
        solution=2,
        why="s is multiplied by 0.7^(1/20) = 0.982, for every token alike.",
        mistakes={
            "That is GRPO with γ: there the drifted token alone is weakened.": 30,
            "1.5 is the arithmetic mean's answer, 30 / 20; asked is a whole number.": (
                1.5
            ),
            "That is it, to one decimal; asked is a whole number.": 1.8,
            "It falls, though not by much: s is multiplied by 0.7^(1/20).": 0,
            "0.7^(1/20) is what is left, 98 %; asked is by how much it falls.": 98,
        },
    ),
    Exercise(
        "9.2",
        minutes=10,
        solution=router_shift,
        also=(_shift_by_loop,),
        cases=_SHIFTS,
        mistakes={
            "You forgot the floor.": (
                lambda new, old, floor: router_shift(new, old, 0.0)
            ),
            "Take the logs first: it is the change of log-probability.": (
                lambda new, old, floor: _gamma((new - old).abs().mean(), floor)
            ),
            "Average over layers and experts; a sum grows with both.": (
                lambda new, old, floor: _gamma(_drift(new, old).sum(), floor)
            ),
            "Without the absolute value, changes cancel and γ can exceed 1.": (
                lambda new, old, floor: _gamma((new.log() - old.log()).mean(), floor)
            ),
            "The floor bounds γ from below: max, not min.": (
                lambda new, old, floor: min(router_shift(new, old, 0.0), floor)
            ),
        },
    ),
    Exercise(
        "9.3",
        minutes=5,
        solution=replayed_weights,
        also=(_weights_by_mask,),
        cases=_CHOICES,
        mistakes={
            "Normalise over the replayed experts only; yours do not sum to 1.": (
                lambda logits, experts: logits.softmax(-1)[experts].tolist()
            ),
            "You took the router's own top experts. Replay visits the given ones.": (
                lambda logits, experts: (
                    logits.topk(len(experts)).values.softmax(-1).tolist()
                )
            ),
            "The weights are not equal shares: they come from the live logits.": (
                lambda logits, experts: [1 / len(experts)] * len(experts)
            ),
        },
    ),
    Exercise(
        "9.4",
        minutes=15,
        solution=rspo_objective,
        also=(_rspo_as_product,),
        cases=_RSPO,
        mistakes={
            "You multiply by γ after the clip: that is the other placement.": (
                lambda r, g, a: _gmpo(r.log(), a) * g.log().mean().exp().item()
            ),
            "You forgot γ: that is GMPO.": lambda r, g, a: _gmpo(r.log(), a),
            "You forgot the clip: ±0.4 on log(γ r).": (
                lambda r, g, a: a * (r * g).log().mean().exp().item()
            ),
            "You divide by γ: drift would then make the ratio larger.": (
                lambda r, g, a: _gmpo((r / g).log(), a)
            ),
            "The clip is one-sided, and looks at the sign of Â.": (
                lambda r, g, a: a * (r * g).log().clamp(-0.4, 0.4).mean().exp().item()
            ),
            "That is the arithmetic mean of the ratios.": (
                lambda r, g, a: a * _clipped(r * g, a).mean().item()
            ),
        },
    ),
    Exercise(
        "9.5",
        minutes=5,
        solution=0.7,
        why="e^(−d/2) = 0.7 at d = −2 log 0.7 = 0.713.",
        mistakes={
            "That is k = 1: here the mean halves the drift of the one expert.": 0.4,
            "That is k = 8: here two experts share the mean.": 2.9,
            "1 − 0.7 is where a straight line would be; γ is an exponential.": 0.3,
            "1.4 would be right for four experts.": 1.4,
            "That is it, with two decimals; asked is one.": 0.71,
        },
    ),
    Exercise(
        "9.6",
        minutes=15,
        solution=6,
        why="The sampler's log-probs are not π_old's. The rollout has to be scored "
        "again: old_logp = log_probs(policy, batch).detach(), without the noise. Then "
        "r is 1 at K = 1; the sampler is corrected by a weight, if at all. (A clip "
        "that is meant to see a late sampler, with two policies, is chapter 15's.)",
        mistakes={
            "Line 1 is right: it only counts the rollouts.": 1,
            "Line 2 is right: sixteen new problems for every rollout.": 2,
            "Line 3 is right: the noise is the other engine, and was intended.": 3,
            "Line 4 is right: the sampler draws, and returns its own log-probs.": 4,
            "Line 5 is right: rewards against the mean of their group.": 5,
            "Line 7 is right: π_θ is scored by the training engine, without noise.": 7,
            "Line 8 is right: log π_θ − log π_old. But which policy is old_logp of?": 8,
            "Line 9 is right: PPO's clip. Its ratio is wrong before it gets there.": 9,
            "Line 10 is right: the mean over tokens, descended with a minus.": 10,
        },
    ),
)
