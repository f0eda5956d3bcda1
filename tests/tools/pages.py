"""Is an hour an hour? Words, code, pictures and height of every page.

    python -m tests.tools.pages [CHAPTER …] [--browser]

Prints what each chapter has and what it may have; the exit status is 1 if one has too
much, or if a picture has no alternative text. With `--browser` the executed pages are
rendered, folded as a reader gets them, at 1200 pixels, and their heights measured; it
needs Chromium and takes some seconds a page.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
WORDS, LINES, PICTURES = 3_300, 250, 9
WORDS_IN_ALL = 55_000
CODE_HEIGHT = 0.25
"""Of a page's height, in the chapters that a reader found to be made of code."""
LED_BY_CODE = ("03", "05", "09", "10", "13")
FOLDED = "hide-input"
HEADS = ["page", "words", "visible code", "pictures", "without words"]
KINDS = ("code", "prose", "pictures", "printed")
HEIGHTS = """
const height = {code: 0, prose: 0, pictures: 0, printed: 0};
const tall = one => one.getBoundingClientRect().height;
document.querySelectorAll(".jp-InputArea").forEach(one => {
  const prose = one.closest(".jp-MarkdownCell") !== null;
  height[prose ? "prose" : "code"] += tall(one);
});
document.querySelectorAll(".jp-OutputArea-child").forEach(one => {
  height[one.querySelector("img") ? "pictures" : "printed"] += tall(one);
});
return height;
"""


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def folded(cell: dict) -> bool:
    return FOLDED in cell["metadata"].get("tags", [])


def words(path: Path) -> int:
    """Of all prose: tables, mathematics and exercises are read, too.

    What a link of the site sets is no word.
    """
    prose = [source(c) for c in cells(path) if c["cell_type"] == "markdown"]
    return sum(len(re.sub(r'<a data-set="[^"]+">', "", t).split()) for t in prose)


def visible(path: Path) -> int:
    """Lines of code that are not folded away, without blank ones."""
    shown = [c for c in cells(path) if c["cell_type"] == "code" and not folded(c)]
    return sum(bool(line.strip()) for c in shown for line in source(c).splitlines())


def alternatives(path: Path) -> list[str]:
    """The alternative text of every picture, printed or in the prose; "" for none."""
    found = []
    for cell in cells(path):
        if cell["cell_type"] == "markdown":
            found += re.findall(r"!\[([^\]]*)\]\(", source(cell))
            for picture in re.findall(r"<img [^>]*>", source(cell)):
                found += re.findall(r'alt="([^"]*)"', picture) or [""]
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                found.append(output["metadata"].get("image/png", {}).get("alt", ""))
    return found


def heights(path: Path, browser, scratch: Path) -> dict[str, float]:
    """Pixels of code, prose, pictures and printed output, as shares of their sum."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    tags = {"enabled": True, "remove_input_tags": {FOLDED}}
    exporter = HTMLExporter(config=Config({"TagRemovePreprocessor": tags}))
    page = scratch / f"{path.stem}.html"
    html, _ = exporter.from_filename(path)
    page.write_text(re.sub(r'<script src="http[^>]*></script>', "", html), "utf-8")
    browser.get(page.as_uri())
    height = browser.execute_script(HEIGHTS)
    return {kind: height[kind] / sum(height.values()) for kind in KINDS}


def too_much(path: Path) -> list[str]:
    """What a page has more of than it may."""
    silent = alternatives(path).count("")
    counted = (
        ("words", words(path), WORDS),
        ("visible lines of code", visible(path), LINES),
        ("pictures", len(alternatives(path)), PICTURES),
        ("pictures without an alternative text", silent, 0),
    )
    return [f"{n} {what}, at most {most}" for what, n, most in counted if n > most]


def main(arguments: list[str]) -> None:
    chosen = [a for a in arguments if not a.startswith("-")]
    paths = [
        path
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        if not chosen or path.stem.split("_")[0] in chosen
    ]
    rows, wrong, heads = [], [], list(HEADS)
    for path in paths:
        texts = alternatives(path)
        rows.append(
            [path.stem, words(path), visible(path), len(texts), texts.count("")]
        )
        wrong += [f"{path.stem}: {one}" for one in too_much(path)]
    if "--browser" in arguments:
        heads += [f"{kind}, height" for kind in KINDS]
        from tests.tools.sliders import chromium

        with tempfile.TemporaryDirectory() as scratch, chromium(1200, 1000) as browser:
            for path, row in zip(paths, rows, strict=True):
                share = heights(path, browser, Path(scratch))
                row += [f"{share[kind]:.0%}" for kind in KINDS]
                if path.stem[:2] in LED_BY_CODE and share["code"] > CODE_HEIGHT:
                    wrong.append(f"{path.stem}: {share['code']:.0%} of its height code")
    total = sum(row[1] for row in rows)
    if total > WORDS_IN_ALL:
        wrong.append(f"{total} words in all, at most {WORDS_IN_ALL}")
    print(tabulate([*rows, ["in all", total]], heads), "", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
