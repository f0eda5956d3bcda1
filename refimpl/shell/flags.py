"""What the command lines of all rooms share: texts that become settings."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import tyro

from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.checks import (
    Positive,
    UserError,
    annotations,
    nearest,
    parse,
    parse_pairs,
)
from refimpl.config import TrainConfig
from refimpl.corrections import RULES

Sets: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(ALGORITHMS))]
APART = ("hyperparameters", "corrections")
FIELDS = {k: v for k, v in annotations(TrainConfig).items() if k not in APART}
LEFT = {
    "max_rollout_weight": "it is the correction token_truncate",
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
    """`name=value` texts → arguments of `TrainConfig`; hyperparameters and corrections
    of the sampler, as `token_mask=0.5,5`, are set apart.

    Raises `UserError` with the nearest name if neither knows one.
    """
    settings: dict[str, Any] = {}
    hyperparameters = {}
    for name, text in parse_pairs("--set", pairs, "epochs=4").items():
        if name in fields:
            settings[name] = parse(name, fields[name], text)
        elif name in method.annotations:
            hyperparameters[name] = parse(name, method.annotations[name], text)
        elif fields and name in RULES:
            bounds = tuple(parse(name, Positive, bound) for bound in text.split(","))
            settings[name] = bounds if "," in text else bounds[0]
        elif name in LEFT:
            raise UserError(f"{name} is no setting any more: {LEFT[name]}")
        else:
            known = [*method.annotations, *sorted(fields), *RULES]
            raise UserError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, known)}; {method.name} has: "
                f"{', '.join(method.annotations) or 'none'}"
            )
    return {**gathered(settings), "hyperparameters": hyperparameters}


def gathered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings among which rules stand by name, with these in one `corrections`."""
    rules = {name: x for name, x in settings.items() if name in RULES}
    rest = {name: x for name, x in settings.items() if name not in RULES}
    return rest | {"corrections": rules} if rules else rest
