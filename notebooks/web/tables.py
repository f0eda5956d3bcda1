"""Tables of an explorer, for a page that has no kernel.

The arguments of a move are the controls that it follows. It is called over the product
of their stops, and what each of its artists draws there is kept as SVG: every drawing
once, and a list of which drawing belongs to which place of the product.
"""

import itertools
import json
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from ipywidgets import Dropdown
from matplotlib.artist import Artist

from course.kit.explorer import Explorer, call, digest, names
from course.kit.plots.words import plain, title
from course.kit.stakes import NOW_DRAG, Prediction
from web.drawing import background, drawn, in_points
from web.pieces import pieces

STOPS, FEWEST = 61, 4
BYTES, CALLS = 200_000, 6500
"""Stops are left out until a file is no larger, and no move is called more often."""

Position = tuple[int, ...]
"""The index of a value for each control of a move."""


def keep(folder: str) -> None:
    """Write the tables of every explorer with a name that is displayed from now on."""
    Explorer.shown = lambda play: write(play, Path(folder))


def write(explorer: Explorer, folder: Path) -> None:
    if not explorer.name:
        return
    bundle, path = tables(explorer), folder / f"{explorer.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    look = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    path.write_text(json.dumps(bundle, **look) + "\n", encoding="utf-8")


def tables(explorer: Explorer) -> dict:
    """Make the bundle that `player.js` plays.

    Raises `ValueError` if a move changes something that it does not return.
    """
    picture, shown = explorer.still()
    width, height = (round(x) for x in explorer.figure.bbox.size)
    phone = pieces(explorer)
    try:
        with in_points(explorer.figure):
            explorer.canvas.draw()
            moving = Tables(explorer).bundle()
    finally:  # leave the explorer as it was
        explorer.redraw()
        explorer.draw_background()
        explorer.redraw()
    return {
        "version": 2,
        "width": width,
        "height": height,
        "scale": explorer.figure.dpi / 72,
        "still": digest(picture),
        "alt": shown["alt"],
        "prediction": asked(explorer.prediction),
        "phone": phone,
        **moving,
    }


def options(widget) -> list[tuple[str, object]]:
    """Return every value of a control, each after its label."""
    if hasattr(widget, "options"):
        return [o if isinstance(o, tuple) else (str(o), o) for o in widget.options]
    steps = round((widget.max - widget.min) / widget.step)
    kind = type(widget.value)
    every = [kind(round(widget.min + i * widget.step, 9)) for i in range(steps + 1)]
    shown = [format(x, widget.readout_format).replace("-", "−") for x in every]
    return list(zip(shown, every))


class Control:
    """A control's stops, chosen from all its values; those in `must` always stay."""

    def __init__(self, name: str, widget, presets: Iterable[Mapping]):
        self.name, self.label = name, widget.description
        self.kind = "menu" if isinstance(widget, Dropdown) else "slider"
        self.labels, self.values = map(list, zip(*options(widget)))
        kept = [widget.value, *(p[name] for p in presets if name in p)]
        ends = {0, len(self.values) - 1}
        self.must = ends | {self.at(value) for value in kept}
        self.start = self.at(widget.value)
        self.stops = list(range(len(self.values)))
        if self.kind == "slider" and len(self.stops) > STOPS:
            chosen = np.linspace(0, len(self.values) - 1, STOPS).round().astype(int)
            self.stops = sorted({*chosen.tolist(), *self.must})

    def at(self, value) -> int:
        """Return the index of the value, or of the nearest: sliders are not exact."""
        if value in self.values:
            return self.values.index(value)
        return min(range(len(self.values)), key=lambda i: abs(self.values[i] - value))

    def thin(self) -> bool:
        """Drop every second optional stop; return whether there were any."""
        free = [i for i in self.stops if i not in self.must]
        if self.kind == "menu" or len(self.stops) <= FEWEST or not free:
            return False
        self.stops = sorted({*self.must, *free[1::2]})
        return True

    def described(self) -> dict:
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "stops": [self.values[i] for i in self.stops],
            "labels": [self.labels[i] for i in self.stops],
            "start": self.stops.index(self.start),
        }


