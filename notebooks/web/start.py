"""The first page: a run to drag, the doors into the course, and every chapter."""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from web import instructor
from web.markdown import markdown
from web.page import ROOT, Page, template
from web.pictures import two_rewards

FIRST = ROOT / "README.md"
SENTENCE = (
    "This small language model can add, but would rather guess: "
    "pay it, and watch what it learns, and what it learns to fake."
)
"""The README begins with it, too."""

CARDS = {
    "10_sapo": '<img src="figures/card_clip_or_fade.png" width="440" alt="GRPO\'s clip '
    "drops a token at once, SAPO's soft gate fades it out.\">",
    "10b_evidence": '<img src="figures/card_way_back.png" width="440" alt="Reward '
    "by learning rate, all gates at GRPO's pace: those that close on the way back fall "
    'at lower rates.">',
}
"""Where a chapter opens with something that moves, or with no picture."""


class Route(NamedTuple):
    """A way through the chapters; `more` are pages besides them."""

    name: str
    chapters: Sequence[Page]
    more: Sequence[tuple[str, str]] = ()

    @property
    def reading(self) -> int:
        return sum(map(instructor.reading, self.chapters))

    @property
    def exercises(self) -> int:
        return sum(map(exercises, self.chapters))


ROUTES = {
    "Essentials": ("00 01 02 03 06 10 11", ()),
    "I run TRL or verl": (
        "00 03 05 14 15",
        (
            ("flags.html", "which flag gives this loss?"),
            ("11_one_surrogate.html#from-symptom-to-cause", "from symptom to cause"),
        ),
    ),
}
"""Their chapters, and the pages besides."""


def routes(chapters: Sequence[Page]) -> list[Route]:
    by_number = {instructor.number(one): one for one in chapters}
    chosen = [
        Route(name, [by_number[number] for number in numbers.split()], more)
        for name, (numbers, more) in ROUTES.items()
    ]
    return [*chosen, Route("All of it", chapters)]


def exercises(chapter: Page) -> int:
    """Minutes of those with a check."""
    return instructor.parted(instructor.asked(chapter))[0]


def duration(minutes: int) -> str:
    """In words: minutes, and what is longer in half hours."""
    if minutes < 100:
        return f"{minutes} minutes"
    hours, half = divmod(round(minutes / 30), 2)
    return f"{hours}{'½' * half} hours"


def page(pages: Sequence[Page]) -> Page:
    chapters = [one for one in pages if one.source and one.source.suffix == ".ipynb"]
    runs = json.loads(two_rewards.FILE.read_text(encoding="utf-8"))
    body = template("start.html.j2").render(
        sentence=SENTENCE,
        runs=runs,
        last=len(runs["steps"]) - 1,
        first=chapters[0],
        chapters=chapters,
        routes=routes(chapters),
        found=markdown(found()),
        image=image,
        duration=duration,
        exercises=exercises,
        number=instructor.number,
        reading=instructor.reading,
    )
    return Page(
        "index.html",
        "Start",
        body,
        source=FIRST,
        styles=("door.css",),
        summary=SENTENCE,
    )


def found() -> str:
    """The README's findings, without the pictures below them."""
    heading = "## What we found"
    text = FIRST.read_text(encoding="utf-8").partition(heading)[2]
    lines = text.partition("\n## ")[0].splitlines()
    return "\n".join([heading, "", *(one for one in lines if one.startswith("- "))])


def image(chapter: Page) -> str:
    """A chapter's picture."""
    stem = chapter.file.partition(".")[0]
    found = re.search(r'<img src="(figures/[^>]*>)', CARDS.get(stem, chapter.body))
    return f'<img src="notebooks/{found[1]}' if found else ""
