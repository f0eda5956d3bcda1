"""TRL's `GRPOTrainer` with a policy loss of this package.

    trainer = RefimplGRPOTrainer(model, reward, args, dataset, algorithm="sapo")

TRL samples, scores, splits batches, and adds KL, entropy bonus and load balancing as
usual. Its loss is called with advantages of 0, so that TRL's own policy loss has value
and gradient 0. Then − Σ weight · objective is added, with the same log-probs. `weight`
is computed once per generation from the responses of all processes, so that gradient
accumulation and several processes keep its denominator.

**Departures.** TRL shuffles responses, not groups, into mini-batches. The denominators
are those of the generation (in `refimpl.train`: of the mini-batch). TRL's advantages
are divided by std + 1e-4. TRL has no critic, so PPO and SAO are trained with group
advantages. DAPO's other parts are not in the loss.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
import trl
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from refimpl import algorithms, moe, normalisers
from refimpl.advantages import Scored, group_centred, group_relative
from refimpl.algorithms import Algorithm, LossResult
from refimpl.config import TrainConfig
from refimpl.interop import scored
from refimpl.moe import routed
from refimpl.options import check_fit
from refimpl.validation import UserError, guarded

TESTED = "1.16"
OF_TRLS_LOSS = (
    "loss_type epsilon epsilon_high delta importance_sampling_level "
    "sapo_temperature_pos sapo_temperature_neg "
    "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
).split()
"""Settings of TRL's own policy losses, which have no effect here."""


class RefimplGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that trains with `algorithm`, a name or an `Algorithm`.

    **Arguments:** those of `GRPOTrainer`, and

    - `hyperparameters`: the algorithm's; `normaliser`: a name, None: the paper's. TRL
      averages its KL by the `loss_type` that the normaliser names as `trl` (see
      `normalisers.called`).
    - `advantages`: f(scored), for the responses of all processes: `scored.rewards` and
      `scored.group` are (N,), `scored.mask` is (N, max_completion_length). It returns
      one of these shapes. None: TRL's if the method compares within groups as TRL does,
      else the method's.
    - `replay`: "R2" visits the experts of π_old's pass again in the update.
    - `router_shift`, `placement`: RSPO's γ for these experts, see `TrainConfig`. Replay
      and γ need a mixture of experts, and have an effect if a generation is used for
      more than one optimiser step.

    Raises `UserError` where another loss would be trained without a word: with an
    untested version of TRL, and with settings of TRL that bypass or contradict ours.
    """

    @guarded
    def __init__(
        self,
        model,
        reward_funcs=None,
        args: GRPOConfig | None = None,
        *positional,
        algorithm: str | Algorithm = "grpo",
        hyperparameters: dict | None = None,
        normaliser: Any = None,
        advantages: Callable[[Scored], Tensor] | None = None,
        replay: Literal["R2"] | None = None,  # no sampler of TRL returns its routing
        router_shift: bool | None = None,
        placement: moe.Placement = "before_clip",
        **rest,
    ):
        method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
        settings = TrainConfig(
            hyperparameters=hyperparameters or {},
            normaliser=normaliser,
            replay=replay,
            router_shift=router_shift,
        )
        config, self.hyperparameters = check_fit(settings, method)
        self.algorithm, self.replay = method, replay
        named = normalisers.NORMALISERS
        self.normaliser: Any = named.get(normaliser, method.normaliser)
        as_trl_does = method.advantages in (group_relative, group_centred)
        if advantages is None and not (as_trl_does or method.critic):
            advantages = method.advantages
        self.advantages = advantages
        self.placement = placement if config.router_shift else None
        self.routed = bool(replay or config.router_shift)
        self._passes: list | None = None  # the routing of π_old's pass while it runs
        args = GRPOConfig("trainer_output") if args is None else args
        _check(self, args)
        super().__init__(model, reward_funcs, args, *positional, **rest)
        self.loss_type = self.normaliser.trl  # by which TRL averages its KL

    @property
    def group_size(self) -> int:
        training = self.model.training
        return self.num_generations if training else self.num_generations_eval

    def _calculate_rewards(self, *given):
        each = super()._calculate_rewards(*given)
        rewards = (each * self.reward_weights.to(each.device)).nansum(1)
        self._rewards = rewards.masked_fill(each.isnan().all(1), torch.nan)
        return each

    def _generate_and_score_completions(self, inputs):
        self._passes = [] if self.routed else None
        batch = super()._generate_and_score_completions(inputs)
        if self._passes and "old_per_token_logps" in batch:
            experts, logp = zip(*self._passes)
            batch |= {"experts": torch.cat(experts), "router_logp": torch.cat(logp)}
        self._passes = None
        return self._weighted(batch)

    def _weighted(self, batch: dict) -> dict:
        """Add weights, and advantages of ours, from the responses of all processes."""
        longest, size = self.max_completion_length, self.group_size
        mask = self.accelerator.pad_across_processes(_mask(batch), dim=1)
        mask = F.pad(mask, (0, max(0, longest - mask.shape[1])))
        masks = self.accelerator.gather(mask)
        if self.advantages is not None:
            of_all = scored.advantages_of(self.advantages, self._rewards, masks, size)
            batch["advantages"] = self._share(of_all, batch)
        group = torch.arange(len(masks), device=masks.device) // size
        sizes = {"group": group, "max_length": longest}
        weight = self._share(normalisers.apply(self.normaliser, masks, **sizes), batch)
        # Times the number of processes, because their gradients are averaged.
        batch["weight"] = weight * self.accelerator.num_processes
        return batch

    def _share(self, whole: Tensor, batch: dict) -> Tensor:
        """Return this process's rows and columns of a tensor for all processes."""
        rows, width = batch["completion_ids"].shape
        part = whole[self.accelerator.process_index * rows :][:rows]
        return part if part.ndim == 1 else part[:, :width]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **rest
    ):
        """Call TRL's method, and store log-probs for the loss or π_old's routing."""
        score = super()._get_per_token_logps_and_entropies
        if self._passes != []:  # routing is not needed, or already recorded
            self._scored = score(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **rest
            )
            return self._scored
        if any(isinstance(value, Tensor) for value in rest.values()):
            raise UserError("replay and router_shift work for text only")
        logp = []
        for rows in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
            ids = input_ids[rows]
            with routed(model) as routing:
                logp += [score(model, ids, attention_mask[rows], logits_to_keep)[0]]
            self._passes.append(routing.visits(len(ids)))
        return torch.cat(logp), None, None

    def _compute_loss(self, model, inputs):
        experts = inputs.get("experts")
        watched = contextlib.nullcontext()
        if experts is not None:
            watched = routed(model, experts=experts if self.replay else None)
        with watched as routing:
            plain = {**inputs, "advantages": torch.zeros_like(inputs["advantages"])}
            if not (self.beta and self.args.use_bias_correction_kl):
                plain.pop("old_per_token_logps", None)  # r = 1: exp(z) · 0 may be ∞ · 0
            rest = super()._compute_loss(model, plain)
        logp, entropies, _ = self._scored
        mask = _mask(inputs)
        old_logp = inputs.get("old_per_token_logps", logp.detach())
        weight = self._weight(inputs, mask, logp, old_logp, entropies)
        if self.placement and experts is not None:
            now = routing.log_probs(experts)
            gamma = moe.router_shift(now, inputs["router_logp"])
            gamma = gamma[:, -mask.shape[1] - 1 : -1]  # where a log-prob is computed
            one_ratio = self.algorithm.one_ratio
            old_logp, weight = moe.shifted(
                old_logp, weight, mask, gamma, self.placement, one_ratio
            )
        result = self.algorithm.policy_loss(
            logp, old_logp, inputs["advantages"], mask, weight, **self.hyperparameters
        )
        self._note(result)
        return rest + result.loss

    def _weight(self, inputs, mask, logp, old_logp, entropies) -> Tensor:
        """Return the weight of a slice, times the corrections of TRL's own loss."""
        weight = inputs["weight"]
        if self.model.training:
            steps = self.args.steps_per_generation
            weight = weight * steps / self.current_gradient_accumulation_steps
        if (limit := self.off_policy_mask_threshold) is not None:
            advantages = inputs["advantages"].view(len(mask), -1)
            sampled = inputs.get("sampling_per_token_logps", old_logp)
            on_policy = self.get_off_policy_mask(advantages, logp, sampled, mask, limit)
            weight = weight * on_policy
        if (share := self.top_entropy_quantile) < 1:
            weight = weight * self.get_high_entropy_mask(entropies, mask, 1 - share)
        if self.use_vllm and self.vllm_importance_sampling_correction:
            weight = weight * inputs["importance_sampling_ratio"]
        return weight

    def _note(self, result: LossResult) -> None:
        """Log our metrics in place of TRL's, which belong to advantages of 0."""
        logged = self._metrics["train" if self.model.training else "eval"]
        for name in [n for n in logged if n.startswith(("clip_ratio/", "cispo_"))]:
            del logged[name][-1:]
            if not logged[name]:
                del logged[name]
        ours = result.metrics | {"policy_loss": result.loss.item()}
        del logged["policy_loss"][len(logged["ratio/max_deviation"]) :]  # TRL's, if any
        here = torch.tensor([[*ours.values()]], device=result.loss.device)
        for name, values in zip(ours, self.accelerator.gather(here).T):
            value = values.max() if name == "ratio/max_deviation" else values.mean()
            logged[name].append(value.item())


