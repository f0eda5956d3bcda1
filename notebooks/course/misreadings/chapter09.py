"""Misreadings of RSPO and routing replay: chapter 09."""

import torch

from course.misreadings.base import Misreading
from refimpl.moe import gate_weights

LIMIT = 0.4


def held(z, advantage):
    """GMPO's one-sided clip of the log-ratio."""
    return torch.where(advantage > 0, z.clamp(max=LIMIT), z.clamp(min=-LIMIT))


def rspo(z, advantage, gamma):
    """[Π_t clip(r_t) γ_t]^(1/|o|) Â: γ after the clip, outside the sign; z is (T,)."""
    return advantage * (held(z, advantage) + gamma.detach().log()).mean().exp()


def rspo_inside_the_sign(z, advantage, gamma):
    """[Π_t (clip(r_t) γ_t)^sgn Â]^(1/|o|) |Â|: for Â < 0, γ < 1 makes it larger."""
    inside = held(z, advantage) + gamma.detach().log()
    sign = advantage.sign()
    return sign * advantage.abs() * (sign * inside).mean().exp()


def rspo_with_gradient(z, advantage, gamma):
    """No stop-gradient: lowering γ of a bad response now lowers the loss."""
    return advantage * (held(z, advantage) + gamma.log()).mean().exp()


def each_token_by_its_own_shift(z, advantage, gamma):
    """Token t's gradient scaled by γ_t alone."""
    weight = (advantage * held(z, advantage).mean().exp() * gamma).detach()
    return (weight * held(z, advantage)).mean()


def frozen_gate_weights(logits, experts):
    """Replay of the gate weights with the indices: the router gets no gradient."""
    return gate_weights(logits.detach(), experts)


MISREADINGS = [
    Misreading(
        "rspo_shift_inside_the_sign",
        "RSPO's γ stands with the ratio under the exponent sgn Â.",
        "γ stands outside the sign. Inside it, drift would push a bad response harder, "
        "the more its routing has moved.",
        rspo_inside_the_sign,
        rspo,
    ),
    Misreading(
        "rspo_gradient_through_shift",
        "γ is part of the objective, so it is differentiated.",
        "γ is a constant. With a gradient the router is paid for drifting away on bad "
        "responses.",
        rspo_with_gradient,
        rspo,
    ),
    Misreading(
        "rspo_shift_per_token",
        "A token whose routing drifted pushes less; the others push as before.",
        "In a geometric mean one γ scales the whole response: all its tokens equally.",
        each_token_by_its_own_shift,
        rspo,
    ),
    Misreading(
        "replay_freezes_gate_weights",
        "Routing replay reuses the old experts and their old gate weights.",
        "Only the indices freeze. The weights come from live scores, and the router "
        "keeps its gradient.",
        frozen_gate_weights,
        gate_weights,
    ),
]
