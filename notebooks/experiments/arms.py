"""The arms of the experiments: methods with their settings, by name.

In addition to the course's algorithms there are gates of our own. Each takes one
property away from a method, or adds one, to find out which property has the effect.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from experiments.drift import shared
from refimpl import corrections, logprobs
from refimpl.algorithms import Algorithm, get
from refimpl.config import TrainConfig
from refimpl.gate import from_gate
from refimpl.loss_terms import LossCorrection, RouterShift
from refimpl.rollout import Rollout
from refimpl.validation import UserError, nearest


def _soft(r, tau: float):
    """Compute SAPO's gate, sech²(τ(r − 1)/2), which is 1 at r = 1."""
    return 1 / torch.cosh((tau * (r - 1) / 2).clamp(-40, 40)) ** 2


def one_sided(tau: float, rising: bool = True, falling: bool = True) -> Callable:
    """SAPO's sech² where a token moves on, 1 where it comes back (as in PPO's min).

    `rising`: good tokens whose ratio fell below 1 come back with full weight.
    `falling`: bad tokens whose ratio rose above 1 do so, too.
    """

    def gate(r, advantages):
        soft = _soft(r, tau)
        up = (advantages > 0) & (r < 1) if rising else torch.zeros_like(r).bool()
        down = (advantages < 0) & (r > 1) if falling else torch.zeros_like(r).bool()
        return torch.where(up | down, 1.0, soft)

    return gate


def two_sided_clip(epsilon: float = 0.2) -> Callable:
    """GRPO's clip without the min: 0 outside [1 − ε, 1 + ε] on both sides."""

    def gate(r, advantages):
        return ((r - 1).abs() <= epsilon).to(r)

    return gate


def half_open(tau: float) -> Callable:
    """SAPO's sech² for a random half of the tokens, 1 for the others.

    It lets as many tokens through as `one_sided`, whether they come back or not.
    The random bit is taken from the lower digits of the ratio, so that a repeated run
    is the same.
    """

    def gate(r, advantages):
        coin = (r.double() * 1e5).frac() < 0.5
        return torch.where(coin, 1.0, _soft(r, tau))

    return gate


def coin_of_weight(tau: float) -> Callable:
    """SAPO's sech², opened for random tokens on both sides (drawn as in `half_open`).

    The probability makes the expected weight (1 − g) r |Â| that is let through in a
    micro-batch equal to that of `one_sided`.
    """

    def gate(r, advantages):
        soft = _soft(r, tau)
        weight = (1 - soft) * r * advantages.abs()
        back = (r - 1) * advantages < 0
        share = (weight * back).sum() / weight.sum().clamp(min=1e-30)
        return torch.where((r.double() * 1e5).frac() < share, 1.0, soft)

    return gate


def mirrored(tau: float) -> Callable:
    """`one_sided` reversed: 1 where a token moves on, sech² where it comes back."""

    def gate(r, advantages):
        return torch.where((r - 1) * advantages > 0, 1.0, _soft(r, tau))

    return gate


class OneSidedIfShared:
    """`one_sided`, but only for tokens that good and bad responses share.

    Those are the tokens with which a good and a bad response of a group both begin
    (`drift.shared`). Ratios do not show this, so the gate also serves as the run's
    `log_probs`, and remembers the last rollout. Before the first it is SAPO's gate.
    """

    def __init__(self, tau: float):
        self.tau = tau
        self.rollout: Rollout | None = None

    def log_probs(self, model, rollout: Rollout, temperature: float):
        self.rollout = rollout
        return logprobs.log_probs(model, rollout, temperature)

    log_probs.by_group = True  # type: ignore[attr-defined]  # needs whole groups

    def __call__(self, r, advantages):
        soft = _soft(r, self.tau)
        if self.rollout is None:
            return soft
        bad, good = (shared(self.rollout, sign * advantages) for sign in (1, -1))
        back = (r - 1) * advantages < 0
        return torch.where(back & (bad | good), 1.0, soft)


def bad_weighted(tau: float, bad: float) -> Callable:
    """SAPO's sech² with bad responses (Â < 0) at the weight `bad`."""

    def gate(r, advantages):
        return _soft(r, tau) * torch.where(advantages < 0, bad, 1.0)

    return gate


