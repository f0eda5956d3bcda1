"""Conformance, verl's configuration for a method, and a reader of logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

from refimpl.shell.flags import File, Method
from refimpl.shell.rooms import loading


def conformance(*, against: Path | None = None) -> int:
    """The cases that another implementation can be checked with, as JSON.

    Args:
        against: a file of adapters (refimpl/interop/conformance/adapters.py is one to
            fill in), which is run as code: prints how its losses compare instead;
            exits with 1 if one of them differs or fails.
    """
    with loading():
        from refimpl.interop.conformance import cases, table
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
    with loading():
        from refimpl.interop import configs
    print(configs.yaml_of(algorithm), end="")
    return 0


def read_log(log: tyro.conf.Positional[File], /, *, figure: File | None = None) -> int:
    """Name the rows of "From symptom to cause" (chapter 11) that fit a run's log.

    Args:
        log: TRL's trainer_state.json, verl's metrics as JSON lines, or a CSV.
        figure: write the six curves that decide to this PNG.
    """
    from refimpl.interop import logs, six_curves, symptoms

    known = logs.read(log)
    print(symptoms.report(known))
    if figure is not None:
        six_curves.draw(known, symptoms.findings(known), figure)
        print(f"wrote {figure}")
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "conformance": conformance,
    "read-log": read_log,
    "verl-config": verl_config,
}
