"""What the command lines of all rooms share: texts that become settings."""

from typing import Annotated, Any, TypeAlias

import tyro

from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.checks import UserError, annotations, nearest, parse, parse_pairs
from refimpl.config import TrainConfig

Sets: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(ALGORITHMS))]
FIELDS = {k: v for k, v in annotations(TrainConfig).items() if k != "hyperparameters"}
LEFT = {
    "schedule": "the learning rate is constant",
    "warmup_updates": "the learning rate is constant",
    "max_grad_norm": "it is train.MAX_GRAD_NORM",
    "critic_learning_rate": "it is prepare.CRITIC_LEARNING_RATE",
    "router_aux_loss": "it is terms.BALANCE",
    "router_shift_floor": "it is moe.GAMMA_MIN",
    "min_p": "use top_p or top_k",
    "measure_drift": "pass hooks=[refimpl.lab.drift.Drift(model)] to train",
    "share_prompts": "--model shares prompts where that pays",
    "gradient_checkpointing": "give --recompute",
}
"""Settings that are gone, and what takes their place."""


def parse_settings(method: Algorithm, pairs, fields: dict = FIELDS) -> dict:
    """`name=value` texts → arguments of `TrainConfig`, hyperparameters set apart.

    Raises `UserError` with the nearest name if neither knows one.
    """
    settings: dict[str, Any] = {}
    hyperparameters = {}
    for name, text in parse_pairs("--set", pairs, "epochs=4").items():
        if name in fields:
            settings[name] = parse(name, fields[name], text)
        elif name in method.annotations:
            hyperparameters[name] = parse(name, method.annotations[name], text)
        elif name in LEFT:
            raise UserError(f"{name} is no setting any more: {LEFT[name]}")
        else:
            known = [*method.annotations, *sorted(fields)]
            raise UserError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, known)}; {method.name} has: "
                f"{', '.join(method.annotations) or 'none'}"
            )
    return {**settings, "hyperparameters": hyperparameters}
