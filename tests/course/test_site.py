"""The web edition in a browser without a network.

The site is built once. Every page is then opened from its folder: its links, pictures
and console, its width on a phone, a tablet and a laptop, and what axe-core finds.
"""

import re
from urllib.parse import unquote

import pytest

import refimpl
from course.kit.exercise import exercises, verdict
from tests.course.in_browser import IN_A_BROWSER, ask, grave
from web.browser import wait
from web.build import build
from web.page import NOTEBOOKS as FOLDER

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the whole site."""
    return build(tmp_path_factory.mktemp("web") / "site").parent


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

ROOTS = """
    const box = one => one.getBoundingClientRect().width;
    document.querySelectorAll('main details').forEach(one => one.open = true);
    return [...document.querySelectorAll('msqrt')].map(one => [one.textContent,
        box(one) - [...one.children].reduce((sum, child) => sum + box(child), 0)]);
"""
"""What an `msqrt` adds to its children is the √; without the sign, nothing."""


def test_every_page_is_whole_without_a_network(site, browser):
    """No error, no dead link or picture, no root without its sign, nothing to scroll
    sideways, folds open."""
    anchors, links, wrong, roots = {}, {}, [], 0
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        wrong += [(page.name, one) for one in browser.execute_async_script(PICTURES)]
        signs = browser.execute_script(ROOTS)
        wrong += [(page.name, f"√{under}") for under, wider in signs if wider <= 5]
        roots += len(signs)
        for width in (390, 768, 1440):
            wide = ask(browser, width, "return document.documentElement.scrollWidth")
            wrong += [(page.name, f"{wide} px of {width}")] * (wide > width)
        wrong += [(page.name, one["message"]) for one in browser.get_log("browser")]
        anchors[page.as_uri()], links[page.name] = browser.execute_script(LINKS)
    files = {one.as_uri() for one in site.rglob("*")}
    for name, targets in links.items():
        for target in targets:
            path, _, anchor = target.partition("#")
            there = path in files and (not anchor or unquote(anchor) in anchors[path])
            if path.startswith("file:") and not there:
                wrong.append((name, target))
    assert len(links) > 30 and roots > 30 and wrong == []


FORM = '<form class="answer">'
WAY = '<code class="notebook">notebooks/'


def test_an_exercise_is_answered_in_the_page_or_shows_the_way_to_the_notebook(site):
    """One of both, with a solution behind a fold, and never an empty check."""
    seen, known = {}, exercises()
    for path in NOTEBOOKS:
        page = text(site, path.stem)
        assert "Not attempted" not in page and "check(" not in page, path.stem
        for one in re.findall(r'<section class="exercise".*?</section>', page, re.S):
            key = re.search('data-key="([^"]+)"', one)[1]
            seen[key] = (FORM in one, WAY + path.name in one, "Solution" in one)
            bug = "find the bug in this run" in one and not known[key].parts
            assert bug == ('"listing"' in one), key  # a line alone is picked there
    assert set(known) < set(seen)
    for key, found in seen.items():
        here = key in known and not known[key].cases
        assert found == (here, not here, key in known), key


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


def written(answer) -> str:
    """As a reader picks or types it."""
    return (
        ", ".join(map(str, answer)) if isinstance(answer, list | tuple) else f"{answer}"
    )


def offered(exercise) -> list:
    """A wrong answer that the page takes, and then the right one."""
    wrong = exercise.mistakes.values()
    return [
        next(
            x
            for x in wrong
            if exercise.parts or not exercise.choices or x in exercise.choices
        ),
        exercise.solution,
    ]


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
            for answer in offered(exercise):
                said, how, kept = browser.execute_script(ANSWER, key, written(answer))
                reply = verdict(key, answer).replace(f" {key}  ", " ").replace("`", "")
                right = answer is exercise.solution
                assert said == reply and how == ("right" if right else "wrong"), key
                assert kept == ("right" if right else None), key
        browser.refresh()
        assert set(browser.execute_script(DONE)) == {one.key for one in asked}


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


def text(site, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


GOES_ON = """
    const tables = [...document.querySelectorAll('.table')];
    const wide = tables.find(one => one.scrollWidth > one.clientWidth + 40);
    return getComputedStyle(wide).backgroundAttachment;
"""
ENLARGED = "return document.querySelector('dialog.large img').clientWidth"
DRAWN = """
    const picture = document.querySelector('.explorer-picture > svg');
    picture.parentElement.scrollIntoView({block: 'center'});
    const wide = Math.round(picture.getBoundingClientRect().width);
    return [picture.innerHTML, wide, picture.parentElement.scrollWidth];
