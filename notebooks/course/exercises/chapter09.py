"""Exercises of chapter 09: router shift, replayed gate weights, RSPO's objective."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter09 as solutions

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


def _gmpo(z, advantage):
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


EXERCISES = (
    Exercise(
        "9.1",
        "Router shift",
        difficulty=2,
        minutes=10,
        solution=solutions.router_shift,
        cases=_SHIFTS,
        mistakes={
            "You forgot the floor.": (
                lambda new, old, floor: math.exp(-_drift(new, old).mean().item())
            ),
            "Take the logs first: it is the change of log-probability.": (
                lambda new, old, floor: max(
                    math.exp(-(new - old).abs().mean().item()), floor
                )
            ),
            "Average over layers and experts; a sum grows with both.": (
                lambda new, old, floor: max(
                    math.exp(-_drift(new, old).sum().item()), floor
                )
            ),
            "Without the absolute value, changes cancel and γ can exceed 1.": (
                lambda new, old, floor: max(
                    math.exp(-(new.log() - old.log()).mean().item()), floor
                )
            ),
            "The floor bounds γ from below: max, not min.": (
                lambda new, old, floor: min(
                    math.exp(-_drift(new, old).mean().item()), floor
                )
            ),
        },
    ),
    Exercise(
        "9.2",
        "Gate weights under replay",
        difficulty=2,
        minutes=5,
        solution=solutions.replayed_weights,
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
        "9.3",
        "RSPO's objective, γ before the clip",
        difficulty=3,
        minutes=15,
        solution=solutions.rspo_objective,
        cases=_RSPO,
        mistakes={
            "You multiply by γ after the clip: that is the other placement.": (
                lambda r, g, a: _gmpo(r.log(), a) * g.log().mean().exp().item()
            ),
            "You forgot γ: that is GMPO.": lambda r, g, a: _gmpo(r.log(), a),
            "You divide by γ: drift would then make the ratio larger.": (
                lambda r, g, a: _gmpo((r / g).log(), a)
            ),
            "The clip is one-sided, and looks at the sign of Â.": (
                lambda r, g, a: a * (r * g).log().clamp(-0.4, 0.4).mean().exp().item()
            ),
            "That is the arithmetic mean of the ratios.": (
                lambda r, g, a: (
                    a
                    * (
                        (r * g).clamp(max=math.exp(0.4))
                        if a > 0
                        else (r * g).clamp(min=math.exp(-0.4))
                    )
                    .mean()
                    .item()
                )
            ),
        },
    ),
)
