"""An executed notebook as a page: prose, folded or open code, and outputs."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from course.kit.explorer import STORED
from web import exercises
from web.exercises import IN_A_NOTEBOOK, IN_THE_PAGE, Part
from web.markdown import headed, in_colour, markdown
from web.page import Page, SiteError, enlarged, size_of, sized

FOLDED = "hide-input"
FOLD = '<details class="fold{}"><summary>{}</summary>{}</details>'
ELSEWHERE = re.compile(
    r" ?For finer steps\b[^.]*\.| In JupyterLab the picture moves [^.]*\."
    r"|, and for finer steps, run the first cell and the one below"
    r"| ?Answer (?:like|as)(?: in)? `\(.*?\)`\.| Then run the next cell\."
)
"""What a picture or an answer needs in a notebook: a page moves, and has buttons."""


class Chapter:
    """The page of one notebook, cell by cell."""

    def __init__(self, path: Path, tables: Path):
        self.path, self.tables = path, tables
        self.files: dict[str, bytes] = {}
        self.scripts: list[str] = []
        self.left_out: list[str] = []
        self.cell = 0
        self.again = f"run `python -m tests.tools.execute {path.stem.split('_')[0]}`"

    def wrong(self, what: str) -> SiteError:
        return SiteError(f"{self.path.name}, cell {self.cell}: {what}")

    def page(self, group: str) -> Page:
        """Make the page; an output that no page can show is left out, and named.

        Raises `SiteError` if a text cannot be shown.
        """
        cells = nbformat.read(self.path, as_version=4).cells
        parts = []
        for self.cell, cell in enumerate(cells):
            if cell.cell_type == "markdown":
                parts.append(Part(cell, self.prose(cell.source)))
            elif cell.cell_type == "code" and cell.source.strip():
                parts.append(Part(cell, self.code(cell)))
        body = "\n".join(exercises.gathered(parts, f"notebooks/{self.path.name}"))
        title, lead = headed(body, self.path.name)
        return Page(
            f"{self.path.stem}.html",
            title,
            body,
            group,
            self.path,
            (*self.scripts, "assets/exercises.js"),
            self.files,
            lead,
            tuple(self.left_out),
        )

    def prose(self, source: str) -> str:
        try:
            return markdown(IN_A_NOTEBOOK.sub(IN_THE_PAGE, ELSEWHERE.sub("", source)))
        except ValueError as error:
            raise self.wrong(str(error)) from error

    def code(self, cell) -> str:
        outputs = "".join(self.outputs(cell))
        shown = in_colour(cell.source)
        if FOLDED in cell.metadata.get("tags", ()) or 'class="explorer"' in outputs:
            lines = len(cell.source.splitlines())
            what = f"code, {lines} line" + "s" * (lines > 1)
            shown = FOLD.format("", what, shown)
        if outputs and exercises.is_hidden(cell):
            outputs = FOLD.format(" answered", "What the cell shows", outputs)
        return f'<div class="cell">{shown}{outputs}</div>'

    def outputs(self, cell) -> Iterator[str]:
        """Yield what a cell shows; one that was worked through may hold anything."""
        if cell.execution_count is None:
            self.left_out.append(str(self.wrong("it was not run")))
        for one in cell.outputs or cell.metadata.get("answer", []):
            try:
                yield self.output(one)
            except SiteError as error:
                self.left_out.append(str(error))

    def output(self, output) -> str:
        if output.output_type == "stream":
            columns = re.findall(r"^.*\S {2,}\S|^ {2}", output.text, re.M)
            kind = "out" if len(columns) > 1 else "out prose"  # which may be wrapped
            text = html.escape(output.text)
            return f'<pre class="{kind}" tabindex="0">{text}</pre>'
        data = output.get("data", {})
        if "image/png" in data:
            return self.picture(data, output.metadata)
        if "text/markdown" in data:
            return f'<div class="out">{self.prose(data["text/markdown"])}</div>'
        kind = ", ".join(data) or output.output_type
        raise self.wrong(f"no page shows an output of {kind}")

    def picture(self, data: dict, metadata: dict) -> str:
        said = metadata.get("image/png", {})
        if not said.get("alt"):
            raise self.wrong("its picture has no alternative text")
        png = base64.b64decode(data["image/png"])
        name = f"img/{self.path.stem}-{hashlib.sha1(png).hexdigest()[:10]}.png"
        self.files[name] = png
        across, down = size_of(png)
        width = round(said.get("width") or across)
        alt, size = html.escape(said["alt"]), sized(width, across, down)
        image = f'<img src="{name}" alt="{alt}" {size}>'
        if data.get("text/plain", "").startswith("Explorer("):
            return self.explorer(image, data.get(STORED), metadata.get(STORED))
        return f"<figure>{enlarged(image)}</figure>"

    def explorer(self, image: str, data: dict | None, said: dict | None) -> str:
        """Show the still picture, and store the tables that make it move."""
        name = data["table"] if data else "no name"
        stored = self.tables / f"{name}.json"
        if not stored.exists():
            raise self.wrong(f"its explorer has no tables, {stored.name}; {self.again}")
        text = stored.read_text(encoding="utf-8")
        try:
            of_this = json.loads(text)["still"] == said["still"]
        except (ValueError, KeyError, TypeError):
            raise self.wrong(f"{stored.name} is broken; {self.again}") from None
        if not of_this:
            raise self.wrong(f"{stored.name} belongs to another picture; {self.again}")
        self.files[f"explorers/{name}.js"] = f'explorer("{name}", {text});'.encode()
        self.scripts.append(f"explorers/{name}.js")
        return f'<figure class="explorer" data-explorer="{name}">{image}</figure>'
