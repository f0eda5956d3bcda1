"""`llms.txt`, by which a language model finds its way, and the course as one file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import nbformat

from web.page import NOTEBOOKS, Page, text_of

TITLE = "PPO to SAPO"
SUMMARY = (
    "A course of notebooks on twenty ways to update a language model's policy, from "
    "REINFORCE to SAPO, each derived beside PyTorch code, with sixteen claims of the "
    "papers tested on stored runs."
)
GUIDE = {
    "command_line.html": "How to train a method from a shell, and what a run prints.",
    "machines.html": "Other processors and seeds, and how to use a GPU.",
    "measured.html": "Accuracy and seconds of each method on two cores.",
    "real_model.html": "How to train a pretrained model of 135 million parameters.",
    "troubleshooting.html": "What one sees when something is wrong, and what to do.",
}
"""Pages that begin with a command or a table instead of a sentence."""
WHOLE = "- [course.md](course.md): all chapters in one file, prose and code."


def files(menu: Mapping[str, Sequence[Page]]) -> dict[str, bytes]:
    return {"llms.txt": listing(menu).encode(), "course.md": whole().encode()}


def listing(menu: Mapping[str, Sequence[Page]]) -> str:
    """Title, summary, and a line for each page, in the form of llmstxt.org."""
    parts = [f"# {TITLE}\n\n> {SUMMARY}"]
    for group, pages in menu.items():
        lines = (f"- [{one.title}]({one.file}): {said(one)}" for one in pages)
        parts.append(f"## {group}\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, f"## Optional\n\n{WHOLE}\n"])


def said(page: Page) -> str:
    """What a page is about: its summary, or its first sentence."""
    found = re.search(r"<p>(?!<img)(.*?)</p>", page.body, re.S)
    text = page.summary or (text_of(found[1]) if found else page.title)
    return GUIDE.get(page.file) or re.split(r"(?<=[a-z)][.?!]) ", text)[0]


def whole() -> str:
    """Every chapter as Markdown, with links to the site's pages and figures."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    text = "\n\n".join(cell for path in paths for cell in cells(path))
    return re.sub(r"(?<=\()(\w+)\.ipynb", r"\1.html", text)


def cells(path: Path) -> Iterable[str]:
    for cell in nbformat.read(path, as_version=4).cells:
        prose = cell.cell_type == "markdown"
        yield cell.source if prose else f"```python\n{cell.source}\n```"
