"""The web edition in a browser without a network.

The site is built once. Every page is then opened from its folder: its links, pictures
and console, its width on a phone, a tablet and a laptop, and what axe-core finds.
"""

import pytest

from course.kit.exercise import exercises, verdict
from tests.tools.browser import MISSING, wait
from web.build import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ci,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the whole site, of which nothing is left out."""
    said = []
    first = build(tmp_path_factory.mktemp("web") / "site", say=said.append)
    assert len(said) == 1, said
    return first.parent


WIDE = "return document.documentElement.scrollWidth"
LOOKED_AT = """
    const done = arguments[0], box = one => one.getBoundingClientRect().width;
    document.querySelectorAll('main details').forEach(one => one.open = true);
    const roots = [...document.querySelectorAll('msqrt')].filter(one => 5 >=
        box(one) - [...one.children].reduce((sum, child) => sum + box(child), 0));
    const images = [...document.images];
    images.forEach(image => image.loading = 'eager');
    Promise.allSettled(images.map(image => image.decode())).then(() => done({
        pictures: images.filter(one => !one.naturalWidth).map(one => one.src),
        roots: roots.map(one => one.textContent)}));  // an msqrt without its sign
"""
AXE = """
    const [theme, only, done] = arguments, seen = {};
    document.documentElement.dataset.theme = theme;
    document.querySelectorAll('math').forEach(one => one.replaceWith('x'));
    for (const one of document.querySelectorAll('body *')) {  // three of each look
        const {color, backgroundColor, fontSize, fontWeight} = getComputedStyle(one);
        const look = [one.tagName, one.className, one.parentElement.className, color,
            backgroundColor, fontSize, fontWeight].join();
        seen[look] = (seen[look] ?? 0) + 1;
        one.toggleAttribute('data-look', seen[look] <= 3);
    }
    axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]});
    axe.run(document, {...only, resultTypes: ['violations']}).then(done);
"""


KINDS = {"index", "03_grpo", "cheat_sheet", "which_method", "solutions"}
"""A page of each kind, for axe-core."""


def test_every_page_is_whole_without_a_network(site, browser):
    """No error, no dead picture, no root without its sign, nothing to scroll sideways,
    and on a page of each kind nothing serious that axe-core finds; in the dark it looks
    at colours. Links were followed by the build.
    """
    axe = pytest.importorskip("axe_core_python.selenium").Axe().axe_script
    wrong, screen = [], {"height": 900, "deviceScaleFactor": 1}
    code = sorted(site.glob("code-*.html"))  # one frame: the first stands for all
    assert {page.stem for page in site.glob("*.html")} > KINDS
    for page in sorted({*site.glob("*.html")} - {*code[1:]}):
        browser.get(page.as_uri())
        found = browser.execute_async_script(LOOKED_AT)
        wrong += [(page.name, one) for one in found["pictures"] + found["roots"]]
        for width in (390, 768, 1440):
            given = screen | {"width": width, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", given)
            wide = browser.execute_script(WIDE)
            wrong += [(page.name, f"{wide} px of {width}")] * (wide > width)
        wrong += [(page.name, one["message"]) for one in browser.get_log("browser")]
        if page.stem not in KINDS and page != code[0]:
            continue
        browser.execute_script(axe)
        for theme, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            answer = browser.execute_async_script(AXE, theme, only)
            assert answer["violations"] or answer["passes"], "axe looked at something"
            wrong += [
                (page.name, theme, one["id"], one["nodes"][0]["html"])
                for one in answer["violations"]
                if one["impact"] in ("serious", "critical")
            ]
    assert wrong == []


ANSWER = """
    const section = document.getElementById('exercise-' + arguments[0]);
    const button = [...section.querySelectorAll('button[value]')]
        .find(one => one.value === arguments[1]);
    if (button) button.click();
    else {
        const form = section.querySelector('form.answer');
        const fields = form.querySelectorAll('input, select');
        arguments[1].split(', ').forEach((one, i) => fields[i].value = one);
        form.requestSubmit();
    }
    return [section.querySelector('output').textContent, section.dataset.answer,
            localStorage.getItem('refimpl:exercise:' + arguments[0])];
