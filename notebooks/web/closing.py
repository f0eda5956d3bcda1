"""The page on running the notebooks, and the page after the last chapter."""

import re
from collections.abc import Sequence
from dataclasses import replace

import yaml

import refimpl
from course.kit import methods
from web.page import ROOT, Page, made
from web.start import FIRST

TABLE = r'<figure>(?:(?!</figure>).)*alt="Clips stop on one side of 1.*?</figure>'
"""Matches chapter 11's picture of all gates."""
COMMAND = r"```bash\n(.*?jupyterlab.*?)\n```"


def run(group: str) -> Page:
    """Make the page on installing and running, with the README's command."""
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return made(
        "run",
        "Install and run",
        group,
        "How to install the notebooks and run them, here or in Codespaces.",
        command=re.search(COMMAND, FIRST.read_text(encoding="utf-8"), re.S)[1],
        torch=re.search(r"^torch==[\d.]+", pinned, re.M)[0],
    )


def after(group: str, chapters: Sequence[Page]) -> Page:
    """Make the page after the last chapter: what a reader can do now, and next."""
    body = "".join(c.body for c in chapters if c.file.startswith("11_"))
    picture = re.search(TABLE, body, re.S)
    written = made(
        "after",
        "After the last chapter",
        group,
        "What you can do now, what to read next, a project, how to cite, and where to "
        "report an error.",
        picture=picture[0] if picture else "",
        papers=methods.KNOWN.papers,
        cited=yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")),
        version=refimpl.__version__,
    )
    return replace(written, source=FIRST)
