"""The web edition in a browser without a network.

The site is built once. Every page is then opened from its folder: its links, pictures
and console, its width on a phone, a tablet and a laptop, and what axe-core finds.
"""

import re

import pytest

from course.kit.exercise import exercises, verdict
from tests.tools.browser import MISSING, wait
from web.build import build
from web.page import NOTEBOOKS as FOLDER

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the whole site, of which nothing is left out."""
    said = []
    first = build(tmp_path_factory.mktemp("web") / "site", say=said.append)
    assert len(said) == 1, said
    return first.parent


def ask(browser, width: int, script: str):
    """What a script says on a screen so wide, which stays."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", screen | {"mobile": width < 500}
    )
    return browser.execute_script(script)


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


def test_every_page_is_whole_without_a_network(site, browser):
    """No error, no dead picture, no root without its sign, nothing to scroll sideways,
    and nothing serious that axe-core finds; in the dark it looks at colours. Links
    were followed by the build.
    """
    axe = pytest.importorskip("axe_core_python.selenium").Axe().axe_script
    wrong = []
    shown = sorted(site.glob("code-*.html"))  # one frame: the first stands for all
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        found = browser.execute_async_script(LOOKED_AT)
        wrong += [(page.name, one) for one in found["pictures"] + found["roots"]]
        for width in (390, 768, 1440):
            wide = ask(browser, width, "return document.documentElement.scrollWidth")
            wrong += [(page.name, f"{wide} px of {width}")] * (wide > width)
        wrong += [(page.name, one["message"]) for one in browser.get_log("browser")]
        if page in shown[1:]:
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
    typed = [", ".join(map(str, one)) for one in parts]
    return [*zip(given, typed, ("wrong", "right"))]


def test_what_an_exercise_replies_is_what_the_checker_says(site, browser):
    """Wrongly and rightly, on every page; right answers are known when one returns."""
    for path in NOTEBOOKS:
        browser.get((site / f"{path.stem}.html").as_uri())
        browser.execute_script("localStorage.clear()")
        number = path.stem.partition("_")[0].removeprefix("0")
        own = [e for key, e in exercises().items() if key.startswith(f"{number}.")]
        asked = [one for one in own if not one.cases]
        for exercise in asked:
            key = exercise.key
            for answer, typed, how in answers(exercise):
                said, mark, kept = browser.execute_script(ANSWER, key, typed)
                reply = verdict(key, answer).replace(f" {key}  ", " ").replace("`", "")
                assert (said, mark) == (reply, how), key
                assert kept == ("right" if how == "right" else None), key
        browser.refresh()  # returns before the page's scripts have run, at times
        keys = {one.key for one in asked}
        wait(lambda: {*browser.execute_script(DONE)} == keys, keys, browser)  # noqa: B023


FULL = "Storage.prototype.setItem = () => { throw new Error('full'); }"


def test_an_answer_is_picked_by_keyboard_and_the_reply_is_announced(site, browser):
    """Also where the browser keeps nothing."""
    browser.get((site / "04_dr_grpo.html").as_uri())
    browser.execute_script(FULL)
    line = browser.find_element("css selector", "#exercise-4\\.2 button[value]")
    browser.execute_script("arguments[0].focus()", line)
    browser.switch_to.active_element.send_keys("\ue004")  # Tab
    second = browser.switch_to.active_element
    assert second.text == "twice as much"
    second.send_keys("\ue007")  # Enter
    assert second.get_attribute("aria-pressed") == "true"
    output = browser.find_element("css selector", "#exercise-4\\.2 output")
    assert output.text == "✓ Right." and output.aria_role == "status"
    assert "4.2" in browser.execute_script(DONE)
    assert browser.get_log("browser") == []


DOOR = """
    const box = one => document.querySelector(one).getBoundingClientRect();
    const range = document.createRange();
    range.setStartAfter(document.querySelector('h1'));
    range.setEndAfter(document.querySelector('.door-start'));
    return {bottom: box('.door-start').bottom, jump: box('figcaption').top,
        words: range.toString().replace(/{.*}/s, ''),
        said: document.querySelector('figcaption').textContent,
        numbers: [...document.querySelectorAll('.door b')].map(one => one.textContent)};
"""


