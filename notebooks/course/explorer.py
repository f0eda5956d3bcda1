"""Sliders that redraw a figure.

One pure function from parameters to a figure, one image, and `observe` between them:
the picture changes in JupyterLab, and a test can set a slider and read the image.
"""

from collections.abc import Callable

import ipywidgets as widgets
from matplotlib.figure import Figure

from course import plots
from refimpl import curves


class Explorer(widgets.VBox):
    """`controls` by name above an `image` of `draw(**values)`."""

    def __init__(
        self, draw: Callable[..., Figure], controls: dict[str, widgets.Widget]
    ):
        self.draw, self.controls = draw, controls
        self.image = widgets.Image(format="png", layout={"max_width": "100%"})
        for control in controls.values():
            control.observe(self.redraw, names="value")
        self.redraw()
        super().__init__([*controls.values(), self.image])

    def redraw(self, _=None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        self.image.value = plots.png(self.draw(**values))

    def moves(self, name: str, value) -> bool:
        """Whether setting a control to `value` changes the picture; sets it back."""
        control, before = self.controls[name], self.image.value
        usual, control.value = control.value, value
        changed = self.image.value != before
        control.value = usual
        return changed

    def __repr__(self) -> str:
        return f"Explorer({', '.join(self.controls)})"


def slider(label: str, value: float, low: float, high: float, step: float):
    """A float slider, or an integer one if every number is an int."""
    whole = all(isinstance(x, int) for x in (value, low, high, step))
    kind = widgets.IntSlider if whole else widgets.FloatSlider
    return kind(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        continuous_update=False,
        style={"description_width": "170px"},
        layout={"width": "520px"},
    )


def choice(label: str, options: list[str], value: str):
    """A drop-down menu."""
    return widgets.Dropdown(
        options=options,
        value=value,
        description=label,
        style={"description_width": "170px"},
        layout={"width": "520px"},
    )


def clip_explorer(algorithm: str = "ppo", compare: tuple[str, ...] = ()) -> Explorer:
    """Bend the clip: ε below and above 1, and the size of the advantage.

    Drawn beside the unclipped ratio, and beside `compare` at their defaults.
    """

    def draw(epsilon_low: float, epsilon_high: float, size: float) -> Figure:
        def both(name: str, **settings) -> dict:
            return {s: curves.curve(name, s * size, **settings) for s in (1, -1)}

        named = {"unclipped": both("reinforce", correct=True)}
        named |= {name: both(name) for name in compare}
        named[algorithm] = both(
            algorithm, epsilon_low=epsilon_low, epsilon_high=epsilon_high
        )
        return plots.curves(named)

    return Explorer(
        draw,
        {
            "epsilon_low": slider("ε low", 0.2, 0.02, 0.9, 0.02),
            "epsilon_high": slider("ε high", 0.2, 0.02, 1.5, 0.02),
            "size": slider("|advantage|", 1.0, 0.25, 3.0, 0.25),
        },
    )
