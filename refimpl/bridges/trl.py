"""TRL's `GRPOTrainer` with a policy loss of this package.

    trainer = RefimplGRPOTrainer(
        model, reward_funcs=reward, args=GRPOConfig(...), train_dataset=dataset,
        algorithm="sapo", hyperparameters={"tau_neg": 1.1},
    )

TRL samples, scores, splits batches over steps and processes, and adds KL, entropy bonus
and load balancing as ever: it is called with advantages of 0, which leaves its own
policy loss without value and gradient, and ours is added over the same log-probs.

    loss = − Σ_{i,t} weight_{i,t} · objective_{i,t} + what TRL adds

`weight` is made once for a generation batch, so that accumulation, several steps of a
generation and several processes keep its denominator. Tested with TRL 1.16.

**Departures.** TRL shuffles responses, not groups, into mini-batches, and takes the
denominators of the whole generation batch where `refimpl.train` takes those of a
mini-batch. Its standardised advantages have std + 1e-4 below. DAPO's dynamic sampling
and overlong punishment are not in the loss, and not here.
"""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal

import torch
import trl
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from refimpl import algorithms, moe, normalisers
from refimpl.advantages import group_centred
from refimpl.algorithms import Algorithm

TESTED = "1.16"
LOSS_TYPE = {
    normalisers.seq_mean_token_mean: "grpo",
    normalisers.token_mean: "dapo",
    normalisers.group_token_mean: "dapo",
    normalisers.constant: "dr_grpo",
}
"""TRL's name for a normaliser: what it averages its KL with."""
OURS = (
    "epsilon epsilon_high delta importance_sampling_level sapo_temperature_pos "
    "sapo_temperature_neg vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
).split()
"""Settings of TRL's policy losses, which take no part any more."""


class RefimplGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that trains with `algorithm`, a name or an `Algorithm`.

    **Arguments:** those of `GRPOTrainer`, and

    - `hyperparameters`: the algorithm's.
    - `normaliser`: a name of `NORMALISERS`; None: the paper's.
    - `advantages`: f(rewards, group) of all processes' responses, (N,) each, returning
      (N,) or, a number per token, (N, max_completion_length); None: TRL's own. Any
      `Algorithm.advantages` without a critic will do.
    - `replay`: "R2", the experts of π_old's pass are visited again in the update.
    - `router_shift`: RSPO's γ over them, with its `router_shift_floor` and `placement`;
      None: as the paper. Both need a mixture of experts, and act where π_old's pass is
      made, that is where a generation is used for more than one optimiser step.

    Raises `ImportError` on a TRL that was not tested, `ValueError` or `TypeError` on
    settings that would be ignored, or that bypass the loss.
    """

    def __init__(
        self,
        model,
        *positional,
        args: GRPOConfig | None = None,
        algorithm: str | Algorithm = "grpo",
        hyperparameters: Mapping[str, Any] | None = None,
        normaliser: normalisers.Name | None = None,
        advantages: Callable[[Tensor, Tensor], Tensor] | None = None,
        replay: Literal["R2"] | None = None,
        router_shift: bool | None = None,
        router_shift_floor: float = 0.7,
        placement: moe.Placement = "before_clip",
        **rest,
    ):
        _check_version()
        if isinstance(algorithm, str):
            algorithm = algorithms.get(algorithm)
        self.algorithm = algorithm
        self.hyperparameters = algorithm.check_hyperparameters(hyperparameters or {})
        self.normaliser = normalisers.NORMALISERS.get(normaliser, algorithm.normaliser)
        self.own_advantages = advantages
        if router_shift is None:
            router_shift = algorithm.training.get("router_shift", False)
        self.shift = (router_shift_floor, placement) if router_shift else None
        self.replay = replay
        args = GRPOConfig("trainer_output") if args is None else args
        _check(self, args)
        super().__init__(model, *positional, args=args, **rest)
        self.loss_type = LOSS_TYPE[self.normaliser]
        if self.routed and not moe.is_moe(self.model):
            raise ValueError(
                f"{algorithm.name} with replay={replay!r} and router_shift="
                f"{bool(self.shift)} needs a mixture of experts, "
                f"{type(self.model).__name__} has no router; for a dense model take "
                "gmpo, of which rspo is the routed form"
            )

    _passes: list | None = None  # routing of π_old's pass, while it is made

    @property
    def routed(self) -> bool:
        """Whether the routing of π_old's pass has to be known."""
        return bool(self.replay or self.shift)

    @property
    def group_size(self) -> int:
        """G, in training or in evaluation."""
        return (
            self.num_generations if self.model.training else self.num_generations_eval
        )

    def _calculate_rewards(self, *given):
        found = super()._calculate_rewards(*given)
        self._rewards = (found * self.reward_weights.to(found.device)).nansum(1)
        return found

    def _generate_and_score_completions(self, inputs):
        self._passes = [] if self.routed else None
        batch = super()._generate_and_score_completions(inputs)
        if self._passes and "old_per_token_logps" in batch:
            experts, logp = zip(*self._passes)
            batch |= {"experts": torch.cat(experts), "router_logp": torch.cat(logp)}
        self._passes = None
        if self.own_advantages is not None:
            batch["advantages"] = self._from_rewards(batch)
        batch["weight"] = self._whole_weight(batch)
        return batch

    def _from_rewards(self, batch: dict) -> Tensor:
        """`advantages` of all processes' rewards, of which this one keeps its own."""
        every = torch.arange(len(self._rewards), device=self._rewards.device)
        found = self.own_advantages(self._rewards, every // self.group_size)
        longest = self.max_completion_length
        if found.shape not in (every.shape, (len(every), longest)):
            raise ValueError(
                f"advantages must return ({len(every)},), a number per response, or "
                f"({len(every)}, {longest}), one per token up to max_completion_length;"
                f" got {tuple(found.shape)}"
            )
        rows = len(batch["advantages"])
        own = found[self.accelerator.process_index * rows :][:rows]
        return own if own.ndim == 1 else own[:, : batch["completion_ids"].shape[1]]

    def _whole_weight(self, batch: dict) -> Tensor:
        """The normaliser of the generation batch, this process' share."""
        mask = _mask(batch).float()
        if self.normaliser is normalisers.token_mean:  # of all processes' tokens
            tokens = batch["num_items_in_batch"].clamp(min=1)
            return mask * (self.accelerator.num_processes / tokens)
        if self.normaliser is normalisers.group_token_mean and (
            len(mask) % self.group_size
        ):
            raise ValueError(
                f"this process has {len(mask)} responses of a generation, and groups "
                f"of {self.group_size} are split over processes: group_token_mean "
                "needs whole ones. Make per_device_train_batch_size × "
                "steps_per_generation a multiple of num_generations"
            )
        group = torch.arange(len(mask), device=mask.device) // self.group_size
        return normalisers.apply(
            self.normaliser, mask, group=group, max_length=self.max_completion_length
        )

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **rest
    ):
        """As TRL's; kept for the loss, and, in π_old's pass, with the routing."""
        score = super()._get_per_token_logps_and_entropies
        if self._passes != []:  # no routing asked for, or known already
            self._scored = score(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **rest
            )
            return self._scored
        logp = []
        for rows in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
            ids = input_ids[rows]
            with moe.routed(model) as routing:
                logp += [score(model, ids, attention_mask[rows], logits_to_keep)[0]]
            experts = routing.visited(len(ids))
            self._passes.append((experts, routing.log_probs(experts)))
        return torch.cat(logp), None, None

    def _compute_loss(self, model, inputs):
        experts = inputs.get("experts")
        with _routed(model, experts, replayed=self.replay) as routing:
            none = torch.zeros_like(inputs["advantages"])
            rest = super()._compute_loss(model, {**inputs, "advantages": none})
        logp, entropies, _ = self._scored
        mask = _mask(inputs)
        old_logp = inputs.get("old_per_token_logps", logp.detach())
        weight = self._weight(inputs, mask, logp, old_logp, entropies)
        if self.shift and experts is not None:
            floor, placement = self.shift
            gamma = moe.router_shift(
                routing.log_probs(experts), inputs["router_logp"], floor
            )  # of the position where a token's distribution arises, the one before
            gamma = gamma[:, -mask.shape[1] - 1 : -1]
            old_logp, weight = moe.shifted(
                old_logp, weight, mask, gamma, placement, self.algorithm.one_ratio
            )
        found = self.algorithm.policy_loss(
            logp, old_logp, inputs["advantages"], mask, weight, **self.hyperparameters
        )
        self._note(found)
        return rest + found.loss

    def _weight(self, inputs, mask, logp, old_logp, entropies) -> Tensor:
        """Of a slice, with the corrections that TRL multiplies its own loss by."""
        weight = inputs["weight"]
        if self.model.training:
            steps = self.args.steps_per_generation
            weight = weight * steps / self.current_gradient_accumulation_steps
        if self.off_policy_mask_threshold is not None:
            advantages = inputs["advantages"]
            weight = weight * self.get_off_policy_mask(
                advantages[:, None] if advantages.ndim == 1 else advantages,
                logp,
                inputs.get("sampling_per_token_logps", old_logp),
                mask,
                self.off_policy_mask_threshold,
            )
        if self.top_entropy_quantile < 1:
            kept = self.get_high_entropy_mask(
                entropies, mask, 1 - self.top_entropy_quantile
            )
            weight = weight * kept
        if self.use_vllm and self.vllm_importance_sampling_correction:
            weight = weight * inputs["importance_sampling_ratio"]
        return weight

    def _note(self, found) -> None:
        """Our metrics in place of TRL's, which saw advantages of 0."""
        logged = self._metrics["train" if self.model.training else "eval"]
        for name in [n for n in logged if n.startswith(("clip_ratio/", "cispo_"))]:
            del logged[name][-1:]
            if not logged[name]:
                del logged[name]
        own = found.metrics | {"policy_loss": found.loss.item()}
        del logged["policy_loss"][len(logged["ratio/max_deviation"]) :]
        here = torch.tensor([[*own.values()]], device=found.loss.device)
        for name, every in zip(own, self.accelerator.gather(here).T):
            largest = name == "ratio/max_deviation"
            logged[name].append((every.max() if largest else every.mean()).item())