class Part:
    """The drawings, or words, that a function makes over the controls it names."""

    def __init__(self, function: Callable, controls: Mapping[str, Control]):
        self.function = function
        self.controls = [controls[name] for name in names(function)]
        self.made: dict[Position, list[str]] = {}

    def size(self) -> int:
        return math.prod(len(control.stops) for control in self.controls)

    def at(self, position: Position) -> list[str]:
        if position not in self.made:
            chosen = zip(self.controls, position)
            values = {control.name: control.values[i] for control, i in chosen}
            self.made[position] = self.function(**values)
        return self.made[position]

    def weight(self) -> int:
        """Return minus the packed size of the drawings, for an order by size."""
        places = itertools.product(*(control.stops for control in self.controls))
        every = dict.fromkeys(drawing for place in places for drawing in self.at(place))
        return -len(zlib.compress("".join(every).encode()))

    def table(self, order: Sequence[str]) -> list[dict]:
        """Return for each artist its drawings, and which one belongs to which stops."""
        places = itertools.product(*(control.stops for control in self.controls))
        tabled = []
        for column in zip(*map(self.at, places)):
            states = {drawing: i for i, drawing in enumerate(dict.fromkeys(column))}
            over = [order.index(control.name) for control in self.controls]
            at = [states[drawing] for drawing in column] if len(states) > 1 else []
            tabled.append({"over": over, "at": at, "states": [*states]})
        return tabled

    def thin(self) -> bool:
        """Drop stops from the slider that has the most."""
        longest = sorted(self.controls, key=lambda control: -len(control.stops))
        return any(control.thin() for control in longest)


class Tables:
    def __init__(self, explorer: Explorer):
        self.explorer, self.figure = explorer, explorer.figure
        self.artists = [*itertools.chain(*explorer.moved)]
        self.background = background(self.figure, self.artists)
        presets = explorer.presets.values()
        self.controls = {
            name: Control(name, widget, presets)
            for name, widget in explorer.controls.items()
        }
        self.moving = [*map(self.part, explorer.moves, explorer.moved)]
        self.strip = self.title = None
        if callable(explorer.stakes):
            self.strip = self.words(explorer.stakes, explorer.stakes)
        for move in explorer.moves:  # the one that moves the title says it
            if self.titles(call(move, explorer.values)):
                self.title = self.words(move, self.heading(move))

    def part(self, move: Callable, artists: Sequence[Artist]) -> Part:
        def draw(**values) -> list[str]:
            if list(move(**values)) != artists:
                raise ValueError(f"a move returns other artists at {values}")
            if self.figure.stale:
                raise ValueError("a move changes what it does not return")
            return [drawn(artist, self.figure) for artist in artists]

        return Part(self.signed(draw, move), self.controls)

    def titles(self, artists: Iterable[Artist]) -> bool:
        heads = (self.figure._suptitle, *self.figure.legends)
        return any(head is artist for artist in artists for head in heads)

    def heading(self, move: Callable) -> Callable:
        def say(**values) -> str:
            move(**values)
            return plain(title(self.figure))

        return say

    def words(self, of: Callable, say: Callable[..., str]) -> Part:
        return Part(self.signed(lambda **values: [say(**values)], of), self.controls)

    def signed(self, function: Callable, like: Callable) -> Callable:
        """Give a function the signature of another one."""
        function.__wrapped__ = like  # type: ignore[attr-defined]
        return function

    def bundle(self) -> dict:
        every = [*self.moving, *filter(None, (self.strip, self.title))]
        for part in every:
            while part.size() > CALLS and part.thin():
                pass
        while len(data := self.packed()) > BYTES:
            if not any(part.thin() for part in sorted(self.moving, key=Part.weight)):
                break
        return {
            "controls": [control.described() for control in self.controls.values()],
            "presets": [
                {"label": label, "set": self.preset(values)}
                for label, values in self.explorer.presets.items()
            ],
            "data": data,
        }

    def packed(self) -> str:
        order = [*self.controls]
        tabled = [*itertools.chain(*(part.table(order) for part in self.moving))]
        drawings = sorted(
            zip(self.artists, tabled), key=lambda pair: pair[0].get_zorder()
        )
        still = {"over": [], "at": [], "states": [self.explorer.stakes]}
        fixed = {"over": [], "at": [], "states": [plain(title(self.figure))]}
        held = {
            "background": self.background,
            "artists": [table for _, table in drawings],
            "strip": self.strip.table(order)[0] if self.strip else still,
            "title": self.title.table(order)[0] if self.title else fixed,
        }
        text = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
        return b64encode(zlib.compress(text.encode(), 9)).decode()

    def preset(self, values: Mapping) -> dict[str, int]:
        chosen = ((self.controls[name], value) for name, value in values.items())
        return {c.name: c.stops.index(c.at(value)) for c, value in chosen}


def asked(prediction: Prediction | None) -> dict | None:
    """Return the question, and what each of its options is told after the drag."""
    if prediction is None:
        return None
    verdicts = {option: prediction.verdict(option) for option in prediction.options}
    return {"question": prediction.question, "now": NOW_DRAG, "said": verdicts}


def unpacked(bundle: Mapping) -> dict:
    """Unpack background, artists, strip and title, as the page has them."""
    return json.loads(zlib.decompress(b64decode(bundle["data"])))


def state(held: Mapping, stops: Sequence[int], bundle: Mapping) -> str:
    """Return the drawing, or the words, for these stops, given by index."""
    place = 0
    for i in held["over"]:
        place = place * len(bundle["controls"][i]["stops"]) + stops[i]
    return held["states"][held["at"][place] if held["at"] else 0]
