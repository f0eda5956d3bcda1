"""The web edition in a browser without a network, and what the build refuses.

The site is built once. Every page is then opened from its folder: its links, pictures
and console, its width on a phone, a tablet and a laptop, and what axe-core finds.
"""

import base64
import io
import json
import re
import sys

import nbformat
import pytest
from PIL import Image

from course.site import __main__, build, start
from course.site.page import Page
from course.site.tables import still
from tests import sliders

no_browser = pytest.mark.skipif(
    sliders.CHROMIUM is None or sliders.DRIVER is None,
    reason="no Chromium with chromedriver: apt-get install chromium-driver",
)


def in_browser(test):
    return pytest.mark.slow(no_browser(test))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the whole site."""
    return build.build(tmp_path_factory.mktemp("web") / "site").parent


@pytest.fixture(scope="module")
def browser():
    """Chromium, cut off from every network."""
    off = {"offline": True, "latency": 0, "downloadThroughput": 0}
    with sliders.chromium(1440, 900) as chromium:
        chromium.execute_cdp_cmd("Network.enable", {})
        chromium.execute_cdp_cmd(
            "Network.emulateNetworkConditions", off | {"uploadThroughput": 0}
        )
        chromium.set_script_timeout(60)
        yield chromium


PICTURES = """
    const done = arguments[0];
    document.querySelectorAll('main details').forEach(one => one.open = true);
    const images = [...document.images];
    images.forEach(image => image.loading = 'eager');
    Promise.allSettled(images.map(image => image.decode())).then(() =>
        done(images.filter(image => !image.naturalWidth).map(image => image.src)));
"""
LINKS = """
    return [[...document.querySelectorAll('[id]')].map(one => one.id),
            [...document.querySelectorAll('a[href]')].map(one => one.href)];
"""


def ask(browser, width: int, script: str):
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", screen | {"mobile": width < 500}
    )
    return browser.execute_script(script)


@in_browser
def test_every_page_is_whole_without_a_network(site, browser):
    """No error, no dead link or picture, nothing to scroll sideways, folds open."""
    anchors, links, wrong = {}, {}, []
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        wrong += [(page.name, one) for one in browser.execute_async_script(PICTURES)]
        for width in (390, 768, 1440):
            wide = ask(browser, width, "return document.documentElement.scrollWidth")
            wrong += [(page.name, f"{wide} px of {width}")] * (wide > width)
        wrong += [(page.name, one["message"]) for one in browser.get_log("browser")]
        anchors[page.as_uri()], links[page.name] = browser.execute_script(LINKS)
    files = {one.as_uri() for one in site.rglob("*")}
    for name, targets in links.items():
        for target in targets:
            path, _, anchor = target.partition("#")
            there = path in files and (not anchor or anchor in anchors[path])
            if path.startswith("file:") and not there:
                wrong.append((name, target))
    assert len(links) > 30 and wrong == []


LIGHT_AND_DARK = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
"""What axe looks at: what is not a colour is the same in the dark."""


@in_browser
def test_axe_finds_nothing_serious(site, browser):
    """Formulas are left out: thousands of elements in the colours of their prose."""
    axe = pytest.importorskip("axe_core_python.selenium").Axe()
    found = []
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        browser.execute_async_script(PICTURES)
        for theme, options in LIGHT_AND_DARK.items():
            script = "document.documentElement.dataset.theme = arguments[0]"
            browser.execute_script(script, theme)
            options = options | {"resultTypes": ["violations"]}
            answer = axe.run(browser, {"exclude": [["math"]]}, options)
            assert answer["violations"] or answer["passes"], "axe looked at something"
            found += [
                (page.name, theme, one["id"], one["nodes"][0]["html"])
                for one in answer["violations"]
                if one["impact"] in ("serious", "critical")
            ]
    assert found == []


def type_in(site, browser, text: str) -> list[str]:
    """What the search finds for it: the files' names, best first. Keyboard alone."""
    browser.get((site / "index.html").as_uri())
    browser.find_element("tag name", "body").send_keys("/")
    browser.switch_to.active_element.send_keys(text)
    sliders.wait(lambda: "found" in browser.find_element("id", "results").text)
    links = browser.find_elements("css selector", "#results a")
    return [one.get_attribute("href").rpartition("/")[2] for one in links]


TERMS = {
    "CISPO rare token": "07_cispo",
    "dual clip": "06_dapo",
    "router replay": "09_moe_and_rspo",
    "top-p": "command_line",
    "length bias": "04_dr_grpo",
}