def _mask(inputs: dict) -> Tensor:
    return inputs["completion_mask"] * inputs.get("tool_mask", 1)


def _routed(model, experts: Tensor | None, replayed):
    """Routing recorded, and replayed, where π_old's is known."""
    if experts is None:
        return contextlib.nullcontext()
    return moe.routed(model, experts=experts if replayed else None)


def _check_version() -> None:
    if trl.__version__.rsplit(".", 1)[0] != TESTED:
        raise ImportError(
            f"the bridge was tested with TRL {TESTED} and overrides methods that move; "
            f"this is {trl.__version__}: pip install trl~={TESTED}.0"
        )


def _check(trainer: RefimplGRPOTrainer, args: GRPOConfig) -> None:
    """Refuse what would go around the loss, or be ignored, without a word."""
    algorithm = trainer.algorithm
    if args.use_liger_kernel:
        raise ValueError(
            "use_liger_kernel=True computes TRL's loss in Liger and never asks for "
            "ours (trl#6808): leave it off"
        )
    wanted = LOSS_TYPE[trainer.normaliser]
    default = {field.name: field.default for field in fields(GRPOConfig)}
    if args.loss_type not in (wanted, default["loss_type"]):
        raise ValueError(
            f"loss_type={args.loss_type!r} contradicts {algorithm.name}, which is "
            f"averaged as {wanted!r} is: leave it out"
        )
    for name in OURS:
        if getattr(args, name) != default[name]:
            raise ValueError(
                f"{name}={getattr(args, name)!r} is a setting of TRL's own loss: give "
                f"hyperparameters={{...}}, of {', '.join(algorithm.names) or 'none'}"
            )
    centred = algorithm.advantages is group_centred and not trainer.own_advantages
    if centred and args.scale_rewards != "none":
        raise ValueError(
            f"{algorithm.name} divides by no std: set scale_rewards='none', or give "
            "advantages="
        )
    if trainer.routed and args.gradient_checkpointing:
        raise ValueError(
            "gradient_checkpointing, which TRL turns on by default, runs the layers "
            "again outside of the replay: set it to False"
        )
    if algorithm.training.get("dynamic_sampling"):
        warnings.warn(
            f"of {algorithm.name} this is the loss alone: TRL's data loader hands a "
            "generation's prompts over before any reward is known, so groups of equal "
            "rewards cannot be replaced (dynamic sampling); overlong punishment is "
            "TRL's get_soft_overlong_punishment, a reward function",
            stacklevel=3,
        )
    if trainer.replay not in (None, "R2"):
        raise ValueError(
            f"replay must be 'R2' or None, got {trainer.replay!r}: TRL's samplers do "
            "not hand their routing over, so R3 cannot be had"
        )
