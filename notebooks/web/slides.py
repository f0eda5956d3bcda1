"""Slides of a chapter: what it teaches, a figure per section, and its summary."""

import html
import re

from web.page import Page

HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.S)
FIGURE = re.compile(r'<img src="img/[^>]*>')
CODE = re.compile(r'<div class="cell">(<div class="highlight">.*?</div>)', re.S)
AT_HOME = ("Exercises", "Elsewhere", "Paper and toy", "Settings in TRL and verl")
"""Sections to read or to do, of which a slide shows nothing."""


def pages(chapters: list[Page]) -> list[Page]:
    return [of_chapter(chapter) for chapter in chapters]


def file_of(chapter: Page) -> str:
    return f"slides_{chapter.file.split('_')[0]}.html"


def of_chapter(chapter: Page) -> Page:
    """The chapter's slides, a page that no menu names."""
    body = "".join(f"<section>{one}</section>" for one in slides(chapter))
    return Page(
        file_of(chapter),
        f"Slides of {chapter.title}",
        f'<div class="slides">{body}</div>'
        '<script defer src="assets/slides.js"></script>',
        styles=("slides.css",),
        summary=f"Slides of the chapter {chapter.title}.",
    )


def slides(chapter: Page) -> list[str]:
    front, *rest = HEADING.split(plain(chapter.body))
    anchors, headings, texts = rest[::3], rest[1::3], rest[2::3]
    back = f'<p><a href="{chapter.file}">The chapter</a>. Arrow keys turn the page.</p>'
    shown = [f'<h1 id="top">{html.escape(chapter.title)}</h1>{aims(front)}{back}']
    for anchor, heading, text in zip(anchors, headings, texts):
        content = points(text) if heading in ("Summary", "Remember") else picture(text)
        if heading not in AT_HOME:
            shown.append(f'<h2 id="{anchor}">{heading}</h2>{content}')
    return shown


def plain(body: str) -> str:
    """The page without links, whose addresses are those of its notebook."""
    return re.sub(r"</?a\b[^>]*>", "", body)


def aims(front: str) -> str:
    """What one can do after the chapter; an appendix has a first paragraph instead."""
    found = re.search(r"you can</p>\s*(<ol>.*?</ol>)", front, re.S)
    return f"<p>After this chapter you can</p>{found[1]}" if found else first(front)


def first(text: str) -> str:
    found = re.search(r"<p>(?!<img).*?</p>", text, re.S)
    return found[0] if found else ""


def picture(text: str) -> str:
    """What stands for a section: a figure, else a formula, code, or its first words."""
    if found := FIGURE.search(text):
        return f"<figure>{found[0]}</figure>"
    if said := re.findall(r'<p><strong>(["“].*?["”])</strong>', text, re.S):
        return "<ul>" + "".join(f"<li>{one}</li>" for one in said) + "</ul>"
    if formula := re.search(r'<div class="math".*?</div>', text, re.S):
        return first(text) + formula[0]
    if code := CODE.search(text):
        return code[1]
    return first(text)


def points(text: str) -> str:
    """The lines of a summary."""
    found = re.search(r"<ul>.*?</ul>", text, re.S)
    return found[0] if found else first(text)
