"""Make, link and check all pages of the site, and write all of them or none."""

import html
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import nbformat

import refimpl
from refimpl.algorithms import ALGORITHMS
from web import (
    anywhere,
    bibliography,
    cheat_sheet,
    closing,
    flags,
    glossary,
    instructor,
    ledger,
    markdown,
    start,
)
from web.mathematics import font, on_a_line
from web.notebook import Chapter
from web.page import (
    ASSETS,
    NOTEBOOKS,
    PLAYER,
    ROOT,
    TEMPLATES,
    Page,
    SiteError,
    enlarged,
    notebooks,
    size_of,
    sized,
    slug,
    text_of,
)
from web.source import of_code

TABLES = ROOT / "figures" / "explorers"
CORE, ELECTIVES, LOOK_UP, USE, TEACH = GROUPS = (
    "Core path",
    "Electives",
    "Look it up",
    "Use it",
    "Teach with it",
)
LICENSE = ROOT / "LICENSE"
LOOKED_UP = ("notation", "methods", "finding")
"""The guide's pages to read along with a chapter; the others help to use the course."""


def chapters() -> list[Page]:
    pages = []
    for path in notebooks():
        core = path.stem.partition("_")[0] in (*start.CORE, "tour")
        pages.append(Chapter(path, TABLES).page(CORE if core else ELECTIVES))
    return [with_flags(page) for page in pages]


def with_flags(page: Page) -> Page:
    """Add a link from the settings of TRL and verl to those of more engines."""
    names = [name for name in ALGORITHMS if page.file.endswith(f"_{name}.html")]
    method = f"#{max(names, key=len)}" if names else ""
    link = f'<a href="flags.html{method}">which flag gives this loss?</a>'
    heading = (
        r'(<h2 id="elsewhere">.*?</h2>|<summary>Settings in TRL and verl</summary>)'
    )
    return replace(
        page, body=re.sub(heading, rf"\1<p>In fourteen engines: {link}</p>", page.body)
    )


def guide() -> list[Page]:
    paths = sorted((NOTEBOOKS / "guide").glob("*.md"))
    groups = {path: LOOK_UP if path.stem in LOOKED_UP else USE for path in paths}
    return [markdown.from_markdown(path, group) for path, group in groups.items()]


def made(chapters: list[Page]) -> list[Page]:
    """Make the pages that have no file, from the code and from the chapters."""
    pages = [
        closing.after(CORE, chapters),
        cheat_sheet.page(LOOK_UP),
        flags.page(LOOK_UP),
        ledger.page(LOOK_UP),
        bibliography.page(LOOK_UP),
        closing.run(USE),
        *instructor.pages(TEACH, chapters),
    ]
    typeset = markdown.typeset
    return [replace(p, body=markdown.in_prose(p.body, typeset)) for p in pages]


class Site:
    """All pages by file name, and the other files of the site."""

    def __init__(self, pages: Iterable[Page], repository: str = ""):
        self.repository = anywhere.known(repository)
        self.pages = {page.file: page for page in pages}
        self.addresses = {p.source: p.file for p in self.pages.values() if p.source}
        self.addresses[ROOT / "README.md"] = "index.html"
        self.files: dict[str, bytes] = {}
        self.code: dict[Path, Page] = {}
        self.anchors = {page.file: anchors(page.body) for page in self.pages.values()}
        terms = glossary.addresses(self.pages)
        for name, page in list(self.pages.items()):
            if page.group in (CORE, ELECTIVES):
                page = glossary.explained(page, terms)
            self.pages[name] = self.joined(page)
        for page in self.code.values():
            self.pages[page.file] = page
        for page in self.pages.values():
            self.files |= page.files

    def joined(self, page: Page) -> Page:
        """Replace the repository's addresses in a page by the site's."""
        if page.source is None:
            return page
        body = re.sub(
            r'<(a|img)\b([^>]*?)(href|src)="([^"]*)"([^>]*)>',
            lambda link: self.element(page, *link.groups()),
            page.body,
        )
        if self.repository:
            link = rf'<a href="{self.repository}/blob/main/\1">\g<0></a>'
            body = re.sub(r'<code class="notebook">(.*?)</code>', link, body)
        return replace(page, body=body)

    def element(self, page: Page, tag, before, kind, address, after) -> str:
        if address.startswith("img/"):  # a cell's own picture
            return f'<{tag}{before}{kind}="{address}"{after}>'
        if tag == "img":
            return self.image(page, before + after, html.unescape(address))
        where = self.address(page, html.unescape(address)) if tag == "a" else address
        if where is None:  # a folder, for which the site has no page
            return f"<a{before}{after}>"
        return f'<{tag}{before}{kind}="{html.escape(where)}"{after}>'

    def address(self, page: Page, address: str) -> str | None:
        """Return where a link of a repository's file leads in the site, or None."""
        if re.match(r"[a-z]+:", address) or address.split("#")[0] in self.pages:
            return address
        path, _, anchor = address.partition("#")
        anchor = slug(unquote(anchor))  # the HTML has ε as %CE%B5
        target = (page.source.parent / path).resolve() if path else page.source
        known = self.addresses.get(target, "")
        if known and anchor and anchor not in self.anchors[known]:
            link = f"{place(page.source, address)} links to {address}"
            raise SiteError(f"{link}, an anchor that is missing")
        if known:
            return (known if path else "") + (anchor and f"#{anchor}")
        if not target.exists():
            link = f"{place(page.source, address)} links to {address}"
            raise SiteError(f"{link}, which does not exist")
        if self.repository:
            return f"{self.repository}/blob/main/{target.relative_to(ROOT)}"
        if target.is_dir():
            return None
        if target.suffix in (".png", ".gif"):
            self.files[f"figures/{target.name}"] = target.read_bytes()
            return f"figures/{target.name}"
        return self.code.setdefault(target, of_code(target)).file

    def image(self, page: Page, attributes: str, address: str) -> str:
        path = (page.source.parent / address).resolve()
        shows = f"{place(page.source, address)} shows {address}"
        if not path.exists():
            raise SiteError(f"{shows}, which does not exist")
        if not re.search(r'alt="[^"]', attributes):
            raise SiteError(f"{shows} without an alternative text")
        picture = path.read_bytes()
        self.files[f"figures/{path.name}"] = picture
        across, down = size_of(picture)
        asked_width = re.search(r'width="(\d+)"', attributes)
        width = int(asked_width[1]) if asked_width else across
        attributes = re.sub(r'\s*(width="\d+"|/$)', "", attributes).strip()
        size = sized(width, across, down)
        image = f'<img src="figures/{path.name}" {attributes} {size}>'
        return image if page.file == "index.html" else enlarged(image)  # or in a link


