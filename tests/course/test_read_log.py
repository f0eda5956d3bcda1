"""The page that reads a dropped log says what `read-log` says, without a network."""

import json
import math
import random
from pathlib import Path

import pytest

from refimpl.interop import logs, symptoms
from refimpl.validation import UserError
from tests.course.in_browser import IN_A_BROWSER, ask, grave
from web import build, read_log
from web.browser import wait
from web.page import NOTEBOOKS, Page

LOGS = sorted((Path(__file__).parents[1] / "evidence" / "logs").iterdir())
CHAPTERS = [Page(path.stem + ".html", "", "") for path in NOTEBOOKS.glob("*.ipynb")]
pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def browser(browser, tmp_path_factory):
    """The page by itself, opened from its folder."""
    folder = tmp_path_factory.mktemp("web") / "site"
    made = read_log.page("Use it", CHAPTERS)
    build.write(build.render(build.Site([made, *build.guide()])), folder)
    browser.get((folder / "read_log.html").as_uri())
    return browser


SAID = "return [...document.querySelectorAll('#report p')].map(one => one.textContent)"
DROP = """
    const [files, done] = arguments, said = [];
    const next = () => {
        if (!files.length) return done(said);
        const [name, text] = files.shift(), dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([text], name));
        document.getElementById('report')?.remove();
        document.dispatchEvent(new DragEvent('drop', {dataTransfer}));
        const look = () => {
            const report = [...document.querySelectorAll('#report p')];
            if (!report.length) return setTimeout(look, 1);
            said.push(report.map(one => one.textContent));
            next();
        };
        look();
    };
    next();
"""


def python(path: Path) -> list[str]:
    """What the command prints, with the file's name for its path."""
    try:
        text = symptoms.report(logs.read(path))
    except UserError as error:
        text = str(error)
    lines = text.replace(str(path), path.name).splitlines()
    return [" ".join(line.split()) for line in lines]


