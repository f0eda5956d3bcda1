"""The first page: a run to drag, three doors, and every chapter with its minutes."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from web import instructor, two_rewards
from web.markdown import markdown
from web.page import ROOT, Page, made

FIRST = ROOT / "README.md"
CORE = "00 01 01b 02 03 05 06 10 11 13".split()
"""The chapters that lead from the first idea to a real model."""
NEEDS = {
    "My run is unstable": "02b 04 07 08 16",
    "My system is large": "09 13b 14 15",
    "Agents and teachers": "17 18 19",
    "I read papers": "10b 12",
}
"""The electives by what a reader needs."""
BEFORE = {"09": "after 08", "19": "after 16 and 18"}
"""What an elective needs besides the core path."""


def page(pages: Sequence[Page]) -> Page:
    every = [page for page in pages if page.source and page.source.suffix == ".ipynb"]
    listed = {
        chapter.number: (page, chapter, can(page), image(page))
        for page in every
        for chapter in [instructor.told(page)]
    }
    lead, for_whom = paragraph("Reasoning models"), paragraph(r"\*\*For you if")
    # The question that the picture answers comes above it, the rest below.
    hook, this_is, rest = lead.partition(" **This is")
    written = made(
        "index",
        "Start",
        summary=re.sub(r"[*`]", "", lead),
        heading=FIRST.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "),
        hook=markdown(hook),
        lead=markdown(this_is + rest),
        for_whom=markdown(for_whom),
        runs=json.loads(two_rewards.FILE.read_text(encoding="utf-8")),
        tour=listed["tour"],
        core=[listed[number] for number in CORE],
        needs={
            need: [listed[number] for number in numbers.split()]
            for need, numbers in NEEDS.items()
        },
        before=BEFORE,
        found=markdown(paragraph(r"\*\*What we found")),
    )
    return replace(written, source=FIRST)


def paragraph(begins: str) -> str:
    """Return the README's paragraph that begins like this, line by line."""
    text = FIRST.read_text(encoding="utf-8")
    match = re.search(rf"^{begins}.*?(?=\n\n|\n\*\*)", text, re.M | re.S)
    return match[0].replace("\n", "\n\n")


def can(chapter: Page) -> str:
    """Return what a reader can do after the chapter, from the README's table."""
    text = FIRST.read_text(encoding="utf-8")
    row = rf"\(notebooks/{chapter.source.stem}\.ipynb\) \| (.*) \| \d+ \|$"
    match = re.search(row, text, re.M)
    html = markdown(match[1].replace(r"\|", "|")) if match else ""
    return html.strip().removeprefix("<p>").removesuffix("</p>")


def image(chapter: Page) -> str:
    """Return a chapter's first figure, without an alt text: the link has words."""
    match = re.search(r'<img src="img/[^>]*>', chapter.body)
    return re.sub('alt="[^"]*"', 'alt=""', match[0]) if match else ""
