"""Write CONFORMANCE.md: what TRL, verl and Liger answer to the cases.

`python tests/bridges/report.py` asks them again.
"""

import datetime
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

import refimpl
from refimpl.interop.conformance import cases, table

HERE = Path(__file__).parent
PAGE = HERE / "CONFORMANCE.md"
WHY = {
    "exp(z) has no limit at |z| = 20": """\
A log-ratio of 30 nats is a ratio of 1e13. Here and in verl the ratio stops growing at
e^20, so that it cannot overflow in float32; TRL and Liger take it as it is. Below 20
nats all agree.""",
    "the dual clip (c = 3) is always on": """\
verl's `vanilla` bounds the objective of bad responses at c · Â, c = `clip_ratio_c` =
3, and cannot be told not to; `clip_ratio_c=1e9` comes to the same. The papers of PPO,
GRPO, Dr. GRPO and DAPO have no such bound. It bites where r > 3 and Â < 0.""",
    "an empty response is left out of B": """\
A response whose mask is all 0 (cut off, and filtered) counts in the papers' 1/G,
here, in TRL and in Liger. verl, asked without a `global_batch_size`, divides by the
responses that are left, so the others weigh more.""",
    "an empty response counts as one of ratio 1": """\
TRL's GMPO takes exp of an empty mean, 1, times the advantage: a constant in the loss,
without a gradient.""",
    "there is no truncated weight": """\
TRL's experimental GMPO does not multiply by the weights that correct for vLLM.""",
    "the truncated weights' geometric mean": """\
verl's GMPO has one value for a response and takes one weight for it; here each
token's weight is kept.""",
    "the gradient is GSPO-token's": """\
verl's `gspo` is the paper's GSPO-token. With one advantage for a response both have
the same gradient; with a weight for each token, as TIS has, they have not.""",
    "averaged over responses, always": """\
verl's `sapo` and `geo_mean` do not look at `loss_agg_mode`.""",
}


def answers(name: str) -> tuple[str, list[table.Compared]]:
    """A framework with its version, and its answers."""
    module = table.adapters(HERE / f"adapters_{name}.py")
    with warnings.catch_warnings(action="ignore"):
        return module.FRAMEWORK, list(table.compare(module, cases.cases()))


def parts(compared: table.Compared) -> list[str]:
    """The readings that together explain a difference."""
    return compared.reading.split(", and ") if compared.reading else []


def page(frameworks: dict[str, list[table.Compared]]) -> str:
    """All of it as Markdown."""
    text = [
        "# The cases in TRL, verl and Liger\n",
        f"Asked on {datetime.date.today()} with refimpl {refimpl.__version__}, torch "
        f"{torch.__version__.split('+')[0]}, in float64. *Agrees* means: loss and "
        "gradient are equal to\n1e-6 of their size. `python tests/bridges/report.py` "
        "writes this page.\n",
    ]
    seen = set()
    for title, compared in frameworks.items():
        counts = Counter(c.outcome for c in compared).most_common()
        summary = ", ".join(f"{n} {outcome}" for outcome, n in counts)
        text.append(f"## {title}\n\n{len(compared)} cases: {summary}.\n")
        text.append(f"```text\n{table.shown(compared, title)}\n```\n")
        seen.update(part for c in compared for part in parts(c))
    why = [f"- **{title}.** {WHY[title]}" for title in WHY if title in seen]
    return "\n".join([*text, "## Why they differ\n", *why]) + "\n"


if __name__ == "__main__":
    frameworks = dict(answers(name) for name in ("trl", "verl", "liger"))
    PAGE.write_text(page(frameworks), encoding="utf-8")
    every = [c for compared in frameworks.values() for c in compared]
    fine = ("agrees", "not implemented")
    unknown = [c for c in every if c.outcome not in fine and c.reading is None]
    print("\n".join(f"{c.case.name}: {c.outcome}" for c in unknown) or PAGE.name)
    sys.exit(bool(unknown))
