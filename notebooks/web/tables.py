"""Tables of an explorer: what `update` draws, for a page that has no kernel.

Of every moving artist `recorder` knows four channels. A channel is tabulated over the
stops of those controls alone that it depends on, for each setting of the menus that it
depends on. Which these are is found by trying, and every bundle is read back and
compared with `update` at positions drawn by chance before it is handed out.
"""

import hashlib
import io
import itertools
import json
import math
import random
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from ipywidgets import Dropdown
from matplotlib.artist import Artist
from matplotlib.collections import Collection
from PIL import Image

from course.kit.explorer import Explorer
from course.kit.stakes import NOW_DRAG, Prediction
from web import sapo
from web.pieces import pieces
from web.recorder import Recorder

SCALE = 20
"""Steps of a pixel."""
GAP = -32768
"""Stands for NaN: the line is interrupted."""
CHANNELS = ("x", "y", "look", "text")
STOPS, FEWEST = 61, 4
BYTES, CALLS = 150_000, 8000
"""Stops are left out until a file and the calls of `update` are no more."""
CHECKED = 60
NOTE = "Training needs the notebook."

Position = tuple[int, ...]
"""The index of each control's value."""


def tables(explorer: Explorer) -> dict:
    """The bundle that `player.js` plays.

    Raises `ValueError` where `update` changes what it does not return, and where the
    tables do not give what `update` gives.
    """
    try:
        return (Computed if explorer.model else Tables)(explorer).bundle()
    finally:  # as it was
        explorer.draw_background()
        explorer.redraw()


def keep(beginning: str) -> None:
    """From now on, write the tables of the i-th explorer displayed to …_i.json."""
    number = itertools.count(1)
    Explorer.shown = lambda play: write(play, Path(f"{beginning}_{next(number)}.json"))


def write(explorer: Explorer, path: Path) -> None:
    made = tables(explorer)
    path.parent.mkdir(parents=True, exist_ok=True)
    look = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    text = json.dumps(made, **look)
    path.write_text(text + "\n", encoding="utf-8")


def options(widget) -> list[tuple[str, object]]:
    """All that a control can be set to, and how it is written."""
    if hasattr(widget, "options"):
        return [o if isinstance(o, tuple) else (str(o), o) for o in widget.options]
    steps = round((widget.max - widget.min) / widget.step)
    kind = type(widget.value)
    every = [kind(round(widget.min + i * widget.step, 9)) for i in range(steps + 1)]
    shown = [format(x, widget.readout_format).replace("-", "−") for x in every]
    return list(zip(shown, every))


class Control:
    """A control's stops, from all that it can be set to; some must stay."""

    def __init__(self, name: str, widget, presets: Iterable[Mapping], most: int):
        self.name, self.label = name, widget.description
        self.kind = "menu" if isinstance(widget, Dropdown) else "slider"
        self.labels, self.values = map(list, zip(*options(widget)))
        kept = [widget.value, *(p[name] for p in presets if name in p)]
        ends = {0, len(self.values) - 1}
        self.must = ends | {self.at(value) for value in kept}
        self.start = self.at(widget.value)
        self.stops = list(range(len(self.values)))
        if self.kind == "slider" and len(self.stops) > most:
            chosen = np.linspace(0, len(self.values) - 1, most).round().astype(int)
            self.stops = sorted({*chosen.tolist(), *self.must})

    def at(self, value) -> int:
        """The index of the value; a slider's steps are not exact."""
        if value in self.values:
            return self.values.index(value)
        return min(range(len(self.values)), key=lambda i: abs(self.values[i] - value))

    def thin(self) -> bool:
        """Leave out every second stop that may go; whether there were any."""
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