def anchors(body: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', body))


def place(source: Path, text: str) -> str:
    """Name the file that contains a text, and in a notebook the cell."""
    if source.suffix == ".ipynb":
        for number, cell in enumerate(nbformat.read(source, as_version=4).cells):
            if text in cell.source:
                return f"{source.name}, cell {number},"
    return source.name


def with_anchors(page: Page) -> Page:
    """Give each term of the glossary, on the page of notation, an anchor."""
    head, heading, terms = page.body.partition('<h2 id="glossary">')

    def anchored(cell: re.Match) -> str:
        return f'<tr>\n  <td id="{slug(glossary.term_of(cell[1]))}">{cell[1]}</td>'

    terms = re.sub(r"<tr>\s*<td>(.*?)</td>", anchored, terms, flags=re.S)
    return replace(page, body=head + heading + terms)


def sections(page: Page) -> list[tuple[str, str, str]]:
    """Return (anchor, heading, words) of each section, for the menu and the search.

    Formulas within a line are replaced by letters, so that sentences have no holes.
    """
    left_out = r'<(pre|script|figcaption)\b.*?</\1>|<math[^>]*display="block".*?</math>'
    body = re.sub(left_out, " ", page.body, flags=re.S)
    body = re.sub(r"<math\b.*?</math>", lambda m: on_a_line(m[0]), body, flags=re.S)
    parts = re.split(r'<h[123] id="([^"]*)"[^>]*>(.*?)</h[123]>', body, flags=re.S)
    triples = zip(parts[1::3], parts[2::3], parts[3::3])
    return [(anchor, text_of(head), text_of(text)) for anchor, head, text in triples]


def index(pages: Collection[Page]) -> bytes:
    """Write the search index: page, title, anchor, heading, words."""
    rows = [
        (page.file, page.title, *section)
        for page in pages
        if page.group
        for section in sections(page)
    ]
    rows += [
        ("notation.html", "Glossary", anchor, text_of(term), text_of(meaning))
        for page in pages
        if page.file == "notation.html"
        for anchor, term, meaning in glossary.TERMS.findall(page.body)
    ]
    return f"searchIndex({json.dumps(rows, ensure_ascii=False)});".encode()


def arrows(page: Page, pages: Collection[Page]) -> list[tuple[str, Page]]:
    """Return where a page's foot leads, each with its link's `rel`.

    Back and on stay in the page's group. From an elective another arrow leads to the
    core path, and from the core path one leads to an elective that comes next.
    """
    group = [other for other in pages if other.group == page.group]
    at = group.index(page)
    every = [other for other in pages if other.group in (CORE, ELECTIVES)]
    every = sorted(every, key=lambda other: other.file)
    before = group[:at]
    if page.group == ELECTIVES and not before:  # the chapter that it follows
        before = [other for other in every if other.file < page.file]
    links = [("prev", other) for other in before[-1:]]
    links += [("next", other) for other in group[at + 1 :][:1]]
    later = [other for other in every if other.file > page.file]
    if page.group == ELECTIVES:
        later = [other for other in later if other.group == CORE]
    across = [p for p in later[:1] if p.group != page.group and page in every]
    return links + [("next", other) for other in across]


def render(site: Site) -> dict[str, bytes]:
    """Make every file of the site; returns their contents by path."""
    frame, pages = TEMPLATES.get_template("page.html.j2"), site.pages.values()
    menu = {group: [p for p in pages if p.group == group] for group in GROUPS}
    files = dict(site.files)
    for asset in [*ASSETS.glob("*.[cj]s*"), *PLAYER.glob("player.*s")]:
        files[f"assets/{asset.name}"] = asset.read_bytes()
    for page in pages:
        source = in_repository(page)
        chapter = source.endswith(".ipynb")
        copied = page.source.name if chapter and site.repository else ""
        style = f"{Path(page.file).stem}.css"
        files[page.file] = frame.render(
            page=page,
            menu=menu,
            contents=[
                (anchor, heading)
                for anchor, heading, _ in sections(page)
                if f'<h2 id="{anchor}"' in page.body
            ],
            arrows=arrows(page, pages) if page.group else [],
            minutes=instructor.told(page).minutes if chapter else 0,
            ways=anywhere.ways(copied, site.repository) if copied else [],
            style=style if (ASSETS / style).exists() else "",
            source=source,
            repository=site.repository,
            licence=site.code[LICENSE].file if LICENSE in site.code else "",
            version=refimpl.__version__,
        ).encode()
        if copied:
            files[f"run/{copied}"] = anywhere.copy(copied, site.repository)
    listed = TEMPLATES.get_template("llms.txt.j2").render(menu=menu)
    formulas = "".join(re.findall(r"<math.*?</math>", bodies(site), re.S))
    return files | {
        "llms.txt": listed.encode(),
        "course.md": whole().encode(),
        "glossary.js": glossary.script(site.pages["notation.html"]),
        "search-index.js": index(pages),
        "assets/math.woff": font(formulas),
    }


def bodies(site: Site) -> str:
    return "".join(page.body for page in site.pages.values())


def in_repository(page: Page) -> str:
    """Return the page's source as a path in the repository, or an empty text."""
    source = page.source
    if not source or source == start.FIRST or not source.is_relative_to(ROOT):
        return ""
    return source.relative_to(ROOT).as_posix()


def whole() -> str:
    """Join all chapters as Markdown, with links to the site's pages."""
    cells = (cell for path in notebooks() for cell in nbformat.read(path, 4).cells)
    text = "\n\n".join(
        c.source if c.cell_type == "markdown" else f"```python\n{c.source}\n```"
        for c in cells
    )
    return re.sub(r"(?<=\()(\w+)\.ipynb", r"\1.html", text)


def check(files: dict[str, bytes]) -> None:
    """Raise `SiteError` for a link, picture or script that leads nowhere."""
    pages = {
        name: content.decode()
        for name, content in files.items()
        if name.endswith(".html")
    }
    known = {name: anchors(text) for name, text in pages.items()}
    for name, text in pages.items():
        for target in re.findall(r'\b(?:href|src)="([^"]*)"', text):
            target = html.unescape(target)
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            if path and path not in files:
                raise SiteError(f"{name} links to {path}, which the site does not have")
            if anchor and anchor not in known.get(path or name, {anchor}):
                raise SiteError(f"{name} links to {target}, an anchor that is missing")


MARK = "search-index.js"
"""The file by which a folder is recognised as an earlier site."""


def free(folder: Path) -> None:
    """Make the folder. Raises `SiteError` or `OSError` if it cannot take a site."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MARK).exists():
        raise SiteError(
            f"{folder} holds something other than a site; name another folder"
        )


def build(
    folder: Path, repository: str = "", say: Callable[[str], None] = print
) -> Path:
    """Write the site to `folder`. Returns its first page, to be opened in a browser.

    Says what a chapter holds and no page can show, such as a widget. If a page cannot
    be made, raises `SiteError` and leaves the folder as it was.
    """
    free(folder)  # before ten seconds of work
    guides = {page.file: page for page in guide()}
    guides["notation.html"] = with_anchors(guides["notation.html"])
    first = chapters()
    every = [*first, *made(first), *guides.values()]
    site = Site([start.page(every), *every], repository)
    files = render(site)
    check(files)
    shutil.rmtree(folder)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for what in (what for page in first for what in page.left_out):
        say(f"left out: {what}")
    total = sum(map(len, files.values()))
    say(f"{len(site.pages)} pages, {len(files)} files, {total / 1e6:.1f} MB")
    return folder / "index.html"
