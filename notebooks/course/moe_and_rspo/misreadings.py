"""Misreadings of RSPO and routing replay: chapter 09."""

from course.kit.misreading import Misreading
from course.kit.plain import clipped_logs
from refimpl.moe import router_weights


def rspo(z, advantage, gamma):
    """[Π_t clip(r_t) γ_t]^(1/|o|) Â: γ after the clip, outside the sign; z is (T,)."""
    return advantage * (clipped_logs(z, advantage) + gamma.detach().log()).mean().exp()


def rspo_inside_the_sign(z, advantage, gamma):
    """[Π_t (clip(r_t) γ_t)^sgn Â]^(1/|o|) |Â|: for Â < 0, γ < 1 makes it larger."""
    inside = clipped_logs(z, advantage) + gamma.detach().log()
    sign = advantage.sign()
    return sign * advantage.abs() * (sign * inside).mean().exp()


def each_token_by_its_own_shift(z, advantage, gamma):
    """Token t's gradient scaled by γ_t alone."""
    weight = (advantage * clipped_logs(z, advantage).mean().exp() * gamma).detach()
    return (weight * clipped_logs(z, advantage)).mean()


def frozen_router_weights(logits, experts):
    """Replay of the router weights with the indices: no gradient for the router."""
    return router_weights(logits.detach(), experts)


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
        "γ is a constant. With a gradient the router is rewarded for drifting away on "
        "bad responses.",
        {".detach()": ""},
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
        "replay_freezes_router_weights",
        "Routing replay reuses the old experts and their old router weights.",
        "Only the indices freeze. The weights come from live logits, and the router "
        "keeps its gradient.",
        frozen_router_weights,
        router_weights,
    ),
]
