"""Refuse settings that the bridge to TRL would ignore, or that bypass its loss."""

import warnings
from dataclasses import fields

import trl
from torch import Tensor
from trl import GRPOConfig

from refimpl.advantages import group_centred
from refimpl.moe import is_moe
from refimpl.validation import UserError

TESTED = "1.16"
OURS = (
    "epsilon epsilon_high delta importance_sampling_level sapo_temperature_pos "
    "sapo_temperature_neg vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
).split()
"""Settings of TRL's own policy losses, which have no effect on the bridge."""


def version() -> None:
    """Refuse versions of TRL that were not tested."""
    if trl.__version__.rsplit(".", 1)[0] != TESTED:
        raise UserError(
            f"the bridge was tested with TRL {TESTED} and overrides methods that move; "
            f"this is {trl.__version__}: pip install trl~={TESTED}.0"
        )


def loss_type(trainer) -> str:
    """Return TRL's name for the normaliser, with which TRL averages its KL."""
    name = getattr(trainer.normaliser, "trl", None)
    if name is None:
        raise UserError(
            f"{trainer.algorithm.name} is averaged by {trainer.normaliser.__name__}, "
            "but TRL averages its KL by a loss_type: give normaliser=, or name the "
            "nearest loss_type with normalisers.called(trl=…)"
        )
    return name


def settings(trainer, args: GRPOConfig) -> None:
    """Refuse settings that would silently bypass the loss or be ignored."""
    algorithm = trainer.algorithm
    if args.use_liger_kernel:
        raise UserError(
            "use_liger_kernel=True computes TRL's loss in Liger and never calls ours "
            "(trl#6808): leave it off"
        )
    default = {field.name: field.default for field in fields(GRPOConfig)}
    wanted = loss_type(trainer)
    if args.loss_type not in (wanted, default["loss_type"]):
        raise UserError(
            f"loss_type={args.loss_type!r} contradicts {algorithm.name}, which is "
            f"averaged as {wanted!r} is: leave it out"
        )
    for name in OURS:
        if getattr(args, name) != default[name]:
            raise UserError(
                f"{name}={getattr(args, name)!r} is a setting of TRL's own loss: give "
                "hyperparameters={...}, of "
                f"{', '.join(algorithm.annotations) or 'none'}"
            )
    if trainer.routed and args.gradient_checkpointing:
        raise UserError(
            "gradient_checkpointing, which TRL turns on by default, runs the layers "
            "again outside the replay: set it to False"
        )
    if trainer.replay == "R3":
        raise UserError(
            "replay='R3' is not possible: TRL's samplers do not return their routing; "
            "use 'R2'"
        )
    advantages(trainer, args, default)
    if algorithm.training.get("dynamic_sampling"):
        warnings.warn(
            f"only the loss of {algorithm.name} is used: TRL chooses a generation's "
            "prompts before any reward is known, so groups of equal rewards cannot be "
            "replaced (dynamic sampling); for the overlong punishment, add TRL's "
            "reward function get_soft_overlong_punishment",
            stacklevel=4,
        )


def advantages(trainer, args: GRPOConfig, default: dict) -> None:
    """Refuse TRL's advantages where they are not those of the method."""
    algorithm = trainer.algorithm
    if trainer.advantages is None:
        if algorithm.advantages is group_centred and args.scale_rewards != "none":
            raise UserError(
                f"{algorithm.name} uses no std: set scale_rewards='none', or "
                "give advantages="
            )
        if algorithm.critic:
            warnings.warn(
                f"TRL has no critic: {algorithm.name} is its clipped loss here, with "
                "group advantages instead of a value function's",
                stacklevel=5,
            )
    elif args.multi_objective_aggregation != default["multi_objective_aggregation"]:
        raise UserError(
            "multi_objective_aggregation is part of TRL's own advantages: leave out "
            "either it or advantages="
        )


def dense(trainer) -> None:
    """Refuse replay and router shift for a model without a router."""
    if trainer.routed and not is_moe(trainer.model):
        raise UserError(
            f"{trainer.algorithm.name} with replay={trainer.replay!r} and router_shift="
            f"{bool(trainer.placement)} needs a mixture of experts, but "
            f"{type(trainer.model).__name__} has no router; for a dense model use a "
            "method without router shift, such as gmpo"
        )


def pictures(given: dict) -> None:
    """Refuse tensors, such as images, that the recording pass would leave out."""
    tensors = [name for name, value in given.items() if isinstance(value, Tensor)]
    if tensors:
        raise UserError(
            f"replay and router_shift work for text only, got {', '.join(tensors)}"
        )
