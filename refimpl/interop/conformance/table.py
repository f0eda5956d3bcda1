"""Compare another implementation's losses with the cases, and print a table."""

import copy
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance.cases import Case
from refimpl.interop.conformance.readings import alike, matches
from refimpl.validation import UserError, nearest, one_line

NEAR = 1e-6


class Compared(NamedTuple):
    """The outcome of a case: agrees, differs, not implemented, or an error in words."""

    case: Case
    outcome: str
    largest: float = 0.0
    """The largest difference in loss and gradient."""
    reading: str | None = None

    @property
    def message(self) -> str:
        """A difference or an error as a sentence."""
        if self.outcome != "differs":
            return self.outcome
        why = self.reading or "no known reading"
        return f"loss or gradient is {self.largest:.1e} off; it matches: {why}"


def adapters(path: str | Path) -> ModuleType:
    """Import the file at `path`, which runs its code.

    Raises `UserError` if it is not a Python file, cannot be imported, or has no loss.
    """
    path = Path(path)
    if not path.is_file() or path.suffix != ".py":
        raise UserError(
            f"{str(path)!r} is no Python file: start from a copy of "
            "refimpl/interop/conformance/adapters.py"
        )
    spec = importlib.util.spec_from_file_location(f"adapters of {path}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # for imports from its own folder
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{path} cannot be imported: {one_line(error, 120)}") from error
    finally:
        sys.path.pop(0)
    named = [n for n, f in vars(module).items() if callable(f) and n[0] != "_"]
    if not set(named) & set(ALGORITHMS):
        near = next((nearest(n, ALGORITHMS) for n in named), "")
        raise UserError(
            f"{path} has no function named after an algorithm{near}; one of: "
            f"{', '.join(ALGORITHMS)}"
        )
    return module


def compare(
    module: ModuleType, cases: Iterable[Case], near: float = NEAR
) -> Iterator[Compared]:
    """Compute all cases with `module`. If it raises or exits, that is an outcome."""
    for case in cases:
        inputs = {name: x.clone() for name, x in case.inputs.items()}
        logp = inputs["logp"].requires_grad_()
        try:
            if (ask := getattr(module, case.algorithm, None)) is None:
                raise NotImplementedError
            loss = ask(inputs, copy.deepcopy(case.settings))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise UserError("a loss must be a tensor with a single number")
            (gradient,) = torch.autograd.grad(loss, logp)
            value = loss.item()
        except NotImplementedError:
            yield Compared(case, "not implemented")
            continue
        except (Exception, SystemExit) as error:
            yield Compared(case, one_line(error, 120))
            continue
        gradient = torch.nan_to_num(gradient, nan=torch.inf)
        slopes = (gradient - case.gradient).abs().max().item()
        largest = max(abs(value - case.loss), slopes)
        if alike(case.loss, case.gradient, value, gradient, near):
            yield Compared(case, "agrees", largest)
        else:
            reading = matches(case, value, gradient, near)
            yield Compared(case, "differs", largest, reading)


def shown(answers: list[Compared], title: str) -> str:
    """Format the table: a line per algorithm and outcome."""
    head = ("algorithm", title, "cases", "largest", "which reading it matches")
    rows: list[tuple[str, ...]] = [head]
    for name in dict.fromkeys(a.case.algorithm for a in answers):
        of_method = [a for a in answers if a.case.algorithm == name]
        kinds = Counter((a.outcome, a.reading) for a in of_method)
        for kind, count in kinds.most_common():
            outcome, reading = kind
            same = [a for a in of_method if (a.outcome, a.reading) == kind]
            why = reading or ""
            if outcome == "differs" and reading is None:
                parts = (f"{a.case.part}, {a.case.what}" for a in same[:3])
                why = f"no known reading: {'; '.join(parts)}"
            compared = outcome in ("agrees", "differs")
            largest = f"{max(a.largest for a in same):.1e}" if compared else ""
            rows.append((name, outcome, str(count), largest, why))
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, tuple("-" * width for width in widths))
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)
