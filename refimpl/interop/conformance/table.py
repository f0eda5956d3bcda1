"""Another implementation's answers beside the cases'."""

import copy
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from tabulate import tabulate

from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance.cases import Case
from refimpl.interop.conformance.readings import alike, matches
from refimpl.settings import nearest

NEAR = 1e-6


class Found(NamedTuple):
    """What came of a case. `said`: agrees, differs, not implemented, or the error."""

    case: Case
    said: str
    largest: float = 0.0
    """of the differences in loss and gradient"""
    reading: str | None = None


def adapters(path: str | Path) -> ModuleType:
    """The file at `path`. Raises `ValueError` if it is none, or has no loss."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"there is no {path}: start from a copy of "
            "refimpl/interop/conformance/adapters.py"
        )
    if path.suffix != ".py":
        raise ValueError(f"{path} must be a Python file, named *.py")
    spec = importlib.util.spec_from_file_location(f"adapters of {path}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # for what it imports beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    named = [n for n, f in vars(module).items() if callable(f) and n[0] != "_"]
    if not set(named) & set(ALGORITHMS):
        near = next((nearest(n, ALGORITHMS) for n in named), "")
        raise ValueError(
            f"{path} has no function named after an algorithm{near}; one of: "
            f"{', '.join(ALGORITHMS)}"
        )
    return module


def compare(module: ModuleType, every: Iterable[Case], near: float = NEAR):
    """Ask `module` every case: a `Found` for each."""
    for case in every:
        ask = getattr(module, case.algorithm, None)
        if ask is None:
            yield Found(case, "not implemented")
            continue
        inputs = {name: x.clone() for name, x in case.inputs.items()}
        logp = inputs["logp"].requires_grad_()
        try:
            loss = ask(inputs, copy.deepcopy(case.settings))
            (gradient,) = torch.autograd.grad(loss, logp)
        except NotImplementedError:
            yield Found(case, "not implemented")
            continue
        except Exception as error:
            yield Found(case, f"{type(error).__name__}: {error}")
            continue
        value, gradient = loss.item(), torch.nan_to_num(gradient, nan=torch.inf)
        largest = max(
            abs(value - case.loss), (gradient - case.gradient).abs().max().item()
        )
        if alike(case.loss, case.gradient, value, gradient, near):
            yield Found(case, "agrees", largest)
        else:
            reading = matches(case, value, gradient, near)
            yield Found(case, "differs", largest, reading)


def shown(found: list[Found], title: str) -> str:
    """A line for each algorithm and kind of difference."""
    lines = []
    for name in dict.fromkeys(f.case.algorithm for f in found):
        own = [f for f in found if f.case.algorithm == name]
        counts = Counter((f.said, f.reading) for f in own)
        for (said, reading), count in counts.most_common():
            same = [f for f in own if (f.said, f.reading) == (said, reading)]
            largest = f"{max(f.largest for f in same):.1e}"
            why = reading or ""
            if said == "differs":
                why = why or "no known reading: " + "; ".join(
                    f"{f.case.part}, {f.case.what}" for f in same[:3]
                )
            blank = said not in ("agrees", "differs")
            lines.append([name, said, count, "" if blank else largest, why])
    head = ["algorithm", title, "cases", "largest", "which reading it matches"]
    return tabulate(lines, head, disable_numparse=True)
