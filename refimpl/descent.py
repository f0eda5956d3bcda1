"""A step of the optimiser: its rates, and the limit of the gradient's norm."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.config import TrainConfig
from refimpl.history import Meter
from refimpl.models import Model, trained
from refimpl.moe import routers
from refimpl.run import Run

CRITIC_LEARNING_RATE = 1e-3
MAX_GRAD_NORM = 1.0
"""The gradient's norm is cut off here, the critic's by itself."""


def optimizer(
    model: Model, critic: Model | None, config: TrainConfig
) -> torch.optim.Optimizer:
    """For what is trained, each at its rate: routers and critic may have another."""
    rate = config.learning_rate
    faster = routers(model) if config.router_rate != 1 else []
    apart = [p for r in faster for p in r.parameters() if p.requires_grad]
    rest = [p for p in trained(model) if not any(p is router for router in apart)]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}]
    if apart:
        groups.append({"params": apart, "lr": config.router_rate * rate})
    if critic is not None:
        groups.append({"params": critic.parameters(), "lr": CRITIC_LEARNING_RATE})
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, **common)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), **common)


def descend(run: Run, meter: Meter) -> Float[Tensor, ""]:
    """Clip the gradient's norm, step, and forget it; the norm before clipping."""
    norms = {}
    for name, model in (("policy", run.model), ("critic", run.critic)):
        if model is not None:
            every = model.parameters()
            norms[name] = torch.nn.utils.clip_grad_norm_(every, MAX_GRAD_NORM)
    for name, norm in zip(norms, torch.stack([*norms.values()]).tolist()):
        if not math.isfinite(norm):  # the weights are those of the last good step
            done = len(run.history) * run.config.updates_per_rollout
            raise FloatingPointError(
                f"update {done + len(meter.updates) + 1}: the norm of the {name}'s "
                f"gradient is {norm}, training has diverged; lower the learning rate, "
                "or clip ratios more tightly (chapter 11 goes from symptoms to causes)"
            )
    run.optimizer.step()
    run.optimizer.zero_grad()
    return norms["policy"]


def check_finite(model: Model) -> None:
    """The gradients were: what a step made of them may not be."""
    if not torch.nn.utils.get_total_norm(model.parameters()).isfinite():
        raise FloatingPointError(
            "the weights are no longer finite after the last update: training has "
            "diverged; lower the learning rate"
        )
