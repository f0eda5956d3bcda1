"""What an artist draws as a piece of SVG: matplotlib's output, shortened."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.textpath import TextToPath

from course.kit.plots.words import plain

LOOK = {
    "svg.fonttype": "none",  # letters, which can be read aloud
    "svg.hashsalt": "refimpl",
    "path.simplify_threshold": 0.2,  # of a point: a smooth curve needs few
}
SHORTER: dict[str, str | Callable] = {
    r"^.*?</defs>|</svg>\s*$|<!--.*?-->": "",  # the head, and comments
    r'<g said="([^"]*)" wide="([^"]*)">\s*<text ': r'<g data-said="\1">'
    r'<text textLength="\2" lengthAdjust="spacingAndGlyphs" ',
    r'<g said="([^"]*)" wide="([^"]*)">': r'<g data-said="\1">',
    r"'DejaVu Sans'(, '[^']+')*, sans-serif": "'DejaVu Sans', Verdana, sans-serif",
    r"'DejaVu Sans Mono'(, '[^']+')*, monospace": "'DejaVu Sans Mono', monospace",
    r' id="[\w.]+_\d+"| transform="rotate\(-?0 [^"]*\)"': "",
    r' d="[^"]*"': lambda match: re.sub(r"(\.\d)\d+", r"\1", match[0]),
    r' (?!data-said)[\w-]+="[^"]*"': lambda match: re.sub(  # words keep their digits
        r"(\.\d\d)\d+", r"\1", match[0]
    ),
    r"\s*\n\s*": " ",
    r"(?<=>) (?=<)|(?<=\") (?=/>)": "",
}


measured = lru_cache(20_000)(TextToPath().get_text_width_height_descent)


class Renderer(RendererSVG):
    """Writes with each text its words for a screen reader, and its width."""

    def get_text_width_height_descent(self, s, prop, ismath):
        return measured(s, prop.copy(), ismath)

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        width, _, _ = self.get_text_width_height_descent(s, prop, ismath)
        words = plain(s) if ismath else s
        self.writer.start("g", said=words, wide=f"{width:.0f}")
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)
        self.writer.end("g")


@contextmanager
def in_points(figure: Figure) -> Iterator[None]:
    """Inside the block, a pixel of the figure is a point, as in matplotlib's SVG."""
    usual = figure.dpi
    figure.dpi = 72
    try:
        with mpl.rc_context(LOOK):
            yield
    finally:
        figure.dpi = usual


def moves_in(artist: Artist) -> Artist:
    """Return the part that moves: of a legend its title (see `primitives.finding`)."""
    return artist.get_title() if isinstance(artist, Legend) else artist


def drawn(artist: Artist, figure: Figure) -> str:
    """Return what an artist, or the figure, draws. Call it within `in_points`."""
    text = io.StringIO()
    renderer = Renderer(*figure.bbox.size, text)
    moves_in(artist).draw(renderer)
    renderer.finalize()
    svg = text.getvalue()
    for pattern, short in SHORTER.items():
        svg = re.sub(pattern, short, svg, flags=re.DOTALL)
    return svg.strip()


def background(figure: Figure, moving: Iterable[Artist]) -> str:
    """Draw everything that does not move. A figure leaves out what is animated.

    This also puts the title of a legend in its place, where `drawn` finds it.
    """
    legends = [artist for artist in moving if isinstance(artist, Legend)]
    try:
        for legend in legends:
            legend.set_animated(False)
            legend.get_title().set_visible(False)
        return drawn(figure, figure)
    finally:
        for legend in legends:
            legend.set_animated(True)
            legend.get_title().set_visible(True)
