"""What the bridge to TRL refuses: what would go around the loss, or be ignored."""

import warnings
from dataclasses import fields

import torch
import trl
from torch import Tensor
from trl import GRPOConfig

from refimpl import moe, normalisers
from refimpl.advantages import group_centred

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


def version() -> None:
    if trl.__version__.rsplit(".", 1)[0] != TESTED:
        raise ImportError(
            f"the bridge was tested with TRL {TESTED} and overrides methods that move; "
            f"this is {trl.__version__}: pip install trl~={TESTED}.0"
        )


def settings(trainer, args: GRPOConfig) -> None:
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
    if algorithm.critic and not trainer.own_advantages:
        warnings.warn(
            f"TRL has no critic: {algorithm.name} is its clipped loss here, with the "
            "group's advantages in place of those of a value function",
            stacklevel=3,
        )
    if trainer.own_advantages and (
        args.multi_objective_aggregation != default["multi_objective_aggregation"]
    ):
        raise ValueError(
            "multi_objective_aggregation is part of TRL's own advantages: leave it "
            "out, or advantages="
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


def dense(trainer) -> None:
    """Refuse what needs a router on a model without one."""
    if trainer.routed and not moe.is_moe(trainer.model):
        raise ValueError(
            f"{trainer.algorithm.name} with replay={trainer.replay!r} and router_shift="
            f"{bool(trainer.shift)} needs a mixture of experts, "
            f"{type(trainer.model).__name__} has no router; for a dense model take "
            "gmpo, of which rspo is the routed form"
        )


def split_groups(trainer) -> None:
    """Refuse groups whose responses are on several processes, where that matters."""
    if trainer.normaliser is not normalisers.group_token_mean:
        return
    args = trainer.args
    sizes = [
        (
            "per_device_train_batch_size × steps_per_generation",
            args.per_device_train_batch_size * args.steps_per_generation,
            trainer.num_generations,
        )
    ]
    if args.eval_strategy != "no":
        rows, size = args.per_device_eval_batch_size, trainer.num_generations_eval
        sizes.append(("per_device_eval_batch_size", rows, size))
    for name, rows, size in sizes:
        if rows % size:
            raise ValueError(
                f"each process has {rows} responses, and groups of {size} are split "
                f"over processes: group_token_mean needs whole ones. Make {name} a "
                "multiple of the group's size"
            )


def pictures(given: dict) -> None:
    """Refuse inputs that the pass which records routing would leave out."""
    held = [name for name, value in given.items() if isinstance(value, Tensor)]
    if held:
        raise ValueError(
            f"replay and router_shift are for text alone, got {', '.join(held)}"
        )


def shape(found: Tensor, responses: int, longest: int) -> None:
    """Refuse advantages that are neither one per response nor one per token."""
    if found.shape not in (torch.Size([responses]), torch.Size([responses, longest])):
        raise ValueError(
            f"advantages must return ({responses},), a number per response, or "
            f"({responses}, {longest}), one per token up to max_completion_length; got "
            f"{tuple(found.shape)}"
        )
