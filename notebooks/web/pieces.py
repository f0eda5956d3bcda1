"""A picture in pieces, for a screen that is too narrow for it.

Its title becomes text, and the player stacks the rest: the columns of the legend, the
panels, the footer. If a neighbour has the numbers of a panel's y-axis, that strip is
part of the panel's piece. A picture with several footers stays in one piece.
"""

import itertools
from collections.abc import Iterator, Sequence

from matplotlib.artist import Artist
from matplotlib.transforms import Bbox

from course.kit.explorer import Explorer, call, reach

AIR = 3
"""Pixels around a piece."""


def pieces(explorer: Explorer) -> dict:
    """Return where the title ends, and the pieces.

    A piece is left, top, right, bottom in pixels, then left, right, bottom of its strip
    if it has one.
    """
    figure = explorer.figure
    panels = [panel for panel in figure.axes if panel.get_visible()]
    panels.sort(key=lambda p: (round(p.get_position().x0, 2), -p.bbox.y0))
    texts = [figure._suptitle, *(legend.get_title() for legend in figure.legends)]
    titles = [text for text in texts if text and text.get_text().strip()]
    footers = [text for text in figure.texts if text not in titles]
    reached = zip(*extents(explorer, [*panels, *footers]))
    boxes = [Bbox.union(extent) for extent in reached]
    entries = [cut(explorer, b) for legend in figure.legends for b in columns(legend)]
    strips = [strip(panel, panels, boxes) for panel in panels] + [[] for _ in footers]
    air = [0] * len(panels) + [2 * AIR] * len(footers)  # words are drawn twice as fine
    every = zip(boxes, air, strips)
    parts = [cut(explorer, box.padded(more, 0)) + strip for box, more, strip in every]
    ends = [cut(explorer, title.get_window_extent())[3] for title in titles]
    whole = [0, top := max(ends, default=0), *map(round, figure.bbox.size)]
    return {
        "top": top,
        "pieces": [*entries, *parts] if len(footers) < 2 else [whole],
    }


def extents(explorer: Explorer, whole: Sequence[Artist]) -> Iterator[list[Bbox]]:
    """Yield the boxes of these artists with every control at each of its ends."""
    usual = explorer.values
    reached = {name: reach(control) for name, control in explorer.controls.items()}
    ends = [[{k: every[0]}, {k: every[-1]}] for k, every in reached.items()]
    for other in [*explorer.presets.values(), *itertools.chain(*ends), {}]:
        for move in explorer.moves:
            call(move, usual | other)
        yield [artist.get_tightbbox(explorer.canvas.get_renderer()) for artist in whole]


def columns(legend) -> list[Bbox]:
    """Return the boxes of a legend's entries, one box per column."""
    boxes: list[Bbox] = []
    for handle, text in zip(legend.legend_handles, legend.get_texts()):
        box = Bbox.union([handle.get_window_extent(), text.get_window_extent()])
        if boxes and box.x0 < boxes[-1].x1:
            box = Bbox.union([box, boxes.pop()])
        boxes.append(box)
    return [box.padded(AIR, 0) for box in boxes]  # letters are drawn twice as fine


def strip(panel, panels: Sequence, boxes: Sequence[Bbox]) -> list[int]:
    """Return where the y-axis has its numbers, if the panel has none of its own."""
    for other, box in zip(panels, boxes):
        joined = panel.get_shared_y_axes().joined(panel, other)
        numbered = panel.yaxis.get_tick_params().get("labelleft", True)
        if joined and not numbered and other.bbox.y0 == panel.bbox.y0:
            under = panel.figure.bbox.height - other.bbox.y0 + 3 * AIR  # half a number
            return [round(box.x0) - AIR, round(other.bbox.x0), round(under)]
    return []


def cut(explorer: Explorer, box: Bbox) -> list[int]:
    """Return the box with some air, from the picture's upper left corner."""
    width, height = explorer.figure.bbox.size
    left, right = max(box.x0 - AIR, 0), min(box.x1 + AIR, width)
    top, bottom = max(height - box.y1 - AIR, 0), min(height - box.y0 + AIR, height)
    return [round(edge) for edge in (left, top, right, bottom)]