def dropped(browser, folder: Path, files: dict[str, str]) -> list[tuple]:
    """Files of these texts, of which page and command do not say the same."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8", newline="")
    said = browser.execute_async_script(DROP, [*files.items()])
    told = [python(folder / name) for name in files]
    return [pair for pair in zip(said, told, strict=True) if pair[0] != pair[1]]


FETCHED = "return performance.getEntriesByType('resource').map(one => one.name)"


def test_of_every_committed_log_the_page_says_what_the_command_says(browser):
    """Chosen as a file; every panel that has a line tells it; nothing is fetched."""
    before, fitting = browser.execute_script(FETCHED), 0
    for path in LOGS:
        browser.execute_script("document.getElementById('report')?.remove()")
        browser.find_element("id", "log").send_keys(str(path))
        said = wait(lambda: browser.execute_script(SAID), path.name)
        assert said == python(path)
        fitting += any("strength" in line for line in said)
        panels = browser.find_elements("css selector", ".panels figure")
        assert len(panels) == len(logs.DATA["panel"]) == 6
        known = logs.read(path)
        for panel, rule in zip(panels, logs.DATA["panel"]):
            names = [n for n in rule["left"] + rule.get("right", []) if known.seen(n)]
            told = panel.find_elements("css selector", "svg[role=img]")
            text = told[0].get_attribute("aria-label") if told else ""
            for name in names:
                assert f"{known.called[name]}: {known.seen(name)[0][1]:.3g} fir" in text
            assert rule["title"] in panel.text and bool(told) == bool(names)
    assert len(LOGS) == 23 and fitting >= 13
    assert browser.execute_script(FETCHED) == before
    assert all(name.startswith("file:") for name in before)
    assert browser.get_log("browser") == []


def test_what_is_no_log_gets_the_sentence_of_the_command(browser, tmp_path):
    files = {
        "empty": "",
        "prose.txt": 'Dear "diary",\n\ntoday, again, a run\n',
        "short.csv": "step,reward\n0,1\n1,1\n",
        "list.json": "[1, 2]",
        "cut.json": '{"log_history": [\n{"reward": 1.0, "st',
        "other.json": '{"log_history": [{"loss": NaN, "step": 1e400}, null]}',
        "<b>.csv": "\ufeffloss,grad_norm,__proto__\r\n1,2,3\r\n1,2,3,4\r\n",
    }
    assert dropped(browser, tmp_path, files) == []
    (tmp_path / "x.png").write_bytes(b"\x89PNG\xff")
    browser.find_element("id", "log").send_keys(str(tmp_path / "x.png"))
    wait(lambda: "x.png cannot be read" in browser.execute_script(SAID)[0])
    assert logs.EXPECTED in browser.execute_script(SAID)[0]


def column(dice: random.Random, rows: int) -> list:
    """Numbers that rise, fall, stay, jump, are equal, missing, or none."""
    base, slope = dice.choice([0, 0.004, 0.5, 3.0, -2.0]), dice.choice([0, 0.1, -0.3])
    noise, step = dice.choice([0, 0.01, 1.0]), dice.randrange(rows)
    x = [base + slope * i + noise * dice.gauss(0, 1) for i in range(rows)]
    x[step] = dice.choice([x[step], 20 * x[step], math.nan, math.inf, None, 1 / 8])
    return [v if v is None else round(v, dice.choice([1, 3, 12])) + 0 for v in x]


def random_log(dice: random.Random) -> str:
    """JSON lines, a state or a CSV, with a sample of the names that rules know."""
    known = {check["of"] for row in logs.DATA["row"] for check in row["checks"]}
    names = sorted(known | {"length/wrong", *logs.DATA["names"]})
    rows = dice.choice([4, 5, 16, 47])
    chosen = {name: column(dice, rows) for name in dice.sample(names, 14)}
    chosen |= {"reward": column(dice, rows)}
    lines = [dict(zip(chosen, cells)) for cells in zip(*chosen.values())]
    form = dice.choice(["lines", "state", "csv"])
    sign = dice.choice(",;\t")
    if form == "lines":
        lines = [{"step": 50 * i, "data": line} for i, line in enumerate(lines)]
        dice.shuffle(lines)
        return "\n".join(map(json.dumps, lines)) + '\n{"step": 9, "da'
    if form == "state":
        return json.dumps({"log_history": [*lines, {"train_runtime": 1.0}]})
    cells = [["" if x is None else f'"{x}"' for x in line.values()] for line in lines]
    return "\n".join(sign.join(row) for row in [[*chosen], *cells])


def test_of_random_logs_both_say_the_same(browser, tmp_path):
    """With ties of rounding, numbers that are none, and columns without any noise."""
    dice = random.Random(0)
    files = {f"{i}.log": random_log(dice) for i in range(200)}
    assert dropped(browser, tmp_path, files) == []
    named = [line for name in files for line in python(tmp_path / name)[1:]]
    missing = {
        row["symptom"]
        for row in logs.DATA["row"]
        if not any(f". {row['symptom']} (" in line for line in named)
    }
    assert missing == set() and sum("strength" in line for line in named) > 200


def test_the_example_is_read_on_a_phone_and_axe_finds_nothing_serious(browser):
    axe = pytest.importorskip("axe_core_python.selenium").Axe().axe_script
    ask(browser, 390, "")
    button = browser.find_element("id", "example")
    button.send_keys("\ue007")  # Enter
    assert browser.execute_script(SAID) == python(read_log.EXAMPLE)
    assert "hack.csv is read; " in browser.find_element("id", "heard").text
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= 390
    (link,) = browser.find_elements("css selector", "#report .part:nth-child(4) a")
    assert link.get_attribute("href").endswith("/00_start_here.html")
    browser.execute_script(axe)
    for theme in ("light", "dark"):
        browser.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
        answer = browser.execute_async_script(
            "axe.run(document.querySelector('main')).then(arguments[0])"
        )
        assert grave(answer) == []
