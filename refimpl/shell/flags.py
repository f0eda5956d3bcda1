"""What the command lines of all rooms share: texts that become settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import tyro

import refimpl as rl
from refimpl.config import TrainConfig
from refimpl.shell.rooms import loading
from refimpl.shell.texts import parse, parse_pairs
from refimpl.validation import Positive, UserError, annotations, nearest

if TYPE_CHECKING:
    from refimpl.algorithms import Algorithm

Sets: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]

HELPERS = {"__init__", "base", "clip", "gate"}
FOLDER = Path(__file__).parents[1] / "algorithms"
METHODS = sorted({file.stem for file in FOLDER.glob("*.py")} - HELPERS)
"""The names in `ALGORITHMS`, which has one file for each: known without torch."""
File: TypeAlias = Annotated[str, tyro.conf.arg(metavar="FILE")]
Folder: TypeAlias = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
"""As they were typed: a `Path` would make a file `h` of `h/`, and `.` of nothing."""
Method: TypeAlias = Annotated[str, tyro.conf.arg(help=", ".join(METHODS))]
APART = ("hyperparameters", "corrections")
FIELDS = {k: v for k, v in annotations(TrainConfig).items() if k not in APART}
LEFT = {
    "max_rollout_weight": "it is the correction token_truncate",
    "schedule": "the learning rate is constant",
    "warmup_updates": "the learning rate is constant",
    "max_grad_norm": "it is descent.MAX_GRAD_NORM",
    "critic_learning_rate": "it is descent.CRITIC_LEARNING_RATE",
    "router_aux_loss": "it is loss_terms.BALANCE",
    "router_shift_floor": "it is moe.GAMMA_MIN",
    "min_p": "use top_p or top_k",
    "measure_drift": "pass hooks=[experiments.drift.Drift(model)] to train",
    "share_prompts": "--model shares prompts where that pays",
    "gradient_checkpointing": "give --recompute",
}
"""Settings that are gone, and what takes their place."""


def known_method(name: str) -> "Algorithm":
    """The algorithm called `name`; a misspelt one is answered without torch.

    Raises `UserError` with the nearest name if there is none.
    """
    if name not in METHODS:
        raise UserError(
            f"unknown algorithm {name!r}{nearest(name, METHODS)}; one of: "
            f"{', '.join(METHODS)}"
        )
    with loading():
        return rl.get(name)


def parse_settings(method: "Algorithm", pairs, fields: dict = FIELDS) -> dict:
    """`name=value` texts → arguments of `TrainConfig`; hyperparameters and corrections
    of the sampler, as `token_mask=0.5,5`, are set apart.

    Raises `UserError` with the nearest name if neither knows one.
    """
    settings: dict[str, Any] = {}
    rules = rl.corrections.RULES
    hyperparameters = {}
    for name, text in parse_pairs("--set", pairs, "epochs=4").items():
        if name in fields:
            settings[name] = parse(name, fields[name], text)
        elif name in method.annotations:
            hyperparameters[name] = parse(name, method.annotations[name], text)
        elif fields and name in rules:
            bounds = tuple(parse(name, Positive, bound) for bound in text.split(","))
            settings[name] = bounds if "," in text else bounds[0]
        elif name in LEFT:
            raise UserError(f"{name} is no setting any more: {LEFT[name]}")
        else:
            known = [*method.annotations, *sorted(fields), *(rules if fields else ())]
            raise UserError(
                f"{name!r} is neither a setting of training nor a hyperparameter of "
                f"{method.name}{nearest(name, known)}; {method.name} has: "
                f"{', '.join(method.annotations) or 'none'}"
            )
    return {**gathered(settings), "hyperparameters": hyperparameters}


def gathered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings among which rules stand by name, with these in one `corrections`."""
    known = rl.corrections.RULES
    rules = {name: x for name, x in settings.items() if name in known}
    rest = {name: x for name, x in settings.items() if name not in known}
    return rest | {"corrections": rules} if rules else rest
