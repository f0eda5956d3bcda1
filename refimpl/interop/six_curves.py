"""Draw the six most useful panels of a log as a PNG.

The KL to the reference has none, because it also grows in a healthy run.
"""

from pathlib import Path
from typing import Any

from refimpl.files import write
from refimpl.interop.logs import DATA, Log
from refimpl.interop.symptoms import Finding


def draw(log: Log, found: list[Finding], path: str | Path) -> None:
    """Draw the panels; a dotted line marks where the first finding begins.

    Raises `UserError` if `path` cannot be written.
    """
    from matplotlib.figure import Figure  # which the package does not require

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    for axis, panel in zip(figure.subplots(2, 3).flat, DATA["panels"]):
        axis.set_title(panel["title"], fontsize=10)
        lines = curves(axis, log, panel["left"], ".-", 0)
        name = panel["title"].partition(" | ")[0]
        axis.set_xlabel("step" if lines else f"step (not in this log: {name})", size=8)
        if any(log.keys(name) for name in panel["right"]):
            lines += curves(axis.twinx(), log, panel["right"], ".--", 3)
        if lines:
            axis.legend(handles=lines, fontsize=7)
            for finding in found[:1]:
                axis.axvline(log.steps[finding.since], color="0.6", lw=1, ls=":")
    first = [f"{f.row['symptom']} (step {log.steps[f.since]:g})" for f in found[:2]]
    named = ", then ".join(first) or "no row of the table fits"
    figure.suptitle(f"{Path(log.path).name}: {named}", fontsize=11)
    write(path, lambda file: figure.savefig(file, format="png"), "wb")


def curves(axis: Any, log: Log, names: list[str], dash: str, colour: int) -> list:
    """Draw those columns that the log has, beginning with colour number `colour`."""
    lines: list[Any] = []
    for key in (key for name in names for key in log.keys(name)):
        if seen := log.seen(key):
            x, y = [log.steps[i] for i, _ in seen], [value for _, value in seen]
            style = {"color": f"C{colour + len(lines)}", "label": log.called[key]}
            lines += axis.plot(x, y, dash, ms=3, **style)
    return lines
