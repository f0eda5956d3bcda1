"""`python -m refimpl conformance`, and verl's configuration for a method."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refimpl.interop import configs
from refimpl.interop.conformance import cases, table
from refimpl.shell.flags import Method


def conformance(*, against: Path | None = None) -> int:
    """The cases that another implementation can be checked with, as JSON.

    Args:
        against: a file of adapters (refimpl/interop/conformance/adapters.py is one to
            fill in), which is run as code: prints how its losses compare instead;
            exits with 1 if one of them differs or fails.
    """
    if against is None:
        print(json.dumps(cases.as_json(list(cases.cases()))))
        return 0
    module = table.adapters(against)  # first: the cases take seconds
    answers = list(table.compare(module, list(cases.cases())))
    title = str(getattr(module, "FRAMEWORK", against.stem))
    print(table.shown(answers, title, cases.left_out()))
    fine = ("agrees", "not implemented")
    return 0 if all(answer.outcome in fine for answer in answers) else 1


def verl_config(algorithm: Method, /) -> int:
    """Print verl's configuration for a method: > sapo.yaml."""
    print(configs.yaml_of(algorithm), end="")
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "conformance": conformance,
    "verl-config": verl_config,
}