"""
DONE = "return [...document.querySelectorAll('.exercise.done')].map(x => x.dataset.key)"


def answers(exercise) -> list[tuple]:
    """A wrong answer that the page takes, then the right one; and how it is typed."""
    wrong = [*exercise.mistakes.values()]
    if exercise.choices and not exercise.parts:
        wrong = [one for one in wrong if one in exercise.choices]
    given = wrong[0], exercise.solution
    parts = [one if isinstance(one, list | tuple) else [one] for one in given]
    sign = "." if exercise.choices else ","  # as many people write numbers
    typed = [", ".join(map(str, one)).replace(".", sign) for one in parts]
    return [*zip(given, typed, ("wrong", "right"))]


@pytest.mark.parametrize("stem", ["00_start_here", "03_grpo"])
def test_what_an_exercise_replies_is_what_the_checker_says(stem, site, browser):
    """Wrongly and rightly, on pages with every kind of answer; right answers are known
    when one returns."""
    browser.get((site / f"{stem}.html").as_uri())
    browser.execute_script("localStorage.clear()")
    number = str(int(stem[:2]))
    own = [e for key, e in exercises().items() if key.startswith(f"{number}.")]
    asked = {one.key: one for one in own if not one.cases}
    for key, exercise in asked.items():
        for answer, typed, how in answers(exercise):
            said, mark, kept = browser.execute_script(ANSWER, key, typed)
            reply = verdict(key, answer).replace(f" {key}  ", " ").replace("`", "")
            assert (said, mark) == (reply, how), key
            assert kept == ("right" if how == "right" else None), key
    browser.refresh()  # returns before the page's scripts have run, at times
    wait(lambda: {*browser.execute_script(DONE)} == asked.keys(), "marks")


def type_in(site, browser, text: str) -> list[str]:
    """What the search finds for it: the files' names, best first. Keyboard alone."""
    browser.get((site / "index.html").as_uri())
    browser.find_element("tag name", "body").send_keys("/")
    browser.switch_to.active_element.send_keys(text)
    wait(lambda: "found" in browser.find_element("id", "results").text)
    links = browser.find_elements("css selector", "#results a")
    return [one.get_attribute("href").rpartition("/")[2] for one in links]


QUERIES = {
    "advantage": "notation",
    "why is my loss zero": "questions troubleshooting",
    "advantges": "notation",
    "distilling from a teacher": "17_distillation",
    "what is a rollout?": "notation",
}
"""What people ask, and pages that answer; one of them is among the first three."""


def test_the_search_answers_people(site, browser):
    """Stems, a typing error, other words for the same thing, the glossary first. What
    is typed is text."""
    type_in(site, browser, "<img src=x onerror=window.hit=1>")
    hit = "return window.hit || document.querySelectorAll('#results img').length"
    assert browser.execute_script(hit) == 0
    for asked, pages in QUERIES.items():
        found = type_in(site, browser, asked)[:3]
        hits = [one.partition(".html")[0] for one in found]
        assert {*pages.split()} & {*hits}, (asked, hits)
        assert hits[0] == "notation" or "notation" not in pages, asked


EXPLAINED = """return [...document.querySelectorAll('main math[tabindex="0"] mi')]
    .some(one => one.textContent === arguments[0])"""


def test_a_symbol_is_explained_where_it_means_that_and_nowhere_else(site, browser):
    """Chapter 13's c counts right answers, and the K of KL is a part of a name."""
    for page, letter in ("07_cispo", "c"), ("03_grpo", "K"):
        browser.get((site / f"{page}.html").as_uri())
        wait(lambda one=letter: browser.execute_script(EXPLAINED, one), letter)
    absent = ("13_real_model", "G", "c"), ("17_distillation", "o", "K")
    for page, first, letter in absent:
        browser.get((site / f"{page}.html").as_uri())
        wait(lambda one=first: browser.execute_script(EXPLAINED, one), first)
        assert not browser.execute_script(EXPLAINED, letter)
