"""Figures of stored stale runs: chapters 10, 10b and 13."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import BLACK, INK, looks_of


def accuracies(
    settings: Mapping[str, Mapping[str, Sequence[float]]],
    start: float | None = None,
    title: str = "",
    what: str = "held-out accuracy",
) -> Figure:
    """Final accuracy of every seed: one panel per setting, one row per arm."""
    height = 0.36 * max(map(len, settings.values())) + 1.8
    figure, axes = draw.panel_grid(len(settings), (8, height), sharey=True)
    for axis, (setting, runs) in zip(axes, settings.items()):
        draw.dots(axis, runs, [shade for shade, _ in looks_of(runs)])
        axis.set(xlim=(-0.05, 1.05), xlabel=what, title=setting)  # dots are whole
        if start is not None:
            draw.rule(axis, x=start, colour=INK, dash="--", width=1.2)
            axis.text(start + 0.01, len(runs) - 1.5, "start", va="center")
    return draw.finding(figure, title)


def panels(
    stored: Mapping[str, Sequence[Sequence[float]]],
    here: Mapping[str, Sequence[Sequence[float]]],
    title: str,
) -> Figure:
    """Reward by rollout, one panel per arm: the stored runs, and those made here."""
    columns = min(4, len(stored))
    size = (8, 2.5 * -(-len(stored) // columns) + 0.9)
    shared = {"sharex": True, "sharey": True}
    figure, axes = draw.panel_grid(len(stored), size, columns, **shared)
    for axis, (label, runs), look in zip(axes, stored.items(), looks_of(stored)):
        draw.band(axis, runs, look[0], label, what="")
        for run in here.get(label, ()):
            axis.plot(draw.steps(run), run, color=BLACK, linewidth=1.6)
        axis.set(title=label, ylim=(0, 1), xlim=(0, 31), xlabel="rollout")
    axes[0].set_ylabel("reward")
    draw.finding(figure, title)
    number, made = (max(map(len, one.values())) for one in (stored, here))
    told = f"{number} stored runs per panel, {draw.BAND}; black: {made} made here"
    return draw.caption(figure, told)