"""


def test_a_newcomer_on_a_phone_reads_a_formula_a_table_and_moves_an_explorer(
    site, browser
):
    """From the start page on, by the links that are there; every tap is a click."""
    browser.get((site / "index.html").as_uri())
    ask(browser, 390, "window.scrollTo(0, 0)")
    browser.find_element("partial link text", "Start: chapter 00").click()
    wait(lambda: browser.current_url.endswith("00_start_here.html"), "chapter 00")
    assert "local" in browser.execute_script(GOES_ON)
    picture = browser.find_element("css selector", "figure a.enlarge")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", picture)
    picture.click()
    wait(lambda: browser.execute_script(ENLARGED) >= 800, "the picture, 800 of 390 px")
    browser.find_element("css selector", "dialog.large button").click()
    gone = "return !document.querySelector('dialog.large')"  # its event comes later
    wait(lambda: browser.execute_script(gone), "the picture to close")
    browser.get((site / "10_sapo.html").as_uri())
    assert all(wider > 5 for _, wider in browser.execute_script(ROOTS))
    wait(lambda: browser.execute_script(DRAWN), "the explorer")
    before, wide, room = browser.execute_script(DRAWN)
    assert 340 <= wide == room  # its panels stand one below the other
    slider = browser.find_element("css selector", ".explorer input[type=range]")
    slider.send_keys("\ue014" * 3)
    wait(lambda: browser.execute_script(DRAWN)[0] != before, "the picture to move")


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


READY = """
    document.querySelectorAll('main details').forEach(one => one.open = true);
    document.querySelectorAll('math').forEach(one => one.replaceWith('x'));
    document.querySelectorAll('.cell .highlight').forEach(one => one.remove());
    axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]});
"""
ASK = """
    const [options, done] = arguments;
    axe.run(document, {...options, resultTypes: ['violations']}).then(done);
"""
LOOKS = """
    document.documentElement.dataset.theme = arguments[0];
    const seen = {};
    const walk = (one, ground) => {
        const {color, fontSize, fontWeight, backgroundColor, backgroundImage,
               opacity} = getComputedStyle(one);
        const own = `${backgroundColor} ${backgroundImage} ${opacity}`;
        if (own !== 'rgba(0, 0, 0, 0) none 1') ground += own;
        const look = [ground, color, fontSize, fontWeight].join();
        const words = [...one.childNodes].filter(n => n.nodeType === 3);
        const text = words.some(n => n.data.trim().length > 1);
        delete one.dataset.look;
        if (text && one.checkVisibility()) {
            seen[look] = (seen[look] ?? 0) + 1;
            if (seen[look] <= 3) one.dataset.look = '';
        }
        [...one.children].forEach(child => walk(child, ground));
    };
    walk(document.body, '');
"""
"""Marks three texts of each look: the contrast is that of colours, size and weight. One
might not do, as axe gives no verdict where it cannot tell what is behind a text."""
LIGHT_AND_DARK = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
"""What axe looks at: what is not a colour is the same in the dark."""


def test_axe_finds_nothing_serious(site, browser):
    """Formulas are left out, thousands of elements in the colours of their prose, and
    a chapter's code, which looks like that of the pages that show a file."""
    axe = pytest.importorskip("axe_core_python.selenium").Axe().axe_script
    found = []
    shown = sorted(site.glob("code-*.html"))  # one frame: the first stands for all
    for page in sorted({*site.glob("*.html")} - {*shown[1:]}):
        browser.get(page.as_uri())
        browser.execute_script(axe + READY)
        for theme, options in LIGHT_AND_DARK.items():
            browser.execute_script(LOOKS, theme)
            answer = browser.execute_async_script(ASK, options)
            found += [(page.name, theme, *one) for one in grave(answer)]
    assert found == []


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
    "importance sampling": "01_policy_gradient 05_gspo",
    "entropy collapse": "06_dapo 11_one_surrogate",
    "verl grpo std": "03_grpo 14_scaling_out flags engines",
    "padding": "00_start_here 03_grpo 13_real_model",
    "advantage": "notation 01_policy_gradient",
    "off-policy": "01_policy_gradient 15_late_sampler notation",
    "reward hacking": "00_start_here",
    "why is my loss zero": "questions troubleshooting",
    "how to run": "run",
    "install": "run",
    "advantges": "notation 01_policy_gradient",
    "what is a reward": "notation",
    "what does ppo stand for": "notation 02_ppo",
    "quiz": "instructor 00_start_here solutions",
    "colab": "run",
    "CISPO rare token": "07_cispo",
    "dual clip": "02b_kl_and_small_print",
    "router replay": "09_moe_and_rspo",
    "top-p": "09_moe_and_rspo",
    "answers length": "04_dr_grpo",
    "clipping": "02_ppo notation",
    "hacked rewards": "00_start_here",
    "baselne": "01_policy_gradient notation",
    "MoE": "09_moe_and_rspo notation",
    "value network": "02_ppo notation",
    "distilling from a teacher": "17_distillation",
    "KL divergence": "notation 02b_kl_and_small_print 17_distillation questions",
    "out of memory": "real_model 13_real_model troubleshooting",
    "cuda": "machines",
    "length normalization": "04_dr_grpo 03_grpo 06_dapo 08_gmpo",
    "what is a rollout?": "notation 00_start_here",
    "truncated importance sampling": "15_late_sampler notation",
    "how do I cite": "after",
    "read my log": "read_log",
}
"""What people ask, and pages that answer; one of them is among the first three."""