GATES: dict[str, Callable[..., Callable]] = {
    "one_sided": one_sided,
    "two_sided_clip": two_sided_clip,
    "half_open": half_open,
    "coin_of_weight": coin_of_weight,
    "mirrored": mirrored,
    "one_sided_if_shared": OneSidedIfShared,
    "bad_weighted": bad_weighted,
}


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UserError` on the first name that is not known."""
    for name in names:
        if name not in (every := list(known)):
            raise UserError(
                f"unknown {what} {name!r}{nearest(str(name), every)}; one of: "
                f"{', '.join(every)}"
            )


def corrected(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put the rules among settings of `TrainConfig` into `corrections`."""
    rules = {name: x for name, x in settings.items() if name in corrections.RULES}
    rest = {name: x for name, x in settings.items() if name not in rules}
    return rest | {"corrections": rules} if rules else rest


@dataclass(frozen=True)
class Arm:
    """A method, its hyperparameters, and its settings of `TrainConfig`.

    `pace`: the arm whose distance per rollout this one follows (`drift.Pace`).
    `corrections`: objects that `train` is handed.
    """

    algorithm: str
    hyperparameters: tuple[tuple[str, float | bool], ...] = ()
    training: tuple[tuple[str, object], ...] = ()
    pace: str = ""
    corrections: tuple[LossCorrection, ...] = ()

    def build(self) -> tuple[Algorithm, dict]:
        """Return the method, and its settings of `TrainConfig`."""
        settings = corrected(dict(self.training))
        if self.algorithm not in GATES:
            settings["hyperparameters"] = dict(self.hyperparameters)
        return self.method()[0], settings

    def method(self) -> tuple[Algorithm, Callable]:
        """Return the method, and the function that computes its log-probs."""
        if self.algorithm not in GATES:
            return get(self.algorithm), logprobs.log_probs
        gate = GATES[self.algorithm](**dict(self.hyperparameters))
        read = getattr(gate, "log_probs", logprobs.log_probs)
        return from_gate(gate, self.algorithm), read


def _sapo(pos: float, neg: float) -> Arm:
    return Arm("sapo", (("tau_pos", pos), ("tau_neg", neg)))


def _dppo(delta: float) -> Arm:
    """DPPO-TV, which drops tokens that moved on by more than δ (none if δ = 1)."""
    return Arm("dppo_tv", (("delta_low", delta), ("delta_high", delta)))


ARMS = {
    "PPO": Arm("ppo"),
    "GRPO": Arm("grpo"),
    "GRPO (0.67, 1.49)": Arm("grpo", (("epsilon_low", 0.33), ("epsilon_high", 0.49))),
    "Dr. GRPO": Arm("dr_grpo"),
    "GSPO 3e-4": Arm("gspo"),
    "GSPO 0.03": Arm("gspo", (("epsilon_low", 0.03), ("epsilon_high", 0.04))),
    "DAPO": Arm("dapo"),
    "DAPO 0.20": Arm("dapo", (("epsilon_high", 0.20),)),
    "DAPO 0.40": Arm("dapo", (("epsilon_high", 0.40),)),
    "CISPO 5": Arm("cispo"),
    "CISPO 1.28": Arm("cispo", (("max_ratio", 1.28),)),
    "GMPO": Arm("gmpo"),
    **{f"DPPO-TV {delta:g}": _dppo(delta) for delta in (0.1, 0.2, 1.0)},
    "SAPO 1.0": _sapo(1.0, 1.05),
    "SAPO 1.0, equal": _sapo(1.0, 1.0),
    "SAPO 1.0, reversed": _sapo(1.0, 0.95),
    "SAPO 8.8": _sapo(8.8, 8.8),
    "SAPO 8.8, neg ½": _sapo(8.8, 4.4),
    "SAPO 8.8, neg 2": _sapo(8.8, 17.6),
    "SAPO 4.4": _sapo(4.4, 4.4),
    "SAPO 17.6": _sapo(17.6, 17.6),
    "SAPO 17.6, neg ½": _sapo(17.6, 8.8),
    "two-sided clip": Arm("two_sided_clip"),
    "SAPO 8.8, half open": Arm("half_open", (("tau", 8.8),)),
    "SAPO 8.8, coin of one side's weight": Arm("coin_of_weight", (("tau", 8.8),)),
    "mirrored 8.8": Arm("mirrored", (("tau", 8.8),)),
    "one-sided 8.8, shared tokens": Arm("one_sided_if_shared", (("tau", 8.8),)),
    "SAPO 8.8, bad at ½": Arm("bad_weighted", (("tau", 8.8), ("bad", 0.5))),
    "SAPO 8.8, bad at 0": Arm("bad_weighted", (("tau", 8.8), ("bad", 0.0))),
    "one-sided 8.8": Arm("one_sided", (("tau", 8.8),)),
    "one-sided 8.8, Â > 0": Arm("one_sided", (("tau", 8.8), ("falling", False))),
    "one-sided 8.8, Â < 0": Arm("one_sided", (("tau", 8.8), ("rising", False))),
    "one-sided 1.0": Arm("one_sided", (("tau", 1.0),)),
    "one-sided 4.4": Arm("one_sided", (("tau", 4.4),)),
    "one-sided 17.6": Arm("one_sided", (("tau", 17.6),)),
    "GRPO + R2": Arm("grpo", training=(("replay", "R2"),)),
    "GRPO + R3": Arm("grpo", training=(("replay", "R3"),)),
    "GRPO + TIS": Arm("grpo", training=(("token_truncate", 2.0),)),
    "GRPO + R3 + TIS": Arm(
        "grpo", training=(("replay", "R3"), ("token_truncate", 2.0))
    ),
    "RSPO": Arm("rspo"),
    "RSPO, gradient through γ": Arm("rspo", corrections=(RouterShift(detach=False),)),
}
AT_PACE = {
    arm: f"{arm}, at GRPO's pace"
    for arm in (
        *("two-sided clip", "one-sided 8.8", "SAPO 8.8"),
        *("one-sided 1.0", "SAPO 1.0"),
    )
}
ARMS |= {name: replace(ARMS[arm], pace="GRPO") for arm, name in AT_PACE.items()}


def _needs_moe(arm: Arm) -> bool:
    algorithm, settings = arm.build()
    return bool(TrainConfig(**settings).completed(algorithm.training).needs_moe)


NEED_MOE = {name for name, arm in ARMS.items() if _needs_moe(arm)}
ON_DENSE = tuple(name for name in ARMS if name not in NEED_MOE)
