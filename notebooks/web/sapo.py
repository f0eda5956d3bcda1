"""What SAPO's page computes for itself: gates, tokens and bars, for every τ.

A grid over two temperatures, the gate and the updates has no end, and the gate is one
line: `assets/sapo.js` has it. Here stands what it starts from: the tokens' log-ratios,
as exact as they are stored, the ways that pixels belong to ratios, the colours, and of
each stored arm the curve that is drawn. Tests compare what both compute.
"""

import json
from collections.abc import Callable, Iterable

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from torch import Tensor, linspace

from course.kit import stale
from course.sapo import explorer as sapo
from web.recorder import Recorder, thinned

LOOKS = {
    "sapo": sapo.Gate("SAPO", 1.0, 1.05),
    "sapo 8.8": sapo.Gate("SAPO", 8.8, 8.8),
    "one-sided": sapo.Gate("one-sided", 8.8, 8.8),
    "yours": sapo.Gate("SAPO", 2.0, 3.0),
}
"""A gate of every look."""

Keep = Callable[[np.ndarray], list[int]]
"""Puts numbers of 32 bits into the bundle, and says where they are."""


def model(play: sapo.Play, artists: list[Artist], recorder: Recorder, keep: Keep):
    """The bundle's `model`; the picture is left at another gate."""
    picture = play.picture
    bars, curves = picture.bars, picture.curves
    stroke, name = picture.name
    coloured = {
        "line": picture.columns[0]["line"],
        "stroke": stroke,
        "name": name,
        "fill": bars[0]["fill"],
        "share": bars[0]["text"],
    }
    stored = {part: curves[part] for part in ("band", "grpo", "middle", "name")}

    def drawn(gate: sapo.Gate, parts: dict, k: int = 16) -> dict:
        picture.update(*gate.taus, gate.kind, k)
        return {part: read(recorder, one) for part, one in parts.items()}

    def at(parts: Iterable[Artist]) -> list[int]:
        return [artists.index(one) for one in parts]

    looks = {look: drawn(gate, coloured) for look, gate in LOOKS.items()}
    arms = [(gate, drawn(gate, stored)) for _, gate in sapo.STORED.values()]
    both = dict(enumerate(mark for one in bars for mark in one["marks"]))
    marks = [drawn(LOOKS["yours"], both, k) for k in range(len(picture.known))]
    return {
        "name": "sapo",
        "edge": sapo.EDGE,
        "shades": sapo.SHADES,
        "columns": [column(one, recorder, keep) for one in picture.columns],
        "bars": [bar(one["fill"]) for one in bars],
        "clips": [read(recorder, one["fill"])["look"][0]["clip"] for one in bars],
        "looks": {
            look: {part: state["look"] for part, state in parts.items()}
            for look, parts in looks.items()
        },
        "known": [[gate.kind, *gate.taus, look] for look, gate in LOOKS.items()][:-1],
        "arms": [[gate.kind, *gate.taus, parts] for gate, parts in arms],
        "marks": [[list(state["x"]) for state in parts.values()] for parts in marks],
        "at": {
            "dots": at(one["dots"] for one in picture.columns),
            "line": at(one["line"] for one in picture.columns),
            "stroke": at([stroke]),
            "name": at([name]),
            "title": at([picture.title]),
            "fill": at(one["fill"] for one in bars),
            "share": at(one["text"] for one in bars),
            "marks": at(both.values()),
            "stored": dict(zip(stored, at(stored.values()))),
        },
    }


def read(recorder: Recorder, artist: Artist) -> dict:
    state = recorder.state(artist)
    return {
        "x": known(state["x"]),
        "y": known(state["y"]),
        "look": json.loads(state["look"]),
        "text": json.loads(state["text"]),
    }


def known(values: np.ndarray) -> list[float | None]:
    """JSON has no NaN."""
    return [None if np.isnan(z) else round(float(z), 2) for z in values]


def column(one: dict, recorder: Recorder, keep: Keep) -> dict:
    """A panel's tokens, and its pixels: (pixel of 0, pixels of 1) across and down."""
    tokens, axis = one["tokens"], one["line"].axes
    rollout = stale.load()
    rows = rollout.advantages.sign() == tokens.sign
    live = rollout.mask[rows].bool()
    push = (tokens.push[0] / tokens.ratio[0]).float()  # at k = 0 the ratio is 1
    ends = (axis.transData + recorder.flip).transform([(0, 0), (1, 1)])
    x, y = ends.T.tolist()
    grid = sapo.GRID.numpy()
    kept = thinned(np.stack([x[0] + (x[1] - x[0]) * grid, grid], -1))[:, 1]
    shades = sapo.colours(tokens.sign, linspace(0, 1, sapo.SHADES + 1).double())
    return {
        "sign": tokens.sign,
        "x": [x[0], x[1] - x[0]],
        "y": [y[0], y[1] - y[0]],
        "z": keep(single(rollout.z[:, rows][:, live])),
        "push": keep(single(push)),
        "aside": keep(single(tokens.x[0] - tokens.ratio[0])),
        "lift": keep(single(tokens.lift)),
        "count": len(push),
        "grid": np.round(kept, 5).tolist(),
        "limit": sapo.LIMIT,
        "clip": read(recorder, one["line"])["look"][0]["clip"],
        # A push's, and the most.
        "area": [420 * recorder.scale**2, 180 * recorder.scale**2],
        "shades": [to_hex(shade.tolist()) for shade in shades],
    }


def single(values: Tensor) -> np.ndarray:
    return values.float().flatten().numpy()


def bar(fill) -> list[float]:
    """The pixel at which a bar begins, and how many are 100 %."""
    left, right = fill.axes.transData.transform([(0, 0), (1, 0)])[:, 0]
    return [left, right - left]
