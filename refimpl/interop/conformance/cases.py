"""The cases: inputs, settings, and the loss and gradient of the papers' methods.

A case is plain data. Its loss is

    − Σ weight · objective  (+ β Σ weight · KL)

with the weight of `settings["normaliser"]`, times min(π_old/μ, `cap`) if there is a cap
(TIS), and with RSPO's γ if there is a `placement`. The gradient is with respect to
`logp`. All log-probs are in nats, all numbers are float64.
"""

import datetime
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import refimpl
from refimpl import corrections, kl, moe, normalisers
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.algorithms.base import LossResult

SCHEMA = 1
BETA = 0.1
MAX_LENGTH = 12.0
ROWS, WIDTH, GROUP = 4, 7, 2


@dataclass(frozen=True)
class Case:
    """A case; `what` names its inputs, `part` the setting that it varies."""

    algorithm: str
    part: str
    what: str
    inputs: dict[str, Tensor]
    settings: dict[str, Any]
    loss: float
    gradient: Tensor
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.algorithm} | {self.part} | {self.what}"


def typical(seed: int = 0, spread: float = 0.25) -> dict[str, Tensor]:
    """Make four responses of unequal length in two groups, with ratios around 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    old = -normal(ROWS, WIDTH).abs() - 0.05
    length = torch.tensor([WIDTH, 3, 5, 2])
    advantages = normal(ROWS)
    return {
        "logp": (old + spread * normal(ROWS, WIDTH)).clamp(max=-1e-3),
        "old_logp": old,
        "ref_logp": old + 0.3 * normal(ROWS, WIDTH),
        "rollout_logp": old + 0.3 * normal(ROWS, WIDTH),
        "advantages": advantages - advantages.mean(),
        "mask": (torch.arange(WIDTH) < length[:, None]).double(),
        "group": torch.arange(ROWS) // GROUP,
        "gamma": torch.sigmoid(normal(ROWS, WIDTH) + 2),
    }


def _edges() -> dict[str, dict[str, Tensor]]:
    """Make inputs that include special cases, by name."""
    plain = typical()
    on = plain | {"logp": plain["old_logp"].clone()}
    first = {k: v[:, :1] if v.ndim == 2 else v for k, v in plain.items()}
    empty = plain["mask"].clone()
    empty[1] = 0.0
    hole = plain["mask"].clone()
    hole[0, 2:4] = 0.0
    far = plain["logp"].clone()
    far[0, 1], far[2, 0] = plain["old_logp"][0, 1] + 30, plain["old_logp"][2, 0] - 30
    return {
        "typical": plain,
        "another draw": typical(1),
        "on policy, r = 1": on,
        "ratios far from 1": typical(2, spread=2.0),
        "one token": first,
        "an empty row": plain | {"mask": empty},
        "a hole in the mask": plain | {"mask": hole},
        "no advantage": plain | {"advantages": torch.zeros(ROWS).double()},
        "log-ratios of ±30": plain | {"logp": far},
    }


VARIED: dict[str, tuple[dict[str, float], ...]] = {
    "ppo": ({"epsilon_low": 0.1, "epsilon_high": 0.1}, {"dual_clip": 3.0}),
    "grpo": ({"epsilon_low": 0.2, "epsilon_high": 0.28}, {"dual_clip": 3.0}),
    "dr_grpo": ({"dual_clip": 3.0},),
    "gspo": ({"epsilon_low": 0.03, "epsilon_high": 0.04},),
    "gspo_token": ({"epsilon_low": 0.03, "epsilon_high": 0.04},),
    "dapo": ({"epsilon_low": 0.2, "epsilon_high": 0.4},),
    "cispo": ({"max_ratio": 1.28}, {"mask_epsilon_high": 0.2, "mask_epsilon_low": 0.2}),
    "gmpo": ({"epsilon_low": 0.2, "epsilon_high": 0.2},),
    "rspo": ({"epsilon_low": 0.2, "epsilon_high": 0.2},),
    "sapo": ({"tau_pos": 8.8, "tau_neg": 8.8}, {"tau_pos": 8.8, "tau_neg": 17.6}),
    "dppo_tv": ({"delta_low": 0.05, "delta_high": 0.1}, {"max_ratio": 1.5}),
    "dppo_kl": ({"delta_low": 0.01, "delta_high": 0.02}, {"max_ratio": 1.5}),
    "ipo": ({"delta": 0.1, "tau": 1e-3},),
    "glm5": ({"epsilon_low": 0.2, "epsilon_high": 0.28},),
    "sao": ({"epsilon_low": 0.8, "epsilon_high": 3.0},),
    "vespo": ({"k_pos": 1.0, "lambda_pos": 1.0, "k_neg": 2.0, "lambda_neg": 2.0},),
    "luspo": ({"epsilon_low": 0.03, "epsilon_high": 0.04},),
    "minirl": ({"epsilon_low": 0.1, "epsilon_high": 0.1},),
    "dro": ({"tau": 1.0},),
    "kimi": ({"low": 0.2, "high": 0.3, "tau": 0.1},),
    "flash_reinforce": ({"delta": 0.03},),
}
"""Hyperparameters to test in addition to the papers'."""
SUMMED = "seq_mean_token_sum"
"""The normaliser of LUSPO and MiniRL, which no other method is tested with."""
WITH_KL = ("grpo", "dapo")
"""Methods with cases for the KL. Every loss adds it in the same way, so two are enough:
one averages over responses, the other over tokens."""