def test_the_first_screen_of_a_phone_is_a_run_to_train_without_a_symbol(site, browser):
    """Paid for steps it earns and fakes; paid for the right answer it adds."""
    browser.get((site / "index.html").as_uri())
    ask(browser, 390, "window.scrollTo(0, 0)")
    before = browser.execute_script(DOOR)
    assert before["bottom"] <= 844  # of a phone, 390 wide
    assert not re.search("[\u0370-\u03ff\u00c2\u00e2]|\\bSAPO|ratio", before["words"])
    slider = browser.find_element("css selector", ".door [type=range]")
    slider.send_keys("\ue010")  # End
    faked = browser.execute_script(DOOR)
    assert faked["bottom"] <= 844 and faked["jump"] == before["jump"]
    paid, right = map(float, faked["numbers"])
    assert paid > 0.9 and right < 0.05 and "not what was meant" in faked["said"]
    browser.find_element("css selector", ".door [value=right]").click()
    paid, right = map(float, browser.execute_script(DOOR)["numbers"])
    assert paid == right > 0.6
    browser.find_element("css selector", ".door button").click()  # from the start again
    wait(lambda: "of 100" in browser.execute_script(DOOR)["said"], "training")
    assert float(browser.execute_script(DOOR)["numbers"][0]) >= 0.34


def type_in(site, browser, text: str) -> list[str]:
    """What the search finds for it: the files' names, best first. Keyboard alone."""
    browser.get((site / "index.html").as_uri())
    browser.find_element("tag name", "body").send_keys("/")
    browser.switch_to.active_element.send_keys(text)
    wait(lambda: "found" in browser.find_element("id", "results").text)
    links = browser.find_elements("css selector", "#results a")
    return [one.get_attribute("href").rpartition("/")[2] for one in links]


ASK_ALL = """
    const query = document.getElementById('query');
    return arguments[0].map(asked => {
        query.value = asked;
        query.dispatchEvent(new Event('input'));
        return [...document.querySelectorAll('#results a')].slice(0, 3)
            .map(one => one.getAttribute('href').split('.html')[0]);
    });
"""
QUERIES = {
    "clip": "02_ppo notation",
    "LoRA": "13_real_model real_model",
    "entropy collapse": "06_dapo 11_one_surrogate",
    "advantage": "notation 01_policy_gradient",
    "why is my loss zero": "questions troubleshooting",
    "how to run": "run",
    "advantges": "notation 01_policy_gradient",
    "what is a reward": "notation",
    "colab": "run",
    "answers length": "04_dr_grpo",
    "hacked rewards": "00_start_here",
    "baselne": "01_policy_gradient notation",
    "MoE": "09_moe_and_rspo notation",
    "distilling from a teacher": "17_distillation",
    "KL divergence": "notation 02b_kl_and_small_print 17_distillation questions",
    "what is a rollout?": "notation 00_start_here",
}
"""What people ask, and pages that answer; one of them is among the first three."""


def test_the_search_answers_people(site, browser):
    """Stems, a typing error, other words for the same thing, the glossary first. What
    is typed is text."""
    type_in(site, browser, "<img src=x onerror=window.hit=1>")
    hit = "return window.hit || document.querySelectorAll('#results img').length"
    assert browser.execute_script(hit) == 0
    found = dict(zip(QUERIES, browser.execute_script(ASK_ALL, list(QUERIES))))
    missed = {
        asked: hits
        for asked, hits in found.items()
        if not set(QUERIES[asked].split()) & set(hits)
    }
    assert missed == {}
    assert found["advantage"][0] == found["what is a rollout?"][0] == "notation"


def test_arrows_lead_through_the_hits_and_the_words_are_marked(site, browser):
    found = type_in(site, browser, "hacked rewards")
    marks = browser.find_elements("css selector", "#results mark")
    assert {"hacked", "reward"} <= {one.text.lower() for one in marks}
    down, up, enter = "\ue015", "\ue013", "\ue007"
    for key in (down, down, up, down):
        browser.switch_to.active_element.send_keys(key)
    assert browser.switch_to.active_element.get_attribute("href").endswith(found[1])
    browser.switch_to.active_element.send_keys(enter)
    wait(lambda: browser.current_url.endswith(found[1]), found[1])


NOTE = """
    const note = document.getElementById('note');
    return note.hidden ? '' : note.innerText;
"""
KEPT = "return JSON.parse(localStorage.getItem('course'))"


def marked(browser) -> list[str]:
    script = "[...document.querySelectorAll('.menu [aria-current]')]"
    return browser.execute_script(f"return {script}.map(one => one.textContent)")


