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


def answers(name: str) -> tuple[str, list[table.Found]]:
    """A framework with its version, and what it said."""
    module = table.adapters(HERE / f"adapters_{name}.py")
    with warnings.catch_warnings(action="ignore"):
        return module.FRAMEWORK, list(table.compare(module, cases.cases()))


def page(found: dict[str, list[table.Found]]) -> str:
    """All of it as Markdown."""
    parts = [
        "# The cases in TRL, verl and Liger\n",
        f"Asked on {datetime.date.today()} with refimpl {refimpl.__version__}, torch "
        f"{torch.__version__.split('+')[0]}, in float64. *Agrees* means: loss and "
        "gradient are equal to\n1e-6 of their size. `python tests/bridges/report.py` "
        "writes this page.\n",
    ]
    readings: Counter[str] = Counter()
    for title, own in found.items():
        counts = Counter(f.said for f in own)
        said = ", ".join(f"{n} {what}" for what, n in counts.most_common())
        parts.append(f"## {title}\n\n{len(own)} cases: {said}.\n")
        parts.append(f"```text\n{table.shown(own, title)}\n```\n")
        for f in own:
            readings.update((f.reading or "").split(", and ") if f.reading else [])
    parts.append("## Why they differ\n")
    parts += [f"- **{title}.** {WHY[title]}" for title in WHY if readings[title]]
    return "\n".join(parts) + "\n"


def main() -> int:
    found = dict(answers(name) for name in ("trl", "verl", "liger"))
    unknown = [
        f"{title}: {f.case.name}: {f.said}"
        for title, own in found.items()
        for f in own
        if f.said not in ("agrees", "not implemented") and f.reading is None
    ]
    PAGE.write_text(page(found), encoding="utf-8")
    print("\n".join(unknown) or f"wrote {PAGE.name}: every difference is explained")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