def answer(
    algorithm: Algorithm, inputs: dict[str, Tensor], settings: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Compute (loss, gradient with respect to logp, metrics) for these inputs."""
    logp = inputs["logp"].clone().requires_grad_()
    result = loss_of(algorithm, {**inputs, "logp": logp}, settings)
    (gradient,) = torch.autograd.grad(result.loss, logp)
    return result.loss.detach(), gradient, result.metrics


def loss_of(
    algorithm: Algorithm, inputs: dict[str, Tensor], settings: dict[str, Any]
) -> LossResult:
    """Compute the loss stated at the top of this file, with its graph."""
    logp, old, mask = (inputs[name] for name in ("logp", "old_logp", "mask"))
    own = algorithm.normaliser
    average = {own.__name__: own, **normalisers.NORMALISERS}[settings["normaliser"]]
    group, longest = inputs["group"], settings["max_length"]
    plain = weight = normalisers.apply(average, mask, group=group, max_length=longest)
    if settings.get("cap"):
        rollout = inputs["rollout_logp"]
        rules, paid = {"token_truncate": settings["cap"]}, inputs["advantages"]
        weight = weight * corrections.factor(rules, old, rollout, mask, paid)
    shifted = old
    if settings.get("placement"):
        gamma, placement = inputs["gamma"], settings["placement"]
        shifted, weight = moe.shifted(
            old, weight, mask, gamma, placement, algorithm.one_ratio
        )
    given = settings["hyperparameters"]
    result = algorithm.policy_loss(
        logp, shifted, inputs["advantages"], mask, weight, **given
    )
    if settings.get("kl"):
        each = kl.ESTIMATORS[settings["kl"]](logp, inputs["ref_logp"], old)
        each = torch.where(mask.bool(), each, 0.0)
        more = settings["beta"] * (each * plain).sum()
        result = result._replace(loss=result.loss + more)
    return result


def cases() -> Iterator[Case]:
    """Yield every case, algorithm by algorithm."""
    edges = _edges()
    for algorithm in ALGORITHMS.values():
        case = partial(_case, algorithm, edges)
        yield from (case("the paper's", what) for what in edges)
        for name in normalisers.NORMALISERS:
            if name not in (algorithm.normaliser.__name__, SUMMED):
                yield case(f"averaged by {name}", "typical", normaliser=name)
                yield case(f"averaged by {name}", "an empty row", normaliser=name)
        for given in VARIED.get(algorithm.name, ()):
            shown = ", ".join(f"{name} {value}" for name, value in given.items())
            yield case(shown, "typical", given)
            yield case(shown, "ratios far from 1", given)
        for cap in (1.0, 2.0):
            yield case(f"TIS, cap {cap:g}", "typical", cap=cap)
        for name in kl.ESTIMATORS if algorithm.name in WITH_KL else ():
            settings = {"kl": name, "beta": BETA}
            yield case(f"KL in the loss, {name}", "typical", **settings)
            yield case(f"KL in the loss, {name}", "on policy, r = 1", **settings)
        # REINFORCE has a ratio only with its hyperparameter `correct`; γ needs one.
        has_ratio = algorithm.defaults.get("correct", True)
        for placement in moe.PLACEMENTS if has_ratio else ():
            yield case(f"γ {placement}", "typical", placement=placement)


def _case(
    algorithm: Algorithm, edges: dict, part: str, what: str, given=None, **changed
) -> Case:
    inputs, settings = edges[what], settings_of(algorithm, given, **changed)
    loss, gradient, metrics = answer(algorithm, inputs, settings)
    return Case(
        algorithm.name, part, what, inputs, settings, loss.item(), gradient, metrics
    )


def settings_of(algorithm: Algorithm, given=None, **changed) -> dict[str, Any]:
    """Return the paper's settings, with `given` hyperparameters and `changed` ones."""
    return {
        "hyperparameters": {**algorithm.defaults, **(given or {})},
        "normaliser": algorithm.normaliser.__name__,
        "max_length": MAX_LENGTH,
        **changed,
    }


def as_json(cases: Iterable[Case]) -> str:
    """Write the cases as JSON, which `loader.py` can read."""
    names = "name algorithm inputs settings loss gradient metrics".split()
    data = {
        "schema": SCHEMA,
        "refimpl": refimpl.__version__,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "cases": [{name: getattr(case, name) for name in names} for case in cases],
    }
    return json.dumps(data, default=Tensor.tolist)
