"""Sliders that move a picture while they are dragged.

The figure is drawn once. Its *moves* are functions of the controls that they name: a
parameter is called as its control is. Each gives some artists new data and returns
them; the rest is a saved background. So a drag calls the moves that name its control,
and the web edition tabulates each move over the controls that it names.

An explorer is plain ipywidgets, so JupyterLab, VS Code and Colab show it, and a test
can set a slider and read the image.
"""

import hashlib
import inspect
import io
import itertools
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from traitlets import TraitError

from course.kit.plots.words import plain, words
from course.kit.stakes import Panel, Prediction
from refimpl.validation import UserError, refuse_unknown, shown

CONTROLS, PICTURE = 270, 556
"""Width of the controls in pixels; a picture with less room goes below them.

JupyterLab's page has 833 on a screen of 1280 with the file browser open.
"""


STORED = "application/vnd.refimpl.explorer+json"
"""What JupyterLab shows without a kernel: the name of a table of drawings."""


class Explorer(widgets.HBox):
    """Buttons for `presets`, `controls` by name, and beside them a figure's `image`.

    `below` are widgets that stand under the controls. On a narrow page the picture goes
    under all of them.

    `stakes` takes the controls that it names and says how the stored runs nearest to
    them ended; this stands under the picture. A text instead says why there are none.
    `prediction` is asked below that, and judged once a control has been moved.

    `name` (letters, digits and _) is that of its table in `figures/explorers/`, with
    which it moves where no kernel runs. An explorer without a name has none.

    If a move changes something that it does not return, the whole figure is drawn
    again, which takes several times as long. Raises `UserError` if a move names no
    control, or if no move names a control.
    """

    shown: Callable[["Explorer"], None] | None = None
    """Called with every explorer that is displayed: `web.tables.keep` sets it."""

    def __init__(
        self,
        figure: Figure,
        moves: Sequence[Callable[..., Iterable[Artist]]],
        controls: Mapping[str, widgets.Widget],
        presets: Mapping[str, Mapping[str, object]] | None = None,
        below: Sequence[widgets.Widget] = (),
        stakes: Callable[..., str] | str = "",
        prediction: Prediction | None = None,
        name: str = "",
    ):
        plt.close(figure)  # the notebook would show it a second time
        self.figure, self.moves, self.controls = figure, list(moves), dict(controls)
        self.check_names()
        self.presets = dict(presets or {})
        self.stakes, self.prediction, self.name = stakes, prediction, name
        self.panel = Panel(prediction)
        self.canvas = FigureCanvasAgg(figure)
        width = round(figure.bbox.width)  # not drawn larger than it is: that blurs it
        beside = {"flex": f"1 1 {min(width, PICTURE)}px", "max_width": f"{width}px"}
        self.image = widgets.Image(
            format="png",
            layout={"width": "100%", "margin": "0", "object_fit": "contain"},
        )
        self.drawn = self.values
        self.moved = [list(call(move, self.drawn)) for move in self.moves]
        moving = list(itertools.chain(*self.moved))
        figure.draw_without_rendering()  # the layout makes room for all artists
        figure.set_layout_engine("none")  # and stays as it is
        for artist in moving:
            artist.set_animated(True)  # not in the background
        self.draw_background()
        # Neither an artist that moves nor an empty one (stale: there was nothing to
        # draw) is part of the background: its changes must not make that stale.
        parts = itertools.chain(*(artist.findobj() for artist in moving))
        for artist in [*parts, *figure.findobj(lambda artist: artist.stale)]:
            artist.stale_callback = None
        self.redraw()
        for control in self.controls.values():
            control.observe(self.drag, names="value")
        self.buttons = {
            name: self.button(name, values) for name, values in self.presets.items()
        }
        sliders = map(labelled, self.controls.values())
        rows = [*self.buttons.values(), *sliders, *below]
        column = {"flex": f"0 0 {CONTROLS}px", "padding": "0 12px 0 0"}
        narrow = {"min_width": "0", **beside}  # it may shrink, or it would go below
        parts = [self.image, self.panel.strip, *self.panel.ask]
        picture = widgets.VBox(parts, layout=narrow)
        super().__init__(
            [widgets.VBox(rows, layout=column), picture],
            layout={"flex_flow": "row wrap", "align_items": "flex-start"},
        )

    def check_names(self) -> None:
        named = {name: None for move in self.moves for name in names(move)}
        refuse_unknown("this explorer", named, self.controls)
        if idle := [name for name in self.controls if name not in named]:
            raise UserError(f"no move names {', '.join(idle)}")

    @property
    def values(self) -> dict:
        return {name: control.value for name, control in self.controls.items()}

    def draw_background(self) -> None:
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)

    def outcome(self, **values) -> str:
        """How the stored runs nearest to these values ended, or why there are none."""
        return (
            self.stakes if isinstance(self.stakes, str) else call(self.stakes, values)
        )

    def drag(self, _) -> None:
        self.redraw(every=False)
        self.panel.drag()

    def redraw(self, every: bool = True) -> None:
        """Draw the picture; unless `every`, only what names a changed control moves."""
        before, self.drawn = self.drawn, self.values
        for i, move in enumerate(self.moves):
            if every or any(self.drawn[name] != before[name] for name in names(move)):
                self.moved[i] = list(call(move, self.drawn))
        moved = sorted(itertools.chain(*self.moved), key=Artist.get_zorder)
        if self.figure.stale:  # something changed that is in the background
            self.draw_background()
        self.canvas.restore_region(self.background)
        for artist in moved:
            self.figure.draw_artist(artist)
        self.image.value = png(self.pixels())
        self.panel.follow(self.outcome(**self.values))

    def pixels(self) -> np.ndarray:
        """The picture, (height, width, RGB)."""
        return np.array(self.canvas.buffer_rgba())[..., :3]

    def set(self, **values) -> None:
        """Set several controls, and draw once."""
        refuse_unknown("this explorer", values, self.controls)
        for name, value in values.items():
            self.controls[name].unobserve(self.drag, names="value")
            try:
                self.controls[name].value = value
            finally:
                self.controls[name].observe(self.drag, names="value")
        self.redraw(every=False)

    def button(self, label: str, values: Mapping) -> widgets.Button:
        button = widgets.Button(description=label, layout=WIDE)
        button.on_click(lambda _: self.press(values))
        return button

    def press(self, values: Mapping) -> None:
        self.set(**values)
        self.panel.drag()

    def still(self) -> tuple[str, dict]:
        """The picture where no kernel runs, as base64 of a PNG; its words and width."""
        buffer = io.BytesIO()
        Image.fromarray(self.pixels()).quantize(256).save(buffer, "png", optimize=True)
        labels = ", ".join(c.description for c in self.controls.values())
        known = words(self.figure)
        texts = [plain(text.get_text()) for text in self.figure.texts]
        others = ", ".join(text for text in texts if text and text not in known)
        said = ". ".join(filter(None, [known, others, f"Controls: {labels}"]))
        picture = b64encode(buffer.getvalue()).decode()
        return picture, {"alt": said, "width": self.pixels().shape[1]}

    def _repr_mimebundle_(self, **options) -> tuple[dict, dict]:
        """The widget, and where no kernel runs its table (JupyterLab) or its picture.

        A table with another picture's `digest` is not this explorer's: a reader's own
        data, or gate, may have made it.

        ipywidgets 7, which Colab has, shows the widget in its own way, without the
        picture.
        """
        picture, shown = self.still()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        data = {
            "text/plain": repr(self),
            "image/png": picture,
            "application/vnd.jupyter.widget-view+json": view,
        }
        said = {"image/png": shown}
        if self.name:
            data[STORED] = {"table": self.name}
            said[STORED] = {"still": digest(picture)}
        if Explorer.shown:
            Explorer.shown(self)
        return data, said

    def __repr__(self) -> str:
        return f"Explorer({', '.join(self.controls)})"


