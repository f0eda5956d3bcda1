"""Terms that are added to a loss, and corrections of the arguments of a loss.

Both are objects, or functions. `options` makes those that settings ask for, and a user
may hand others to `train`:

    train("grpo", loss_terms=[Entropy(0.01)], corrections=[SamplerMismatch(rules)])

    term(part, reading, weight)        → (added loss, metrics)
    correction(part, reading, inputs)  → corrected inputs of the loss

`part` is a micro-batch, and `reading` the result of the policy's pass over it. `weight`
(B, T) comes from the normaliser: computed on the mini-batch, then cut to the part.
A metric is this micro-batch's part of the mini-batch's number, as the loss is: parts
add up. (`part.share` times a mean over the micro-batch's tokens is such a part.)
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl import corrections, moe
from refimpl.algorithms import Algorithm, LossInputs, value_loss
from refimpl.history import Metrics
from refimpl.kl import ESTIMATORS, Divergence, Estimator, divergence
from refimpl.logprobs import Reading, response_logits
from refimpl.models import at_least_float32, precision
from refimpl.moe import BALANCE
from refimpl.rollout import Batch
from refimpl.validation import (
    Count,
    Positive,
    UserError,
    Weight,
    checked,
    named,
    shown,
)

DROPPED = "rollout_corr/rollout_rs"
Added = tuple[Float[Tensor, ""], Metrics]
Term = Callable[[Batch, Reading, Tensor], Added]


class Part:
    """A term or a correction. A run calls `for_run` once, before its first rollout.

    `for_run(run)` returns the object to call: itself, or one that knows the run or has
    a state of its own. It raises `UserError` if the run lacks what it needs. `setting`
    is the one of `TrainConfig` that asks for the same thing.
    """

    setting = ""

    def for_run(self, run: Any) -> Any:
        """Return the object that `run` calls."""
        return self

    def __call__(self, part: Batch, reading: Reading, given: Any) -> Any:
        raise NotImplementedError


class LossTerm(Part):
    """A term of this package."""


@checked
class KL(LossTerm):
    """+ β Σ weight · KL(π_θ ‖ π_ref), by an estimator of `refimpl.kl`.

    π_ref is the policy at the start of the run, and KL is in nats per token.
    """

    setting = "beta"
    beta: Positive
    estimator: Estimator = "k3"

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        estimate = ESTIMATORS[self.estimator]
        kl = estimate(reading.logp, part.ref_logp, part.old_logp)
        return self.beta * (kl * weight).sum(), {}


@checked
class Entropy(LossTerm):
    """− c₂ Σ weight · H, with the entropy H of the next-token distribution.

    PPO (1707.06347), Eq. 9, which adds c₂ H to an objective. H is in nats.
    """

    setting = "entropy_bonus"
    bonus: Weight

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        return -self.bonus * (reading.entropy * weight).sum(), {}


@checked
class Distillation(LossTerm):
    """+ β Σ weight · D(π_θ, π_T), with a divergence of the whole distributions.

    GKD (2306.13649) on the policy's own samples. D is in nats per token, at the
    sampling temperature; `kl.divergence` explains the fields. Policy and teacher read
    each micro-batch once more, for their logits (B, T, V).
    """

    beta: Positive = 1.0
    kind: Divergence = "reverse"
    top_k: Count | None = None
    tail: bool = True

    def for_run(self, run: Any) -> Term:
        """Return the term of a run. Raises `UserError` if it has no teacher."""
        if run.teacher is None:
            raise UserError("the loss term Distillation needs train(…, teacher=model)")

        def term(part: Batch, reading: Reading, weight: Tensor) -> Added:
            both = run.model, run.teacher
            with precision(run.model, run.config.dtype):
                logits = [response_logits(model, part.rollout) for model in both]
            logits = [at_least_float32(x) / run.config.temperature for x in logits]
            student, teacher = (x.log_softmax(-1) for x in logits)
            apart = divergence(student, teacher, self.kind, self.top_k, self.tail)
            return self.beta * (apart * weight).sum(), {}

        return term


@checked
class Value(LossTerm):
    """+ the critic's loss: a mean over tokens, regardless of the policy's normaliser.

    `values` is f(rollout) → V, (B, T). `clip` is the ε of `value_loss`, in reward
    units; None switches clipping off.
    """

    values: Callable = field(repr=False)
    clip: Positive | None = 0.2

    def for_run(self, run: Any) -> "Value":
        """Raise `UserError` if the run has no critic."""
        if run.critic is None:
            raise UserError("the loss term Value needs a critic: set advantage='gae'")
        return self

    def __call__(self, part: Batch, reading=None, weight=None) -> Added:
        predicted = self.values(part.rollout)
        mean = part.mask.to(predicted.dtype) / part.token_count
        loss = value_loss(
            predicted,
            part.old_values,
            part.targets,
            part.mask,
            mean,
            epsilon=self.clip,
        )
        # The column `loss` shows the policy's: the critic's leaves it again.
        return loss, {"value_loss": loss.detach(), "loss": -loss.detach()}


@checked
class LoadBalance(LossTerm):
    """+ 1e-3 times the load-balancing loss, computed on each micro-batch separately."""

    def for_run(self, run: Any) -> "LoadBalance":
        """Raise `UserError` on a dense model."""
        check_routers(self, run)
        return self

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        routers, mask = reading.routers, part.rollout.mask
        # Unlike the other terms it is not a sum over tokens: `weight` cannot scale it.
        share, tokens = part.mask.sum() / part.token_count, mask.sum()
        balance = routers.balance
        # Its metrics are means over the tokens with a pass, which may be fewer.
        passed = (part.passed_count / part.token_count).clamp(min=1e-38)
        measured = {
            "router/expert_change": (routers.expert_change * mask).sum() / tokens,
            "router/shift": (routers.gamma.detach() * mask).sum() / tokens,
            "router/load_balance": balance.detach(),
        }
        measured = {name: part.share * x / passed for name, x in measured.items()}
        return BALANCE * share * balance, measured


def added(term: Term, part: Batch, reading: Reading, weight: Tensor) -> Added:
    """Call a loss term. Raises `UserError` unless it returns what a term must."""
    match back := term(part, reading, weight):
        case Tensor(ndim=0), dict() as metrics:
            return back[0], {name: torch.as_tensor(x) for name, x in metrics.items()}
    raise UserError(
        f"the loss term {named(term)} must return a tensor of one number and a "
        f"dictionary of metrics, got {shown(back)}"
    )


Correction = Callable[[Batch, Reading, LossInputs], LossInputs]


def corrected(
    correct: Correction, part: Batch, reading: Reading, inputs: LossInputs
) -> LossInputs:
    """Call a correction. Raises `UserError` unless all shapes stay as they are."""
    back = correct(part, reading, inputs)
    shapes = [getattr(x, "shape", None) for x in getattr(back, "arguments", ())]
    if shapes != [x.shape for x in inputs.arguments]:
        raise UserError(
            f"the correction {named(correct)} must return inputs._replace(weight=…), "
            f"or another of the inputs in its shape (B, T), got {shown(back)}"
        )
    metrics = {name: torch.as_tensor(x) for name, x in back.metrics.items()}
    return back._replace(metrics=metrics)


class LossCorrection(Part):
    """A correction of this package."""


@checked
class SamplerMismatch(LossCorrection):
    """weight ← weight · the factor of rules of `refimpl.corrections`.

    With `two_policies`, which a run fills in, the rules are applied to π_θ/μ, because
    the sampler's μ stands for π_old; otherwise to π_old/μ. The metrics have verl's
    names: the share of a mini-batch's tokens that are dropped, and of its responses
    that lose a token.
    """

    setting = "corrections"
    rules: Mapping
    two_policies: bool = False

    def __post_init__(self):
        corrections.check(self.rules)

    def for_run(self, run: Any) -> "SamplerMismatch":
        """Fill in `two_policies`. Raises `UserError` if the ratio is π_θ/μ already."""
        weighing = corrections.WEIGHING & self.rules.keys()
        ratio = has_ratio(run.algorithm, run.hyperparameters)
        if weighing and run.config.trust_sampler and ratio:
            raise UserError(
                f"{weighing.pop()} multiplies by π_θ/μ, and so does "
                f"{run.algorithm.name}, whose ratio is against the sampler: use a rule "
                "that only drops, for example token_reject"
            )
        rules = corrections.check(self.rules)  # with tuples for the lists of JSON
        return replace(self, rules=rules, two_policies=run.config.trust_sampler)

    def __call__(self, part: Batch, reading: Reading, inputs: LossInputs) -> LossInputs:
        now, mask = reading.logp.detach(), part.mask
        logp = now if self.two_policies else part.old_logp
        negative = part.advantages < 0
        gap = corrections.SamplerGap(logp, part.rollout.logp, now, mask, negative)
        factor = corrections.product(self.rules, gap)
        dropped = (factor == 0) & mask.bool()
        tokens = dropped.sum() / part.token_count
        rows = dropped.any(-1).sum() / part.response_count
        names = f"{DROPPED}_masked_fraction", f"{DROPPED}_seq_masked_fraction"
        measured = inputs.metrics | dict(zip(names, (tokens, rows)))
        return inputs._replace(weight=inputs.weight * factor, metrics=measured)


@checked
class RouterShift(LossCorrection):
    """Multiply the ratio by RSPO's γ (2510.23027), before or after the clip.

    `detach` makes γ a constant; without it γ has a gradient, against which the paper
    warns. `one_ratio`: the loss has one ratio per response; a run fills it in.
    """

    setting = "router_shift"
    placement: moe.Placement = "before_clip"
    detach: bool = True
    one_ratio: bool = True

    def __post_init__(self):
        if self.placement == "after_clip" and not self.detach:
            raise UserError(
                "detach=False needs placement='before_clip', where γ is in the ratio"
            )

    def for_run(self, run: Any) -> "RouterShift":
        """Fill in `one_ratio`. Raises `UserError` without routers, or a ratio."""
        check_routers(self, run)
        if not has_ratio(run.algorithm, run.hyperparameters):
            raise UserError(
                f"RouterShift multiplies the ratio, and {run.algorithm.name} has none "
                "without correct=True"
            )
        return replace(self, one_ratio=run.algorithm.one_ratio)

    def __call__(self, part: Batch, reading: Reading, inputs: LossInputs) -> LossInputs:
        gamma, logp = reading.routers.gamma, inputs.logp
        old_logp, weight = moe.shifted(
            inputs.old_logp,
            inputs.weight,
            part.mask,
            gamma,
            self.placement,
            self.one_ratio,
        )
        if not self.detach:  # add 0, with the gradient of log γ
            logp = logp + (gamma.log() - gamma.log().detach()) * part.mask
        return inputs._replace(logp=logp, old_logp=old_logp, weight=weight)


def has_ratio(method: Algorithm, hyperparameters: Mapping) -> bool:
    """A method may make its ratio optional, by a hyperparameter `correct`."""
    return {"correct": True, **method.defaults, **hyperparameters}["correct"]


def check_routers(part: Part, run: Any) -> None:
    """Raise `UserError` unless the run's routers can be read."""
    if not run.records_routing:
        raise UserError(
            f"{type(part).__name__} acts on routers, and this policy has none that can "
            "be recorded: give a mixture of experts, such as "
            "warm_start(WarmStart(preset='tiny-moe'))"
        )
