"""What an artist draws, as numbers: a renderer of matplotlib that only writes down.

A state of an artist is its primitives (paths, rows of markers, lines of text) in pixels
of the figure, from its upper left corner, in four *channels* that move for reasons of
their own:

    x, y    one number a vertex (a text: its anchor), of all primitives one by one
    look    a dictionary a primitive: how many vertices are its own, what they are
            joined by, colours, line width, dashes, clip, font, alignment
    text    a pair a text: its letters and how wide matplotlib's font makes them
"""

import itertools
import json

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgba
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D

from course.kit.plots.words import plain

DENSE = 250
"""A curve of more points is drawn with one a pixel."""


class Recorder(RendererBase):
    """`state(artist)` has what it draws on this canvas."""

    def __init__(self, canvas: FigureCanvasAgg):
        super().__init__()
        self.agg = canvas.get_renderer()
        self.height, self.scale = self.agg.height, self.agg.dpi / 72
        self.flip = Affine2D().scale(1, -1).translate(0, self.height)
        self.x: list = []
        self.y: list = []
        self.look: list[dict] = []
        self.said: list = []

    def state(self, artist: Artist) -> dict:
        """By channel: numbers for x and y, JSON for look and text."""
        self.x, self.y, self.look, self.said = [], [], [], []
        self.artist = artist
        artist.draw(self)
        both = (np.concatenate(z) if z else np.zeros(0) for z in (self.x, self.y))
        texts = (json.dumps(z, ensure_ascii=False) for z in (self.look, self.said))
        return dict(zip(("x", "y", "look", "text"), (*both, *texts)))

    def points_to_pixels(self, points):
        return points * self.scale

    def get_text_width_height_descent(self, s, prop, ismath):
        return self.agg.get_text_width_height_descent(s, prop, ismath)

    def get_canvas_width_height(self):
        return self.agg.get_canvas_width_height()

    def draw_image(self, gc, x, y, im, transform=None):
        raise ValueError("a picture moves: only lines, shapes and texts can")

    def add(self, vertices: np.ndarray, gc, **look) -> None:
        if gc.get_clip_path() != (None, None):
            raise ValueError("what moves is clipped by a path: only rectangles can")
        if (clip := gc.get_clip_rectangle()) is not None:
            (x0, y0), (x1, y1) = np.floor(self.flip.transform(clip.corners()[[1, 2]]))
            look["clip"] = [x0, y0, x1 - x0, y1 - y0]
        self.x.append(vertices[:, 0])
        self.y.append(vertices[:, 1])
        self.look.append({"n": len(vertices), **look})

    def ink(self, gc, face) -> dict:
        """Fill, stroke, width and dashes, as far as there are any."""
        look: dict = {}
        alpha = gc.get_alpha() if gc.get_forced_alpha() else None
        if face is not None and (fill := to_rgba(face, alpha))[3]:
            look["fill"] = to_hex(fill, keep_alpha=fill[3] < 1)
        if gc.get_linewidth() and (line := gc.get_rgb())[3]:
            look["stroke"] = to_hex(line, keep_alpha=line[3] < 1)
            look["width"] = round(gc.get_linewidth() * self.scale, 2)
            look["cap"] = {"projecting": "square"}.get(c := gc.get_capstyle(), c)
            look["join"] = gc.get_joinstyle()
            offset, dashes = gc.get_dashes()
            if dashes is not None:
                look["dash"] = [round(float(d) * self.scale, 2) for d in dashes]
                look["from"] = round(float(offset) * self.scale, 2)
        return look

    def draw_path(self, gc, path, transform, rgbFace=None):
        ink = self.ink(gc, rgbFace)
        if not ink:
            return
        path = path.cleaned(
            transform + self.flip,
            curves=True,
            snap=gc.get_snap(),
            stroke_width=ink.get("width", 0),
        )
        vertices, codes = path.vertices[:-1], path.codes[:-1]  # the last says: stop
        if (codes[1:] == Path.LINETO).all():
            self.add(thinned(vertices), gc, **ink)
        else:
            runs = [[int(c), len([*g])] for c, g in itertools.groupby(codes)]
            vertices = np.where(codes[:, None] == Path.CLOSEPOLY, 0, vertices)
            self.add(vertices, gc, codes=runs, **ink)

    def draw_markers(self, gc, marker_path, marker_trans, path, trans, rgbFace=None):
        shape = marker_path.cleaned(marker_trans + Affine2D().scale(1, -1), curves=True)
        places = (trans + self.flip).transform(path.vertices)
        outline = np.round(shape.vertices[:-1], 2).tolist()
        codes = [[int(c), 1] for c in shape.codes[:-1]]
        mark = {"codes": codes, "at": outline}
        self.add(places, gc, mark=mark, **self.ink(gc, rgbFace))

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        """The anchor is where the text is aligned: other fonts are not as wide."""
        width, _, _ = self.get_text_width_height_descent(s, prop, ismath)
        align = mtext._get_multialignment() if mtext else self.aligned(prop)
        along = {"left": 0, "center": width / 2, "right": width}[align]
        turn = np.deg2rad(angle)
        place = [[x + along * np.cos(turn), y - along * np.sin(turn)]]
        look = {
            "size": round(prop.get_size_in_points() * self.scale, 2),
            "weight": str(prop.get_weight()),
            "mono": "monospace" in prop.get_family(),
            "align": align,
            "angle": angle,
            "fill": to_hex(gc.get_rgb(), keep_alpha=gc.get_rgb()[3] < 1),
        }
        room = 1.4 * width if ismath else width  # π_old is longer than its index
        self.said.append([plain(s) if ismath else s, round(room)])
        self.add(np.array(place), gc, **{k: v for k, v in look.items() if v})

    def aligned(self, prop) -> str:
        """How a text of several lines is aligned: its font is all that is handed on."""
        for text in self.artist.findobj(Text):
            if text.get_fontproperties() is prop:
                return text._get_multialignment()
        return "left"


def thinned(vertices: np.ndarray) -> np.ndarray:
    """Of a dense curve that runs to the right, the first point in every pixel."""
    x = vertices[:, 0]
    if len(x) <= DENSE or not (np.diff(x) > 0).all():
        return vertices
    first = np.diff(np.floor(x), prepend=-np.inf) > 0
    first[-1] = True
    return vertices[first]
