"""The guide's bars: where the time of a rollout went, before and after.

The profiles were measured once, and are stored in `figures/data`.
"""

import json
from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course import DATA
from course.kit import plots
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, shade

HUES = {"sampling": FREE[0], "rewards": FREE[3], "update": FREE[1]}


def rollout_time(found: Mapping[str, Mapping[str, float]]) -> Figure:
    """Milliseconds of each phase, "before" and "after"."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    rows = {k: {p: 1000 * s for p, s in found[k].items()} for k in found}
    first, *_, last = totals = [sum(parts.values()) for parts in rows.values()]
    colours, seen = {}, dict.fromkeys(HUES, 0)
    for phase in found["before"]:
        kind = next(kind for kind in HUES if phase.startswith(kind))
        colours[phase] = shade(HUES[kind], seen[kind])
        seen[kind] += 1
    draw.stacked(axis, rows, colours)
    for row, total in enumerate(totals):
        axis.text(total, row, f" {total:.0f} ms", va="center")
    axis.set(xlabel="ms per rollout of 128 answers, with its 4 updates")
    axis.set_xlim(0, 1.25 * max(totals))
    draw.legend_beside(axis)
    change = f"{first / last:.1f} times as fast as"
    draw.finding(figure, f"GRPO on the toy is {change} it was")
    return figure


def draw_stored() -> None:
    """Save the figure of the stored profiles as `rollout_time.png`, for the guide."""
    names = ("before", "after")
    files = [(DATA / f"profile_{name}.json").read_text("utf-8") for name in names]
    found = [json.loads(text)["seconds per rollout"] for text in files]
    figure = rollout_time(dict(zip(names, found, strict=True)))
    (plots.folder(plots.LINKED) / "rollout_time.png").write_bytes(plots.png(figure))
    plt.close(figure)
