"""Draw the six most useful panels of a log as a PNG.

These are the curves that most rows of "From symptom to cause" use: sampler against
trainer (5 rows), the ratio and its clip (4), length and truncation (3), reward and
accuracy, the spread within groups, entropy (2 each). The gradient norm (1 row) shares a
panel with the sampler's gap, which is missing in most logs. The KL to the reference has
no panel, because it also grows in a healthy run; the report covers it.
"""

from pathlib import Path
from typing import Any

from refimpl.files import write
from refimpl.interop.logs import DATA, Log
from refimpl.interop.symptoms import Finding
from refimpl.validation import UserError


def draw(log: Log, found: list[Finding], path: str | Path) -> None:
    """Draw the panels of `symptoms.toml`; a dotted line marks where the first finding
    begins.

    Raises `UserError` if matplotlib is missing, or if `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("--figure needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    for axis, panel in zip(figure.subplots(2, 3).flat, DATA["panel"]):
        axis.set_title(panel["title"], fontsize=10)
        lines = curves(axis, log, panel["left"], ".-", 0)
        missing = (
            "" if lines else f" (not in this log: {panel['title'].split(' | ')[0]})"
        )
        axis.set_xlabel(f"step{missing}", fontsize=8)
        if any(log.keys(name) for name in panel.get("right", [])):
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