def test_the_page_remembers_where_a_reader_was(site, browser):
    """The section in view, a half tick, a whole one, and "continue"; then forgotten."""
    browser.get((site / "03_grpo.html").as_uri())
    ask(browser, 1440, "localStorage.clear()")
    browser.execute_script("document.getElementById('the-code').scrollIntoView()")
    wait(lambda: marked(browser) == ["03 · GRPO ½", "The code"], "the section")
    browser.get((site / "index.html").as_uri())
    browser.find_element("partial link text", "Continue with 03").click()
    wait(lambda: browser.current_url.endswith("03_grpo.html#the-code"), "the section")
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    wait(lambda: marked(browser) == ["03 · GRPO ✓", "In our runs"], "the end")
    for answer in ("1.5", "-1.5"):  # a wrong number, then the right one
        browser.execute_script(ANSWER, "3.1", answer)
    assert marked(browser)[0] == "03 · GRPO ✓ · 1"
    label = "return document.querySelector('.tick').getAttribute('aria-label')"
    assert browser.execute_script(label) == ", read, 1 exercise done"
    browser.get((site / "index.html").as_uri())
    assert "Continue with 05" in browser.find_element("class name", "resume").text
    browser.find_element("css selector", ".resume button").click()
    assert browser.execute_script(KEPT)["read"] == {}
    assert browser.execute_script("return localStorage.length") == 1
    assert browser.find_elements("css selector", ".tick, .resume") == []


def test_words_and_symbols_are_explained_where_they_stand(site, browser):
    browser.get((site / "03_grpo.html").as_uri())
    ask(browser, 1440, "document.querySelector('main a.term').focus()")
    browser.switch_to.active_element.send_keys("\ue008")  # a key: focus is visible
    browser.execute_script("document.activeElement.blur()")
    browser.execute_script("document.querySelector('main a.term').focus()")
    term = browser.switch_to.active_element
    wait(lambda: browser.execute_script(NOTE).startswith(term.text + ":"), "the word")
    assert term.get_attribute("aria-describedby") == "note"
    term.send_keys("\ue00c")  # Escape
    assert browser.execute_script(NOTE) == ""
    symbols = browser.find_elements("css selector", "main math[tabindex]")
    first = next(one for one in symbols if one.text == "G")
    browser.execute_script("arguments[0].focus()", first)
    wait(lambda: "responses to each prompt" in browser.execute_script(NOTE), "G")


def test_no_opening_explains_a_word(site):
    for path in NOTEBOOKS:
        opening, _, rest = (site / f"{path.stem}.html").read_text().partition("<h2 id=")
        assert 'class="term"' in rest and 'class="term"' not in opening, path.stem


UNFOLDED = """
    const done = arguments[0], frame = requestAnimationFrame;
    document.querySelectorAll('main details').forEach(one => one.open = true);
    frame(() => frame(() => frame(done)));
"""
PLAYED = """
    const figures = [...document.querySelectorAll('figure.explorer')];
    return figures.every(one => one.querySelector('svg'));
"""


ON_A_PHONE = """
    const wrong = [], wide = one => one.scrollWidth > one.clientWidth + 2;
    for (const image of document.querySelectorAll('main figure img, main p > img'))
        if (!image.closest('.explorer, a.enlarge')) wrong.push(['no tap', image.src]);
    for (const table of [...document.querySelectorAll('.table')].filter(wide))
        if (!table.matches('[data-more]')) wrong.push(['no sign', table.innerText]);
    for (const figure of document.querySelectorAll('figure.explorer')) {
        const picture = figure.querySelector('.explorer-picture > svg').parentElement;
        const controls = [...figure.querySelectorAll('input[type=range], select')];
        const title = figure.querySelector('.explorer-title');
        const id = figure.dataset.explorer, drawn = new Set();
        if (wide(picture)) wrong.push([id, 'a panel is wider than the screen']);
        for (const part of [0, 1 / 3, 2 / 3, 1]) {
            for (const one of controls) {
                const last = one.max ? Number(one.max) : one.options.length - 1;
                one.value = Math.round(part * last);
                one.dispatchEvent(new Event(one.max ? 'input' : 'change'));
            }
            explorers[id].draw();
            drawn.add(picture.innerHTML);
            if (!title.innerText.trim() || wide(title))
                wrong.push([id, part, 'its title is cut', title.innerText]);
        }
        if (drawn.size < 2) wrong.push([id, 'its picture stays']);
        for (const control of [controls[0], controls.at(-1)]) {
            control.scrollIntoView({block: 'end'});
            const at = control.getBoundingClientRect();
            const box = picture.getBoundingClientRect();
            const header = document.querySelector('header').getBoundingClientRect();
            if (box.top < header.bottom - 1 || box.bottom > at.top)
                wrong.push([id, control.id, 'moves an unseen picture']);
        }
    }
    return wrong;
"""


def test_what_a_chapter_shows_can_be_read_on_a_phone(site, browser):
    """Pictures grow by a tap; a wide table says so; a control and its picture are seen
    together, the picture moves, and titles are whole at every stop."""
    wrong = []
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    for path in NOTEBOOKS:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get((site / f"{path.stem}.html").as_uri())
        wait(lambda: browser.execute_script(PLAYED), "the explorers")
        browser.execute_async_script(UNFOLDED)
        found = browser.execute_script(ON_A_PHONE)
        wrong += [(path.stem, *one) for one in found]
    assert wrong == []
