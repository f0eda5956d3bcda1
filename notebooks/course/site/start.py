"""The first page: what the course is, a gate to drag, and the way into each chapter."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from course.site.page import ROOT, Page

FIRST = ROOT / "README.md"
IDEA = """
<h1 id="top">From the policy gradient to SAPO</h1>
<p class="lead">Eleven ways to update a language model's policy, each derived beside
its code, with curves taken from the loss that trains. Drag a gate on any page; open
the notebooks to train.</p>
<p>New here? Begin with <a href="00_start_here.html">chapter 00</a>. Looking for one
method? Its row in <a href="methods.html">the methods</a> leads to its chapter.</p>
"""


def page(pages: Sequence[Page]) -> Page:
    cards = "".join(card(one) for one in pages if one.group == "Chapters")
    play = next((one for one in pages if one.file == "10_sapo.html"), None)
    hero, scripts, files = explorer(play) if play else ("", (), {})
    body = f'{IDEA}{hero}<h2 id="chapters">Chapters</h2><ol class="cards">{cards}</ol>'
    return Page("index.html", "Start", body, "", FIRST, scripts, files)


def explorer(play: Page) -> tuple[str, tuple[str, ...], dict[str, bytes]]:
    """SAPO's gate in the reader's hand, as it stands in its chapter."""
    found = re.search(r'<figure class="explorer".*?</figure>', play.body, re.S)
    text = '<p class="try">Drag τ and the updates: what does the gate still keep?</p>'
    return (text + found[0] if found else ""), play.scripts[:1], {}


def card(chapter: Page) -> str:
    """A chapter's picture, its title and its first sentences."""
    found = re.search(r'<img src="(\.\./figures/[^"]+)"[^>]*>', chapter.body)
    image = ""
    if found:
        where = Path("notebooks") / found[1].removeprefix("../")
        image = (
            f'<img src="figures/{where.name}" width="440" alt="the chapter\'s card">'
        )
    number, _, title = chapter.title.partition(" · ")
    return (
        f'<li><a href="{chapter.file}">{image}<strong>{html.escape(number)} · '
        f"{html.escape(title)}</strong></a><p>{html.escape(chapter.summary)}</p></li>"
    )
