"""The first page: it begins as the README does, with a run to drag, and has every
chapter with its minutes."""

import json
import re
from collections.abc import Sequence

from web import instructor
from web.markdown import markdown
from web.page import ROOT, Page, template
from web.pictures import two_rewards

FIRST = ROOT / "README.md"
CORE = "00 01 02 03 05 06 10 11 13".split()
"""The chapters that lead from the first idea to a real model."""


def page(pages: Sequence[Page]) -> Page:
    chapters = [one for one in pages if one.source and one.source.suffix == ".ipynb"]
    core = [one for one in chapters if instructor.number(one) in CORE]
    runs = json.loads(two_rewards.FILE.read_text(encoding="utf-8"))
    lead, for_whom = said("Reasoning models"), said(r"\*\*For you if")
    body = template("start.html.j2").render(
        title=title(),
        # The question that the picture answers stands above it, the rest below.
        hook=markdown(lead.partition(" **This is")[0]),
        lead=markdown("**This is" + lead.partition(" **This is")[2]),
        for_whom=markdown(for_whom),
        runs=runs,
        last=len(runs["steps"]) - 1,
        first=chapters[0],
        core=core,
        electives=[one for one in chapters if one not in core],
        can=can,
        found=markdown(said(r"\*\*What we found")),
        image=image,
        number=instructor.number,
        minutes=instructor.minutes,
    )
    return Page(
        "index.html",
        "Start",
        body,
        source=FIRST,
        styles=("door.css",),
        summary=re.sub(r"[*`]", "", lead),
    )


def title() -> str:
    return FIRST.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def said(begins: str) -> str:
    """The README's paragraph that begins so; of its lines each is one here, too."""
    text = FIRST.read_text(encoding="utf-8")
    found = re.search(rf"^{begins}.*?(?=\n\n|\n\*\*Start)", text, re.M | re.S)
    return found[0].replace("\n", "\n\n")


def can(chapter: Page) -> str:
    """What a reader can do after the chapter, as the README's table says."""
    text = FIRST.read_text(encoding="utf-8")
    row = rf"\(notebooks/{chapter.source.stem}\.ipynb\) \| (.*) \| \d+ \|$"
    found = re.search(row, text, re.M)
    html = markdown(found[1].replace(r"\|", "|")) if found else ""
    return html.strip().removeprefix("<p>").removesuffix("</p>")


def image(chapter: Page) -> str:
    """A chapter's first figure; the link's words name it."""
    found = re.search(r'<img src="img/[^>]*>', chapter.body)
    return re.sub('alt="[^"]*"', 'alt=""', found[0]) if found else ""