def _check(trainer: RefimplGRPOTrainer, args: GRPOConfig) -> None:
    """Raise `UserError` where another loss would be trained without a word."""
    method = trainer.algorithm
    if trl.__version__.rsplit(".", 1)[0] != TESTED:
        raise UserError(
            f"the bridge was tested with TRL {TESTED} and overrides methods that move; "
            f"this is {trl.__version__}: pip install trl~={TESTED}.0"
        )
    if args.use_liger_kernel:
        raise UserError(
            "use_liger_kernel=True computes TRL's loss in Liger and never calls ours "
            "(trl#6808): leave it off"
        )
    for name in OF_TRLS_LOSS:
        if getattr(args, name) != GRPOConfig.__dataclass_fields__[name].default:
            raise UserError(
                f"{name}={getattr(args, name)!r} is a setting of TRL's own loss: give "
                "algorithm=... and hyperparameters={...}, which for "
                f"{method.name} are {', '.join(method.annotations) or 'none'}"
            )
    by_trl = trainer.advantages is None
    if by_trl and method.advantages is group_centred and args.scale_rewards != "none":
        raise UserError(
            f"{method.name} uses no std: set scale_rewards='none', or give advantages="
        )
    if trainer.routed and args.gradient_checkpointing:
        raise UserError(
            "gradient_checkpointing, which TRL turns on by default, runs the layers "
            "again outside the replay: set it to False"
        )


def _mask(batch: dict) -> Tensor:
    return batch["completion_mask"] * batch.get("tool_mask", 1)