def test_the_search_answers_people(site, browser):
    """Stems, a typing error, other words for the same thing, the glossary first."""
    type_in(site, browser, "clip")
    found = dict(zip(QUERIES, browser.execute_script(ASK_ALL, list(QUERIES))))
    missed = {
        asked: hits
        for asked, hits in found.items()
        if not set(QUERIES[asked].split()) & set(hits)
    }
    assert len(QUERIES) == 36 and missed == {}
    assert found["advantage"][0] == found["what is a rollout?"][0] == "notation"


def test_a_phone_is_not_told_of_keys(site, browser):
    shown = "return document.querySelector('#results > p').innerText"
    assert "Enter" in (type_in(site, browser, "clip") and ask(browser, 1440, shown))
    assert "Enter" not in ask(browser, 390, shown)
    ask(browser, 1440, "")


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
    assert "Continue with 04" in browser.find_element("class name", "resume").text
    browser.find_element("css selector", ".resume button").click()
    assert browser.execute_script(KEPT)["read"] == {}
    assert browser.execute_script("return localStorage.length") == 1
    assert browser.find_elements("css selector", ".tick, .resume") == []


NO_STORAGE = """
    Object.defineProperty(window, 'localStorage', {get() { throw new Error('none'); }});
"""


def test_without_a_storage_nothing_is_missing_but_memory(site, browser):
    """Some browsers keep nothing for pages from a folder."""
    told = {"source": NO_STORAGE}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", told)
    try:
        browser.get((site / "03_grpo.html").as_uri())
        browser.execute_script("document.getElementById('the-code').scrollIntoView()")
        wait(lambda: marked(browser) == ["03 · GRPO", "The code"], "the section")
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


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


def test_every_page_says_where_it_comes_from_and_where_to_report_an_error(site):
    for path in site.glob("*.html"):
        if 'class="foot"' not in text(site, path.stem):
            assert path.stem.startswith("slides"), path.stem
            continue
        foot = text(site, path.stem).rpartition('<footer class="foot">')[2]
        assert "code-LICENSE.html" in foot and "after.html#error" in foot
        assert refimpl.__version__ in foot
        notebook = FOLDER / f"{path.stem}.ipynb"
        assert (f"notebooks/{notebook.name}" in foot) == notebook.exists(), path.stem


def test_what_is_typed_is_text(site, browser):
    assert type_in(site, browser, "<img src=x onerror=window.hit=1>")
    hit = "return window.hit || document.querySelectorAll('#results img').length"
    assert browser.execute_script(hit) == 0


