"""The finding as a short paper. Its tables, and what its text quotes from them, are
taken by name from the store.

    python -m web.paper

writes `guide/finding.md`, a page of the site, from `assets/finding.md.j2`.
"""

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from course.kit import claims
from experiments import evidence
from experiments.arms import ARMS
from experiments.effects import breaking_rates
from experiments.finding import (
    AFTERWARDS,
    BETWEEN,
    FINDING,
    HALF_OCTAVES,
    LATER,
    PAIRS,
    STAGES,
)
from experiments.grid import TEN
from refimpl.files import write
from web.page import NOTEBOOKS, TEMPLATES

ALIVE = 0.1
"""Reward below which a policy has collapsed, and hardly moves any more."""
PAGE = NOTEBOOKS / "guide" / "finding.md"


def text() -> str:
    """Write the paper. Raises jinja2's `UndefinedError` for an unknown number."""
    return TEMPLATES.get_template("finding.md.j2").render(numbers())


def numbers() -> dict[str, Any]:
    """Collect effects, verdicts and starts by question, where gates break, how well the
    pace was kept, and the cost of the runs."""
    table, runs, every = claims.everything(), ran(STAGES), ran(STAGES | LATER)
    declared = (*FINDING, *AFTERWARDS)
    judged = [c for c in declared if len(c.effect.pairs(c.own(table))) > 1]
    answers = {str(claim.number): claim.judge(table) for claim in judged}
    return {
        "effect": {name: claims.shown(a.estimate) for name, a in answers.items()},
        "verdict": {name: a.verdict for name, a in answers.items()},
        "starts": {name: a.estimate.starts for name, a in answers.items()},
        "breaks": {arm: breaks(table, arm) for pair in PAIRS.values() for arm in pair},
        "pace": off_pace(runs),
        "between": list(BETWEEN),
        "stages": " ".join(STAGES),
        "declared": len(evidence.wanted(tuple(STAGES))),
        "runs": len(runs),
        "later": " ".join(LATER),
        "after": len(every) - len(runs),
        "hours": f"{every['seconds'].sum() / 3600:.1f}",
        "seconds": f"{runs['seconds'].median():.0f}",
    }


def ran(stages: Mapping) -> pd.DataFrame:
    """Return the stored runs of these stages."""
    runs, _ = claims.read()
    return runs[runs["run"].isin(evidence.keys(tuple(stages)))]


def breaks(table: pd.DataFrame, arm: str) -> str:
    """Format the rate at which an arm breaks, as geometric mean over starts, or ""."""
    new = table[table["start"].isin(TEN)]
    rates = breaking_rates(new, arm, 16, rates=HALF_OCTAVES)
    return f"{statistics.geometric_mean(rates.values()) * 1e4:.1f}e-4" if rates else ""


def off_pace(runs: pd.DataFrame) -> str:
    """Format ‖Δθ‖ of the runs at GRPO's pace over that of GRPO's own, in rollouts that
    still earn ALIVE: the median, and the 10th and 90th percentiles."""
    named = {(r.arm, r.start, r.rate): r.run for r in runs.itertuples()}
    rows = {run: claims.rows_of(run).set_index("step") for run in named.values()}
    every = [
        (rows[run], rows[named[leader, start, rate]]["drift/step"])
        for (arm, start, rate), run in named.items()
        if (leader := ARMS[arm].pace)
    ]
    shares = [(run["drift/step"] / led)[run["reward"] >= ALIVE] for run, led in every]
    low, middle, high = np.quantile(np.concatenate(shares), (0.1, 0.5, 0.9))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    write(PAGE, lambda file: file.write(text()))
