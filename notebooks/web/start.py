"""The first page: what the course is, a gate to drag, and the way into each chapter."""

import html
import re
from collections.abc import Sequence

from web.markdown import markdown
from web.page import ROOT, Page

FIRST = ROOT / "README.md"
IDEA = """
<h1 id="top">From the policy gradient to SAPO</h1>
<p class="lead">Twenty ways to update a language model's policy, each derived beside
its code, with curves taken from the loss that trains. Drag a gate on any page; open
the notebooks to train.</p>
<p>New here? Begin with <a href="00_start_here.html">chapter 00</a>. Looking for one
method? <a href="methods.html">The methods</a> lead to its chapter and its code.
Training with TRL, verl or another engine? See
<a href="flags.html">which flag gives this loss</a>.</p>
"""


CARDS = {
    "10_sapo": '<img src="figures/card_clip_or_fade.png" width="440" alt="GRPO\'s clip '
    "drops a token at once, SAPO's soft gate fades it out.\">",
    "10b_evidence": '<img src="figures/card_stale_updates.png" width="440" alt="Reward '
    "of stored stale runs: GRPO and a one-sided gate keep most of it, SAPO at τ = 8.8 "
    'loses it.">',
}
"""Where a chapter opens with something that moves, or with no picture."""


def page(pages: Sequence[Page]) -> Page:
    cards = "".join(card(one) for one in pages if one.group == "Chapters")
    play = next(one for one in pages if one.file == "10_sapo.html")
    gate = re.search(r'<figure class="explorer".*?</figure>', play.body, re.S)
    body = f"""{IDEA}
<p>Drag τ and the updates: what does the gate still keep?</p>
{gate[0] if gate else ""}
{markdown(found())}
<h2 id="chapters">Chapters</h2>
<ol class="cards">{cards}</ol>"""
    return Page("index.html", "Start", body, source=FIRST, scripts=play.scripts[:1])


def found() -> str:
    """The README's findings, without the pictures below them."""
    heading = "## What we found"
    text = FIRST.read_text(encoding="utf-8").partition(heading)[2]
    return heading + text.partition("\n|")[0]


def card(chapter: Page) -> str:
    """A chapter's picture, its title and its first sentences."""
    stem = chapter.file.partition(".")[0]
    found = re.search(r'<img src="(figures/[^>]*>)', CARDS.get(stem, chapter.body))
    image = f'<img src="notebooks/{found[1]}' if found else ""
    return (
        f'<li><a href="{chapter.file}">{image}<strong>{html.escape(chapter.title)}'
        f"</strong></a><p>{html.escape(chapter.summary)}</p></li>"
    )
