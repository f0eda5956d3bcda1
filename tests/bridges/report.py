"""Write CONFORMANCE.md, what six engines answer to the cases, and
references.json, TRL's and verl's numbers, which tests/losses holds ours against.

`python tests/bridges/report.py` asks them again. Why they differ is written by hand, at
the end of the page, and kept.
"""

import datetime
import json
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

import refimpl
from refimpl.interop.conformance import cases, table
from refimpl.validation import UserError

HERE = Path(__file__).parent
ENGINES = "trl", "verl", "liger", "openrlhf", "skyrl", "areal"
PAGE, FROZEN = HERE / "CONFORMANCE.md", HERE.parent / "losses" / "references.json"
BEFORE, HEAD, WHY = PAGE.read_text(encoding="utf-8").partition("## Why they differ\n")
EXPLAINED = re.findall(r"^- \*\*(.*)\.\*\*", WHY, re.MULTILINE)


def answers(name: str) -> tuple[str, list[table.Compared]]:
    """A framework with its version, and its answers."""
    module = table.adapters(HERE / f"adapters_{name}.py")
    with warnings.catch_warnings(action="ignore"):
        return module.FRAMEWORK, list(table.compare(module, cases.cases()))


def unexplained(compared: list[table.Compared]) -> list[str]:
    """The cases that differ, or fail, for no reason that the page gives."""
    fine = ("agrees", "not implemented")
    return [
        f"{c.case.name}: {c.outcome}"
        for c in compared
        if c.outcome not in fine
        and not {*str(c.reading).split(", and ")} <= {*EXPLAINED}
    ]


def references(name: str) -> list[dict]:
    """A framework's losses and gradients of typical inputs, where they agree."""
    module = table.adapters(HERE / f"adapters_{name}.py")
    typical, found = [c for c in cases.cases() if c.what == "typical"], []
    for case, outcome, *_ in table.compare(module, typical):
        if outcome == "agrees":
            logp = case.inputs["logp"].clone().requires_grad_()
            ask = getattr(module, case.algorithm)
            loss = ask(case.inputs | {"logp": logp}, case.settings)
            (gradient,) = torch.autograd.grad(loss, logp)
            known = {"framework": module.FRAMEWORK, "case": case.name}
            known |= {"loss": loss.item(), "gradient": gradient.tolist()}
            found.append(known)
    return found


def page(frameworks: dict[str, list[table.Compared]]) -> str:
    """All of it as Markdown."""
    text = [
        "# The cases in six engines\n",
        f"Asked on {datetime.date.today()} with refimpl {refimpl.__version__}, torch "
        f"{torch.__version__.split('+')[0]}, in float64. *Agrees* means: loss and "
        "gradient are equal to\n1e-6 of their size. `python tests/bridges/report.py` "
        "writes this page.\n",
    ]
    for title, compared in frameworks.items():
        counts = Counter(c.outcome for c in compared).most_common()
        summary = ", ".join(f"{n} {outcome}" for outcome, n in counts)
        text.append(f"## {title}\n\n{len(compared)} cases: {summary}.\n")
        text.append(f"```text\n{table.shown(compared, title)}\n```\n")
    return "\n".join([*text, HEAD + WHY])


if __name__ == "__main__":
    try:
        frameworks = dict(map(answers, ENGINES))
    except UserError as error:
        sys.exit(f"{error}. tests/bridges/requirements.txt has what this needs")
    PAGE.write_text(page(frameworks), encoding="utf-8")
    FROZEN.write_text(json.dumps(references("trl") + references("verl")) + "\n")
    unknown = [case for each in frameworks.values() for case in unexplained(each)]
    print("\n".join(unknown) or f"{PAGE.name}: every difference is explained")
    sys.exit(bool(unknown))
