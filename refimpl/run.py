"""`Run`: what a training run carries from rollout to rollout, as `prepare` built it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import logprobs
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.logprobs import Known, Reading
from refimpl.loss_terms import Correction, Term
from refimpl.models import Model, precision
from refimpl.moe import Routing, drift, routed
from refimpl.rollout import Batch, Rollout
from refimpl.samplers import Policy
from refimpl.validation import UserError, shown


@dataclass
class Run:
    """`config` is completed, `hyperparameters` are checked, `log_probs` reads a model's
    log-probs and entropies of a rollout. `reference` is None without a KL."""

    algorithm: Algorithm
    config: TrainConfig
    hyperparameters: dict
    weight: Callable[[Batch], Tensor]  # the normaliser of a mini-batch, (B, T)
    tokenizer: PreTrainedTokenizerBase
    task: Any  # see `refimpl.tasks`
    reward: Callable
    model: Model
    critic: Model | None
    reference: Model | None
    sampler: Policy
    log_probs: Callable
    optimizer: torch.optim.Optimizer
    history: History
    routers_known: bool  # a mixture of experts whose routing can be recorded
    acts_everywhere: bool  # something has a gradient also where the advantage is 0
    by_group: bool = False  # `log_probs` reads a group's prompt once
    corrections: list[Correction] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    stop_signal: int | None = None  # the signal that asked the run to end
    complete: bool = True  # all updates of the latest rollout are made
    batch: Batch | None = None  # of the latest rollout
    progress: bool = False  # samples are printed as they come

    def last(self, step: int) -> bool:
        """Whether the run ends with this rollout."""
        return step + 1 == self.config.rollouts or bool(self.stop_signal)

    def read(self, rollout: Rollout) -> Reading:
        """The policy's pass over a rollout, with its graph."""
        replayed = rollout.experts if self.config.replay else None
        logp, entropy, routing = self.routed(rollout, replayed)
        if torch.is_grad_enabled() and not logp.requires_grad:
            raise UserError(
                "log_probs must return logp with its gradient, not detached"
            )
        drifted = drift(rollout, routing) if routing else None
        return Reading(logp, entropy, drifted)

    def routed(
        self, rollout: Rollout, experts: Tensor | None
    ) -> tuple[Tensor, Tensor, Routing | None]:
        """`log_probs_of` the policy with these experts replayed, and what its routers
        did, where that can be recorded."""
        watched: Any = contextlib.nullcontext()
        if self.routers_known:
            watched = routed(self.model, experts=experts)
        with watched as routing:
            logp, entropy = self.log_probs_of(self.model, rollout)
        return logp, entropy, routing

    def log_probs_of(self, model: Model, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies in this run's precision."""
        with precision(model, self.config.dtype):
            found = self.log_probs(model, rollout, self.config.temperature)
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(
                f"log_probs must return (logp, entropy), got {shown(found)}"
            )
        return found

    def values(self, rollout: Rollout) -> Float[Tensor, "B T"]:
        """The critic's values before each response token, in this run's precision."""
        with precision(self.model, self.config.dtype):
            return logprobs.values(self.critic, rollout)

    def known(self, rollout: Rollout) -> Known:
        """What stays constant during the updates, by its name in `Batch` or `Rollout`.

        log π_old, with the experts that it visits, if the sampler's log-probs are not
        to stand for it, or if the experts are to be those of a training pass (R2);
        log π_ref and a critic's values, if there are these models.
        """
        config, replay, found = self.config, self.config.replay, Known()
        if (config.mismatch and not config.trust_sampler) or replay == "R2":
            experts = rollout.experts if replay == "R3" else None
            found["old_logp"], _, routing = self.routed(rollout, experts)
            if routing:
                found |= routing.visits(len(rollout))._asdict()
        if self.reference is not None:
            found["ref_logp"], _ = self.log_probs_of(self.reference, rollout)
        if self.critic is not None:
            found["old_values"] = self.values(rollout)
        return found