def digest(picture: str) -> str:
    """Hash the pixels of a PNG in base64, to tell a still picture from another."""
    pixels = np.array(Image.open(io.BytesIO(b64decode(picture))).convert("RGB"))
    return hashlib.sha1(pixels.tobytes()).hexdigest()


def names(function: Callable) -> tuple[str, ...]:
    """The controls that a move, or a strip, names."""
    return tuple(inspect.signature(function).parameters)


def call(function: Callable, values: Mapping):
    """The function of the controls that it names."""
    return function(**{name: values[name] for name in names(function)})


WIDE = {"width": "auto", "margin": "1px 0"}
"""As wide as the column."""


def labelled(control: widgets.Widget) -> widgets.VBox:
    """A control under its own words: beside them its slider would be a few pixels.

    A slider's value stands in these words. ipywidgets' own readout looks like a field
    to type in, and keeps there what it cannot use.
    """
    label = widgets.Label(layout={"height": "24px", **WIDE})

    def say(_=None) -> None:
        label.value = f"{control.description}{reading(control)}"

    if isinstance(control, SLIDERS):
        control.readout = False
        control.layout.margin = "1px 10px 1px 0"  # or the handle's end is cut off
        control.observe(say, names="value")
    say()
    return widgets.VBox([label, control], layout={"margin": "2px 0"})


