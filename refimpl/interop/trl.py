"""TRL's `GRPOTrainer` with a policy loss of this package.

    trainer = RefimplGRPOTrainer(model, reward, args, dataset, algorithm="sapo")

TRL samples, scores, splits batches, and adds KL, entropy bonus and load balancing as
ever. It is called with advantages of 0, which leaves its own policy loss without value
and gradient; − Σ weight · objective is added over the same log-probs. `weight` is made
once for a generation, so that accumulation and processes keep its denominator.

**Departures.** TRL shuffles responses, not groups, into mini-batches, and their
denominators are the generation's (here: a mini-batch's). Its advantages are divided by
std + 1e-4. DAPO's other parts are not in the loss.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from refimpl import algorithms, moe, normalisers
from refimpl.advantages import leave_one_out
from refimpl.algorithms import Algorithm
from refimpl.interop import trl_refused as refused
from refimpl.interop.scored import advantages_of


class RefimplGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that trains with `algorithm`, a name or an `Algorithm`.

    **Arguments:** those of `GRPOTrainer`, and

    - `hyperparameters`: the algorithm's; `normaliser`: a name, None: the paper's.
    - `advantages`: f(rewards, group) of all processes' responses, (N,) each, returning
      (N,) or, per token, (N, max_completion_length); None: TRL's (REINFORCE: its own).
    - `replay`: "R2", the experts of π_old's pass are visited again in the update.
    - `router_shift`: RSPO's γ over them, see `TrainConfig`; None: as the paper. Both
      act where a generation is used for more than one optimiser step.

    Raises `ImportError` on a TRL that was not tested, `ValueError` or `TypeError` on
    settings that would be ignored, or that bypass the loss.
    """

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: GRPOConfig | None = None,
        *positional,
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
        refused.version()
        method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
        self.hyperparameters = method.check_hyperparameters(hyperparameters or {})
        self.normaliser = normalisers.NORMALISERS.get(normaliser, method.normaliser)
        if advantages is None and method.advantages is leave_one_out:
            advantages = leave_one_out  # TRL has no name for REINFORCE's
        self.algorithm, self.own_advantages, self.replay = method, advantages, replay
        if router_shift is None:
            router_shift = method.training.get("router_shift", False)
        self.shift = (router_shift_floor, placement) if router_shift else None
        self.routed = bool(replay or router_shift)
        self._passes: list | None = None  # routing of π_old's pass, while it is made
        args = GRPOConfig("trainer_output") if args is None else args
        refused.settings(self, args)
        super().__init__(model, reward_funcs, args, *positional, **rest)
        self.loss_type = refused.LOSS_TYPE[self.normaliser]
        refused.dense(self)
        refused.split_groups(self)

    @property
    def group_size(self) -> int:
        own, in_evaluation = self.num_generations, self.num_generations_eval
        return own if self.model.training else in_evaluation

    def _calculate_rewards(self, *given):
        found = super()._calculate_rewards(*given)
        rewards = (found * self.reward_weights.to(found.device)).nansum(1)
        self._rewards = rewards.masked_fill(found.isnan().all(1), torch.nan)
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
        longest, rows = self.max_completion_length, len(batch["advantages"])
        given = self.own_advantages, self._rewards, self.group_size, longest
        own = advantages_of(*given)[self.accelerator.process_index * rows :][:rows]
        return own if own.ndim == 1 else own[:, : batch["completion_ids"].shape[1]]

    def _whole_weight(self, batch: dict) -> Tensor:
        """The normaliser of the generation batch, this process' share."""
        mask = _mask(batch)
        if self.normaliser is normalisers.token_mean:  # of all processes' tokens
            tokens = batch["num_items_in_batch"].clamp(min=1)
            return mask * (self.accelerator.num_processes / tokens)
        group = torch.arange(len(mask), device=mask.device) // self.group_size
        known = {"group": group, "max_length": self.max_completion_length}
        return normalisers.apply(self.normaliser, mask, **known)

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
        refused.pictures(rest)
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
        routed = contextlib.nullcontext()
        if experts is not None:
            routed = moe.routed(model, experts=experts if self.replay else None)
        with routed as routing:
            plain = {**inputs, "advantages": torch.zeros_like(inputs["advantages"])}
            if not (self.beta and self.args.use_bias_correction_kl):
                plain.pop("old_per_token_logps", None)  # r = 1: exp(z) · 0 may be ∞ · 0
            rest = super()._compute_loss(model, plain)
        logp, entropies, _ = self._scored
        mask = _mask(inputs)
        old_logp = inputs.get("old_per_token_logps", logp.detach())
        weight = self._weight(inputs, mask, logp, old_logp, entropies)
        if self.shift and experts is not None:
            floor, placement = self.shift
            now = routing.log_probs(experts)
            gamma = moe.router_shift(now, inputs["router_logp"], floor)
            gamma = gamma[:, -mask.shape[1] - 1 : -1]  # where a token's logp arises
            rest_of = mask, gamma, placement, self.algorithm.one_ratio
            old_logp, weight = moe.shifted(old_logp, weight, *rest_of)
        given = logp, old_logp, inputs["advantages"], mask, weight
        found = self.algorithm.policy_loss(*given, **self.hyperparameters)
        self._note(found)
        return rest + found.loss

    def _weight(self, inputs, mask, logp, old_logp, entropies) -> Tensor:
        """Of a slice, with the corrections that TRL multiplies its own loss by."""
        weight = inputs["weight"]
        if self.model.training:
            steps = self.args.steps_per_generation
            weight = weight * steps / self.current_gradient_accumulation_steps
        if (limit := self.off_policy_mask_threshold) is not None:
            advantages = inputs["advantages"].view(len(mask), -1)
            sampled = inputs.get("sampling_per_token_logps", old_logp)
            kept = self.get_off_policy_mask(advantages, logp, sampled, mask, limit)
            weight = weight * kept
        if (share := self.top_entropy_quantile) < 1:
            weight = weight * self.get_high_entropy_mask(entropies, mask, 1 - share)
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
        del logged["policy_loss"][len(logged["ratio/max_deviation"]) :]  # TRL's, if any
        here = torch.tensor([[*own.values()]], device=found.loss.device)
        for name, every in zip(own, self.accelerator.gather(here).T):
            one = every.max() if name == "ratio/max_deviation" else every.mean()
            logged[name].append(one.item())


def _mask(batch: dict) -> Tensor:
    return batch["completion_mask"] * batch.get("tool_mask", 1.0)