class States:
    """What every channel of every artist is at a position: numbers of its states.

    `seen[c]` has the states of channel c.
    """

    def __init__(self, explorer: Explorer, controls: Sequence[Control]):
        self.explorer, self.controls = explorer, controls
        explorer.draw_background()  # now only what is empty is stale
        self.empty = {id(a) for a in explorer.figure.findobj(lambda a: a.stale)}
        self.recorder = Recorder(explorer.canvas)
        start = {c.name: c.values[c.start] for c in controls}
        self.artists = self.moved(start)
        self.kinds = [type(artist).__name__ for artist in self.artists]
        if explorer.stakes:  # no artist: its words stand under the picture
            self.kinds.append("Strip")
        every = range(len(self.kinds))
        self.channels = list(itertools.product(every, CHANNELS))
        self.of: list[dict[bytes | str, int]] = [{} for _ in self.channels]
        self.seen: list[list[bytes | str]] = [[] for _ in self.channels]
        self.known: dict[Position, np.ndarray] = {}

    def moved(self, values: Mapping) -> list[Artist]:
        artists = sorted(self.explorer.update(**values), key=Artist.get_zorder)
        axes = self.explorer.figure.axes
        fixed = {id(axis.label) for one in axes for axis in (one.xaxis, one.yaxis)}
        if any(id(artist) in fixed for artist in artists):
            raise ValueError(
                "update moves an axis label, which matplotlib draws into the "
                "background as well: make it a text of the panel, axis.text(…)"
            )
        if self.explorer.figure.stale:
            what = self.culprit(artists)
            raise ValueError(f"{what} changes, and update does not return it")
        return artists

    def culprit(self, artists: Iterable[Artist]) -> str:
        """The innermost of what is stale in the background."""
        moving = {id(part) for artist in artists for part in artist.findobj()}
        others = self.explorer.figure.findobj(
            lambda artist: id(artist) not in moving | self.empty
        )
        stale = [artist for artist in others if artist.stale]
        inner = [a for a in stale if not any(c in stale for c in a.get_children())]
        artist = inner[0] if inner else self.explorer.figure
        axis = getattr(artist, "axes", None)
        where = f" of the panel {axis.get_title()!r}" if axis is not None else ""
        return f"{type(artist).__name__}{where}"

    def at(self, position: Position) -> np.ndarray:
        """The number of each channel's state."""
        if position not in self.known:
            values = {c.name: c.values[i] for c, i in zip(self.controls, position)}
            artists = self.moved(values)
            if artists != self.artists:
                raise ValueError(f"update returns other artists at {values}")
            drawn = [self.recorder.state(artist) for artist in artists]
            if self.explorer.stakes:
                drawn.append(strip(self.explorer.outcome(**values)))
            keys = (key(drawn[i][name]) for i, name in self.channels)
            self.known[position] = np.array(
                [*map(self.number, itertools.count(), keys)]
            )
        return self.known[position]

    def number(self, channel: int, state: bytes | str) -> int:
        of, seen = self.of[channel], self.seen[channel]
        if state not in of:
            of[state] = len(seen)
            seen.append(state)
        return of[state]


def strip(words: str) -> dict:
    """Words as the state of an artist that draws nothing."""
    text = json.dumps([[words, 0]], ensure_ascii=False)
    return {"x": np.zeros(0), "y": np.zeros(0), "look": "[]", "text": text}


def key(state: np.ndarray | str) -> bytes | str:
    """A state as it is kept: numbers in steps of a pixel."""
    if isinstance(state, str):
        return state
    steps = np.clip(np.rint(state * SCALE), GAP + 1, -GAP - 1)
    return np.where(np.isnan(steps), GAP, steps).astype("<i2").tobytes()