SLIDERS = (widgets.IntSlider, widgets.FloatSlider, widgets.SelectionSlider)


def reading(control: widgets.Widget) -> str:
    """What a slider is set to, as ": 8.8"; nothing for a menu, which shows it."""
    if isinstance(control, widgets.SelectionSlider):
        return f": {control.label}"
    if isinstance(control, SLIDERS):
        return f": {format(control.value, control.readout_format)}".replace("-", "−")
    return ""


def png(pixels: np.ndarray) -> bytes:
    """Encode the picture as PNG, quickly: it is sent once and thrown away."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def reach(control: widgets.Widget) -> list:
    """Values to try on a control: both ends, or every option."""
    if hasattr(control, "options"):
        return [o[1] if isinstance(o, tuple) else o for o in control.options]
    return [control.min, control.max]


def control(kind: type[widgets.Widget], label: str, value, **settings):
    """Any of ipywidgets' controls, as wide as the others; `labelled` shows its words.

    A description of zero width is hidden, but a screen reader still reads it.
    """
    look = {"style": {"description_width": "0px"}, "layout": WIDE}
    try:
        return kind(value=value, description=label, **look, **settings)
    except TraitError as error:
        raise UserError(
            f"{label}: {shown(value)} does not fit this control ({error})"
        ) from error


def check_range(label: str, value: float, low: float, high: float, least: float):
    """Raise `UserError` unless least < low < high, with `value` there, all finite."""
    if not least < low <= value <= high < math.inf or low == high:
        raise UserError(
            f"{label}: a slider needs finite numbers, low ≤ value ≤ high and low < high"
            f"{' above 0' * (least == 0)}, got low {low:g}, value {value:g}, high "
            f"{high:g}"
        )


def slider(label: str, value: float, low: float, high: float, step: float):
    """A float slider, or an integer one if every number is an int.

    Raises `UserError` if no whole number of steps leads from `low` to `value`: the
    browser would move the slider, and the picture with it, as soon as it is shown.
    """
    check_range(label, value, low, high, -math.inf)
    if not 0 < step < math.inf:
        raise UserError(f"{label}: step must be a finite number above 0, got {step:g}")
    if abs((value - low) / step - round((value - low) / step)) > 1e-6:
        raise UserError(f"{label}: {value:g} is not {low:g} plus steps of {step:g}")
    whole = all(isinstance(x, int) for x in (value, low, high, step))
    kind = widgets.IntSlider if whole else widgets.FloatSlider
    return control(kind, label, value, min=low, max=high, step=step)


def stops(label: str, options: Sequence, value):
    """A slider over these values alone."""
    return control(widgets.SelectionSlider, label, value, options=options)


def log_slider(label: str, value: float, low: float, high: float):
    """A slider over round numbers from `low` to `high`, 75 to a factor of ten.

    They are 1, 1.05, 1.1 … 2, 2.1 … 5, 5.2 … 9.8 and their tenfolds, so that a value
    is what its label says: ipywidgets' FloatLogSlider makes 8.71 of 8.8.
    """
    check_range(label, value, low, high, 0.0)
    digits = (*range(100, 200, 5), *range(200, 500, 10), *range(500, 1000, 20))
    decades = range(math.floor(math.log10(low)) - 2, math.ceil(math.log10(high)) - 1)
    round_ = [float(f"{m}e{d}") for d in decades for m in digits]
    every = sorted({low, value, high, *(x for x in round_ if low < x < high)})
    return stops(label, [(f"{x:g}", x) for x in every], value)


def choice(label: str, options: Sequence[str], value: str):
    """A drop-down menu."""
    return control(widgets.Dropdown, label, value, options=options)