UNFOLDED = """
    const done = arguments[0], frame = requestAnimationFrame;
    document.querySelectorAll('main details').forEach(one => one.open = true);
    frame(() => frame(() => frame(done)));
"""
PHONE = """
    const wrong = [], wide = one => one.scrollWidth > one.clientWidth + 2;
    const all = (within, what) => [...within.querySelectorAll(what)];
    const style = (one, what) => getComputedStyle(one)[what];
    const goesOn = one => style(one, 'backgroundAttachment').includes('local');
    for (const image of all(document, 'main figure img, main p > img'))
        if (!image.closest('.explorer, a.enlarge')) wrong.push(['no tap', image.src]);
    for (const table of all(document, '.table').filter(wide)) {
        const name = table.innerText.slice(0, 60);
        const message = table.querySelector('.message');
        if (!goesOn(table) || !table.matches('[data-more]'))
            wrong.push(['no sign', name]);
        if (style(table.querySelector('tbody tr > *'), 'position') !== 'sticky')
            wrong.push(['its first column leaves', name]);
        if (message?.getBoundingClientRect().right > innerWidth)
            wrong.push(['its message is not in sight', name]);
    }
    for (const formula of all(document, '.math').filter(wide)) {
        const parts = all(formula, ':scope > math');
        const fits = one => one.getBoundingClientRect().width <= formula.clientWidth;
        if (!goesOn(formula) || parts.every(fits))
            wrong.push(['a formula is cut', formula.textContent]);
    }
    return wrong;
"""
VERDICTS = "return document.querySelectorAll('.table .message').length"
PLAYED = """
    const figures = [...document.querySelectorAll('figure.explorer')];
    return figures.every(one => one.querySelector('svg'));
"""
EXPLORERS = """
    const wrong = [];
    for (const figure of document.querySelectorAll('figure.explorer')) {
        const drawing = figure.querySelector('.explorer-picture > svg');
        const picture = drawing.parentElement;
        const width = parseFloat(picture.style.maxWidth), id = figure.dataset.explorer;
        if (10 * 110 / 72 * drawing.getBoundingClientRect().width / width < 8.95)
            wrong.push([id, 'its letters are too small']);
        if (picture.scrollWidth > picture.clientWidth)
            wrong.push([id, 'a panel is wider than the screen']);
        const controls = [...figure.querySelectorAll('input[type=range], select')];
        const title = figure.querySelector('.explorer-title');
        const fields = figure.querySelector('fieldset');
        const top = () => fields.getBoundingClientRect().top;
        figure.querySelector('input[type=radio]')?.click();
        fields.scrollIntoView({block: 'end'});
        const at_first = top();
        explorers[id].set({});
        if (Math.abs(top() - at_first) > 1)
            wrong.push([id, 'an answer moves the sliders away']);
        const header = document.querySelector('header').getBoundingClientRect();
        const view = picture.parentElement;
        const high = view.offsetHeight + fields.offsetHeight + 200; // and words between
        const stays = getComputedStyle(view).position === 'sticky';
        if (stays && high < innerHeight - header.height)
            wrong.push([id, 'its picture covers sliders that have room below']);
        for (const part of [0, 1 / 3, 2 / 3, 1]) {
            for (const one of controls) {
                const last = one.max ? Number(one.max) : one.options.length - 1;
                one.value = Math.round(part * last);
                one.dispatchEvent(new Event(one.max ? 'input' : 'change'));
            }
            explorers[id].draw();
            if (!title.innerText.trim() || title.scrollWidth > title.clientWidth ||
                title.getBoundingClientRect().right > innerWidth)
                wrong.push([id, part, 'its title is cut', title.innerText]);
        }
        for (const name of ['.explorer-prediction', '.explorer-strip']) {
            const one = figure.querySelector(name);
            if (!one.innerText) continue; // SAPO's runs are in the picture
            one.scrollIntoView({block: 'end'});
            const at = one.getBoundingClientRect();
            const seen = document.elementFromPoint(at.left + 20, at.top + 10);
            if (!one.contains(seen)) wrong.push([id, name, 'is covered']);
        }
        for (const control of [controls[0], controls.at(-1)]) {
            control.scrollIntoView({block: 'end'});
            const at = control.getBoundingClientRect();
            const box = picture.getBoundingClientRect();
            if (box.top < header.bottom - 1 || box.bottom > at.top)
                wrong.push([id, control.id, 'moves an unseen picture']);
        }
    }
    return wrong;
"""


def test_what_a_chapter_shows_can_be_read_on_a_phone(site, browser):
    """Pictures grow by a tap; what is wider than the screen says so, keeps its rows'
    names and its verdict in sight; a control and its picture are seen together, titles
    are whole at every stop, and neither question nor strip is covered."""
    wrong, verdicts = [], 0
    pages = [path.stem for path in NOTEBOOKS]
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    for name in [*pages, "methods", "flags", "cheat_sheet", "ledger", "notation"]:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get((site / f"{name}.html").as_uri())
        wait(lambda: browser.execute_script(PLAYED), "the explorers")
        browser.execute_async_script(UNFOLDED)
        for script in (PHONE, EXPLORERS):
            wrong += [(name, *one) for one in browser.execute_script(script)]
        verdicts += browser.execute_script(VERDICTS)
    assert verdicts > 50
    assert wrong == []


LINES = """
    const lines = [];
    for (const one of document.querySelectorAll('main > :is(p, ul, ol)')) {
        if (one.querySelector('math, img')) continue;
        const high = parseFloat(getComputedStyle(one).lineHeight);
        const rows = one.getBoundingClientRect().height / high;
        if (one.matches('p') && rows > 2.5) lines.push(one.innerText.length / rows);
    }
    return lines;
"""


def test_a_line_of_prose_has_at_most_75_letters(site, browser):
    ask(browser, 1440, "")
    for name in ("00_start_here", "03_grpo", "12_claims"):
        browser.get((site / f"{name}.html").as_uri())
        lines = browser.execute_script(LINES)
        assert len(lines) > 5 and max(lines) <= 75, (name, max(lines))