class Tables:
    most = STOPS
    left_out: tuple[int, ...] = ()
    """Artists that the page draws by itself."""

    def __init__(self, explorer: Explorer):
        self.explorer, self.still = explorer, explorer.still()
        presets = explorer.presets
        self.controls = [
            Control(name, widget, presets.values(), self.most)
            for name, widget in explorer.controls.items()
        ]
        self.start = tuple(c.start for c in self.controls)
        self.menus = [i for i, c in enumerate(self.controls) if c.kind == "menu"]
        self.sliders = [i for i, c in enumerate(self.controls) if c.kind == "slider"]
        self.phone = pieces(explorer)
        self.states = States(explorer, self.controls)
        self.chance = random.Random(0)
        self.found: list[tuple[Position, int, Iterable[int]]] = []
        self.search()
        self.classify()

    def somewhere(self, menus: Mapping[int, int] | None = None) -> Position:
        """A position by chance, at these settings of the menus; ends more often."""
        chosen = []
        for i, c in enumerate(self.controls):
            ends = [c.stops[0], c.stops[-1]]
            stop = self.chance.choice(ends if self.chance.random() < 0.3 else c.stops)
            chosen.append((menus or {}).get(i, stop))
        return tuple(chosen)

    def settings(self, menus: Iterable[int]) -> Iterator[dict[int, int]]:
        """All settings of these menus."""
        menus = sorted(menus)
        for stops in itertools.product(*(self.controls[i].stops for i in menus)):
            yield dict(zip(menus, stops))

    def search(self) -> None:
        """Move one control, from many positions, and keep which channels change."""
        every = list(self.settings(self.menus))
        for menus in every:
            for _ in range(max(3, 60 // len(every))):
                here = self.somewhere(menus)
                for i, c in enumerate(self.controls):
                    other = self.chance.choice([c.stops[0], c.stops[-1], *c.stops])
                    there = (*here[:i], other, *here[i + 1 :])
                    changed = self.states.at(here) != self.states.at(there)
                    self.found.append((here, i, np.flatnonzero(changed)))

    def classify(self) -> None:
        """Which menus a channel depends on; and at their settings, which sliders."""
        count = len(self.states.channels)
        self.menus_of: list[set[int]] = [set() for _ in range(count)]
        self.sliders_of: list[dict[Position, set]] = [{} for _ in range(count)]
        for _, i, changed in self.found:
            for channel in changed if i in self.menus else ():
                self.menus_of[channel].add(i)
        for here, i, changed in self.found:
            for channel in changed if i in self.sliders else ():
                at = self.setting(channel, here)
                self.sliders_of[channel].setdefault(at, set()).add(i)

    def setting(self, channel: int, here: Position) -> Position:
        return tuple(here[i] for i in sorted(self.menus_of[channel]))

    def grids(self, channel: int) -> Iterator[tuple[dict[int, int], list[int]]]:
        """Each setting of the channel's menus, and its sliders there."""
        for menus in self.settings(self.menus_of[channel]):
            yield menus, sorted(self.sliders_of[channel].get((*menus.values(),), ()))

    def places(self, menus: Mapping[int, int], sliders: Sequence[int]):
        """The positions of a grid; all other controls stand where they start."""
        for stops in itertools.product(*(self.controls[i].stops for i in sliders)):
            moved = {**menus, **dict(zip(sliders, stops))}
            yield tuple(moved.get(i, start) for i, start in enumerate(self.start))

    def thin(self, sliders: Iterable[int]) -> bool:
        """Take stops from the slider that has most."""
        order = sorted(sliders, key=lambda i: -len(self.controls[i].stops))
        return any(self.controls[i].thin() for i in order)

    def afford(self) -> None:
        """Leave out stops until `update` need be called at no more than `CALLS`."""
        while True:
            grids = {
                (*menus.items(), *sliders): (sliders, self.size(sliders))
                for channel in range(len(self.states.channels))
                for menus, sliders in self.grids(channel)
            }
            if sum(size for _, size in grids.values()) <= CALLS:
                return
            largest, _ = max(grids.values(), key=lambda grid: grid[1])
            if not self.thin(largest):
                return

    def size(self, sliders: Iterable[int]) -> int:
        return math.prod(len(self.controls[i].stops) for i in sliders)

    def bundle(self) -> dict:
        """Tables small enough, and found to be right."""
        self.afford()
        for _ in range(30):
            made = self.assembled()
            if len(made["data"]) + len(made["background"]) > BYTES and self.thin(
                self.heaviest()
            ):
                continue
            if not (wrong := self.wrong(made)):
                return made
            for channel, here in wrong:
                self.mend(channel, here)
            self.classify()
            self.afford()
        raise ValueError(f"the tables do not give what update gives: {wrong[0]}")

    def heaviest(self) -> list[int]:
        """The sliders of the grid whose numbers take most room."""

        def weight(channel: int, sliders: Sequence[int]) -> float:
            room = len(self.states.seen[channel][0])
            return self.size(sliders) * room if sliders else 0

        every = (
            (weight(channel, sliders), sliders)
            for channel in range(len(self.states.channels))
            for _, sliders in self.grids(channel)
        )
        return max(every)[1]

    def mend(self, channel: int, here: Position) -> None:
        """Find the control that a channel was thought not to depend on."""
        there = list(self.start)
        setting = dict(zip(sorted(self.menus_of[channel]), self.setting(channel, here)))
        known = (
            self.sliders_of[channel].get((*setting.values(),), set()) | setting.keys()
        )
        for i in known:  # what the tables already follow
            there[i] = here[i]
        for i in range(len(self.controls)):
            before = self.states.at((*there,))[channel]
            there[i] = here[i]
            if self.states.at((*there,))[channel] != before:
                self.found.append((here, i, [channel]))

    def wrong(self, made: dict) -> list[tuple[int, Position]]:
        """Channels that are not what they should be, and where."""
        read, found = Reader(made), []
        for _ in range(CHECKED):
            here = self.somewhere()
            stops = [c.stops.index(i) for c, i in zip(self.controls, here)]
            for channel, number in enumerate(self.states.at(here)):
                right = self.states.seen[channel][number]
                if read.state(channel, stops) != right:
                    found.append((channel, here))
        return found

    def assembled(self) -> dict:
        pack, artists = Pack(), []
        for i, kind in enumerate(self.states.kinds):
            every = enumerate(CHANNELS, i * len(CHANNELS))
            packed = {name: self.packed(channel, pack) for channel, name in every}
            artists.append({"kind": kind, **{k: v for k, v in packed.items() if v}})
        explorer, controls = self.explorer, self.controls
        data, shown = self.still
        width, height = (round(x) for x in explorer.figure.bbox.size)
        return {
            "version": 1,
            "width": width,
            "height": height,
            "background": background(explorer),
            "still": still(b64decode(data)),
            "alt": shown["alt"],
            "controls": [c.described() for c in controls],
            "presets": [
                {"label": label, "set": self.preset(values)}
                for label, values in explorer.presets.items()
            ],
            "artists": artists,
            "prediction": asked(explorer.prediction),
            "phone": self.phone,
            **self.more(pack),
            "data": pack.data(),
        }

    def more(self, pack: "Pack") -> dict:
        """What a page needs to compute by itself; here nothing."""
        return {}

    def preset(self, values: Mapping) -> dict[str, int]:
        chosen = {c.name: c for c in self.controls}
        return {k: chosen[k].stops.index(chosen[k].at(v)) for k, v in values.items()}

    def packed(self, channel: int, pack: "Pack") -> dict | None:
        """A channel's menus, for each setting of them a table, and the states.

        A table is its sliders, and the number of the state at each point of their grid.
        """
        if channel // len(CHANNELS) in self.left_out:
            return None
        used: dict[int, int] = {}
        grids = []
        for menus, sliders in self.grids(channel):
            numbers = (self.states.at(p)[channel] for p in self.places(menus, sliders))
            grids.append((sliders, [used.setdefault(n, len(used)) for n in numbers]))
        states = [self.states.seen[channel][n] for n in used]
        if states in (["[]"], [b""]):
            return None
        return {
            "menus": sorted(self.menus_of[channel]),
            "tables": [
                [sliders, pack.whole(n) if any(n) else 0] for sliders, n in grids
            ],
            **pack.states(states),
        }


def asked(prediction: Prediction | None) -> dict | None:
    """The question, its options, and what is said to each of them after the drag."""
    if prediction is None:
        return None
    said = {option: prediction.verdict(option) for option in prediction.options}
    return {"question": prediction.question, "now": NOW_DRAG, "said": said}


class Computed(Tables):
    """SAPO's: the page computes what moves, at all stops; the tables have the start."""

    most = 10_000

    def search(self) -> None:
        self.left_out = tuple(
            i
            for i, one in enumerate(self.states.artists)
            if isinstance(one, Collection)
        )

    def bundle(self) -> dict:
        return self.assembled()

    def more(self, pack: "Pack") -> dict:
        def keep(numbers: np.ndarray) -> list[int]:
            return pack.whole(numbers.astype("<f4").view("<i2"))

        parts = self.states.artists, self.states.recorder
        return {"model": sapo.model(self.explorer, *parts, keep), "note": NOTE}


class Pack:
    """Whole numbers of 16 bits one after the other, and JSON beside them.

    A segment [from, count, mode, width] holds differences: mode & 1 to the number
    before, mode & 2 to the one a `width` before; the first are undone first.
    """

    def __init__(self):
        self.numbers: list[np.ndarray] = []
        self.count = 0
        self.words: dict[str, int] = {}

    def segment(self, numbers: np.ndarray, width: int) -> list[int]:
        rows = numbers.copy()
        if 0 < width < len(rows):
            rows[width:] -= numbers[:-width]
        ways = {mode: z.copy() for mode, z in enumerate((numbers,) * 2 + (rows,) * 2)}
        for mode in (1, 3):
            ways[mode][1:] -= ways[mode - 1][:-1]
        mode = min(ways, key=lambda m: len(zlib.compress(planes(ways[m]), 1)))
        self.numbers.append(ways[mode])
        self.count += len(numbers)
        return [self.count - len(numbers), len(numbers), mode, width]

    def whole(self, numbers: Iterable[int]) -> list[int]:
        return self.segment(np.array(numbers, "<i2"), 0)[:3]

    def states(self, states: Sequence[bytes | str]) -> dict:
        """Numbers of x or y with the length of each state; or numbers of words."""
        if isinstance(states[0], str):
            numbers = [self.words.setdefault(word, len(self.words)) for word in states]
            return {"words": self.whole(numbers)}
        lengths = [len(state) // 2 for state in states]
        same = len(set(lengths)) == 1
        numbers = np.frombuffer(b"".join(states), "<i2")
        return {
            "numbers": self.segment(numbers, lengths[0] if same else 0),
            "length": lengths[0] if same else self.whole(lengths),
        }

    def data(self) -> str:
        words = f"[{','.join(self.words)}]".encode()
        head = len(words).to_bytes(4, "little")
        numbers = planes(np.concatenate([*self.numbers, np.zeros(0, "<i2")]))
        return b64encode(zlib.compress(head + words + numbers, 9)).decode()


def planes(numbers: np.ndarray) -> bytes:
    """The low bytes, then the high ones, which are nearly all the same."""
    return numbers.astype("<i2").view(np.uint8).reshape(-1, 2).T.tobytes()


class Reader:
    """Reads a bundle as the page does."""

    def __init__(self, bundle: dict):
        self.bundle = bundle
        every = zlib.decompress(b64decode(bundle["data"]))
        end = 4 + int.from_bytes(every[:4], "little")
        self.words = json.loads(every[4:end])
        halves = np.frombuffer(every[end:], np.uint8).reshape(2, -1)
        self.numbers = np.ascontiguousarray(halves.T).view("<i2")[:, 0]

    def segment(self, at: int, count: int, mode: int, width: int = 0) -> np.ndarray:
        numbers = self.numbers[at : at + count]
        if mode & 1:
            numbers = np.cumsum(numbers, dtype="<i2")
        if mode & 2 and width:
            numbers = np.cumsum(numbers.reshape(-1, width), axis=0, dtype="<i2").ravel()
        return numbers

    def state(self, channel: int, stops: Sequence[int]) -> bytes | str:
        """What a channel is where each control is at this stop, by index."""
        artist, name = divmod(channel, len(CHANNELS))
        held = self.bundle["artists"][artist].get(CHANNELS[name])
        if held is None:
            return b"" if CHANNELS[name] in "xy" else "[]"
        counts = [len(c["stops"]) for c in self.bundle["controls"]]
        sliders, numbers = held["tables"][index(held["menus"], stops, counts)]
        place = index(sliders, stops, counts)
        number = int(self.segment(*numbers)[place]) if numbers else 0
        if "words" in held:
            word = self.words[self.segment(*held["words"])[number]]
            return json.dumps(word, ensure_ascii=False)
        every, length = self.segment(*held["numbers"]), held["length"]
        if isinstance(length, int):
            return every[number * length :][:length].tobytes()
        ends = np.cumsum(self.segment(*length), dtype=int)
        return every[ends[number - 1] if number else 0 : ends[number]].tobytes()


def index(controls: Sequence[int], stops: Sequence[int], counts: Sequence[int]) -> int:
    """The place in a grid over these controls, the last of which runs fastest."""
    place = 0
    for i in controls:
        place = place * counts[i] + stops[i]
    return place


def background(explorer: Explorer) -> str:
    """What does not move, twice as fine, in 256 colours, as an address of data."""
    figure, canvas = explorer.figure, explorer.canvas
    usual = figure.dpi
    figure.dpi = 2 * usual
    canvas.draw()
    picture = Image.fromarray(np.array(canvas.buffer_rgba())[..., :3])
    figure.dpi = usual
    canvas.draw()
    buffer = io.BytesIO()
    picture.quantize(256, dither=0).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def still(png: bytes) -> str:
    """What tells one still from another: a hash of its pixels."""
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGB"))
    return hashlib.sha1(pixels.tobytes()).hexdigest()