@in_browser
@pytest.mark.parametrize(("term", "page"), TERMS.items())
def test_the_search_leads_to_the_right_page(term, page, site, browser):
    found = type_in(site, browser, term)
    assert any(one.startswith(page) for one in found[:3]), found
    browser.switch_to.active_element.send_keys("\ue007")
    sliders.wait(lambda: browser.current_url.endswith(found[0]), found[0])


@in_browser
def test_what_is_typed_is_text(site, browser):
    assert type_in(site, browser, "<img src=x onerror=window.hit=1>") == []
    hit = "return window.hit || document.querySelectorAll('#results img').length"
    assert browser.execute_script(hit) == 0


GATE = "10_gate_1.json"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one chapter with an explorer, and the site that was made of it."""
    for name in ("notation", "methods"):
        page = tmp_path / f"guide/{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {name}\n\n## Glossary\n", encoding="utf-8")
    picture = io.BytesIO()
    Image.new("RGB", (9, 9)).save(picture, "png")
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / GATE).write_text(json.dumps({"still": still(picture.getvalue())}))
    png = base64.b64encode(picture.getvalue()).decode()
    shown = nbformat.v4.new_output(
        "display_data",
        {"image/png": png, "text/plain": "Explorer()"},
        metadata={"image/png": {"alt": "a gate"}},
    )
    cells = [
        nbformat.v4.new_markdown_cell("# 10 · Gate"),
        nbformat.v4.new_code_cell("show()", execution_count=1, outputs=[shown]),
        nbformat.v4.new_markdown_cell(
            "![a](a.png) [b](guide/notation.md#glossary) $x$"
        ),
    ]
    monkeypatch.setattr(build, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build, "TABLES", tmp_path)
    monkeypatch.setattr(build, "made", list)
    monkeypatch.setattr(start, "page", lambda _: Page("index.html", "Start", ""))
    monkeypatch.setattr(sys, "argv", ["course.site", str(tmp_path / "site")])
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "10_gate.ipynb")
    __main__.main()
    return tmp_path


def refused(course) -> str:
    """The sentence with which the build ends; what was made before stands."""
    before = {one: one.stat().st_mtime_ns for one in course.rglob("site/*")}
    with pytest.raises(SystemExit) as end:
        __main__.main()
    said = str(end.value)  # a text as the exit's code: printed, and the status is 1
    assert {one: one.stat().st_mtime_ns for one in course.rglob("site/*")} == before
    assert "\n" not in said and not list(course.glob(".site-*"))
    return said


WRONG = {
    '<img src="a.png">': "shows a.png without an alternative text",
    "![b](b.png)": "shows b.png, which is not here",
    "[b](b.md)": "links to b.md, which is not here",
    "[b](guide/notation.md#no)": "links to guide/notation.md#no, an anchor that is mis",
    "[b](#no)": "links to #no, an anchor that is missing",
    r"$\left( x$": r"no formula: $\left( x$",
    r"$\fracc x$": r"no formula: $\fracc x$ (what is \fracc?)",
}


@pytest.mark.parametrize(("prose", "said"), WRONG.items())
def test_prose_that_leads_nowhere_is_named_with_its_cell(prose, said, course):
    path = course / "10_gate.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].source = prose
    nbformat.write(notebook, path)
    assert re.search(r"10_gate.ipynb, cell 2[,:] " + re.escape(said), refused(course))


OUTPUTS = {
    "it was never executed": {"execution_count": None, "outputs": []},
    "its picture has no alternative text": {"metadata": {}},
    "no page shows an output of text/latex": {"data": {"text/latex": "x"}},
}


@pytest.mark.parametrize(("said", "change"), OUTPUTS.items())
def test_an_output_that_no_page_can_show_is_named_with_its_cell(said, change, course):
    path = course / "10_gate.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = notebook.cells[1]
    (cell if "outputs" in change else cell.outputs[0]).update(change)
    nbformat.write(notebook, path)
    assert f"10_gate.ipynb, cell 1: {said}" in refused(course)


TABLES = {"no tables": None, "another picture": '{"still": "x"}', "broken": "{"}


@pytest.mark.parametrize(("said", "tables"), TABLES.items())
def test_an_explorer_without_its_tables_is_named(said, tables, course):
    (course / GATE).unlink()
    if tables:
        (course / GATE).write_text(tables)
    assert re.search(f"10_gate.ipynb, cell 1: .*{said}", refused(course))


def test_a_folder_that_holds_something_else_stays(course):
    (course / "site/search-index.js").unlink()
    assert "site holds something that is no site" in refused(course)
