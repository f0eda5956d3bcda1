"""Explorers without a kernel: the committed tables are what the moves draw, and a
browser draws what the tables say."""

import html
import itertools
import json
import re
import shutil
import zlib
from base64 import b64encode

import numpy as np
import pytest

from course.kit import explorer
from tests.course.test_explorer import seesaw
from tests.tools.browser import MISSING, chromium, wait
from tests.tools.execute import NOTEBOOKS, TABLES
from tests.tools.pages import cells, source
from tests.tools.sliders import explorers
from web import tables
from web.drawing import background, drawn, in_points
from web.page import PLAYER

pytestmark = pytest.mark.ci
BUNDLES = {path.stem: json.loads(path.read_text()) for path in TABLES.glob("*.json")}
HELD = {name: tables.unpacked(bundle) for name, bundle in BUNDLES.items()}
UNTRAINED = ("03", "04", "05", "08", "09", "11", "13b", "14", "15", "16", "17", "tour")
"""Chapters whose explorers need no run."""
NEAR = 0.3  # points: other processors


def places(bundle: dict) -> list[list[int]]:
    """Stops of all controls: of each the first, the last and one in the middle."""
    found = []
    for i, control in enumerate(bundle["controls"]):
        last = len(control["stops"]) - 1
        for stop in {0, last // 2, last}:
            start = [c["start"] for c in bundle["controls"]]
            found.append([*start[:i], stop, *start[i + 1 :]])
    return found


def chosen(bundle: dict, stops: list[int]) -> dict:
    return {c["name"]: c["stops"][i] for c, i in zip(bundle["controls"], stops)}


def words(svg: str) -> list[str]:
    return [html.unescape(one) for one in re.findall('data-said="([^"]*)"', svg)]


def boxes(svg: str) -> np.ndarray:
    """Of each path its ends; of each marker and text its place."""
    found = []
    for path in re.findall(' d="M([^"]*)"', svg):
        x, y = np.array(re.findall(r"-?[\d.]+", path), float).reshape(-1, 2).T
        found.append([x.min(), y.min(), x.max(), y.max()])
    for place in re.findall(r'x="(-?[\d.]+)" y="(-?[\d.]+)"', svg):
        found.append([float(one) for one in place * 2])
    return np.clip(np.array(found).reshape(-1, 4), -1000, 1000)


def at(name: str, stops: list[int]) -> list[str]:
    """The drawings of all artists."""
    held = HELD[name]["artists"]
    return [tables.state(one, stops, BUNDLES[name]) for one in held]


@pytest.mark.parametrize("chapter", UNTRAINED)
def test_committed_tables_are_what_the_moves_draw(chapter):
    (path,) = NOTEBOOKS.glob(f"{chapter}*.ipynb")
    for name, play in explorers(path).items():
        with in_points(play.figure):
            background(play.figure, [*itertools.chain(*play.moved)])
            for stops in places(BUNDLES[name]):
                check(play, name, stops)


def check(play: explorer.Explorer, name: str, stops: list[int]) -> None:
    values = chosen(BUNDLES[name], stops)
    moved = [*itertools.chain(*(explorer.call(move, values) for move in play.moves))]
    moved.sort(key=lambda one: one.get_zorder())
    for ours, one in zip(at(name, stops), moved, strict=True):
        theirs = drawn(one, play.figure)
        assert words(ours) == words(theirs), (name, stops)
        ends = boxes(ours), boxes(theirs)
        assert np.allclose(*ends, rtol=0, atol=NEAR), (name, stops)
    strip = tables.state(HELD[name]["strip"], stops, BUNDLES[name])
    assert strip == play.outcome(**values)


def test_a_move_is_tabulated_over_the_controls_that_it_names():
    """A line over a and b, and a title over a alone: 5 stops, 4 stops."""
    bundle = tables.tables(seesaw(["line", "title"]))
    line, title = tables.unpacked(bundle)["artists"]
    assert (line["over"], title["over"]) == ([0, 1], [0])
    assert (len(line["at"]), len(title["at"])) == (20, 5)
    titles = [words(tables.state(title, [i, 2], bundle)) for i in range(5)]
    assert titles == [["0.0"], ["0.5"], ["1.0"], ["1.5"], ["2.0"]]
    (flat, steep) = (boxes(tables.state(line, [i, 2], bundle))[0] for i in (0, 4))
    assert flat[0] == steep[0] and flat[2] == steep[2], "b is the same"
    assert flat[1] > steep[1] and flat[3] == steep[3], "it rises from the same corner"


def test_a_presets_stop_stays_however_few_are_left():
    control = tables.Control("n", explorer.slider("n", 3, 0, 20, 1), [{"n": 7}])
    assert control.thin() and control.thin()
    kept = [control.values[i] for i in control.stops]
    assert {0, 3, 7, 20} < {*kept} and len(kept) < 12


def test_what_changes_and_is_not_returned_is_refused():
    with pytest.raises(ValueError, match="a move changes what it does not return"):
        tables.tables(seesaw(["title"]))


def shown(cell: dict) -> list[str]:
    """The tables that a cell's outputs name, each beside a picture for GitHub."""
    every = [one.get("data", {}) for one in cell.get("outputs", ())]
    assert all("image/png" in data for data in every if explorer.STORED in data)
    return [data[explorer.STORED]["table"] for data in every if explorer.STORED in data]


def test_every_table_is_named_by_an_output_that_also_has_a_picture():
    every = [cell for path in NOTEBOOKS.glob("*.ipynb") for cell in cells(path)]
    named = {table for cell in every for table in shown(cell)}
    assert named == BUNDLES.keys()


def links(path) -> list[tuple[str, dict]]:
    """Each value in the text that sets sliders, with the explorer that it sets."""
    found, waiting = [], []
    for cell in cells(path):
        waiting += re.findall(r'<a data-set="([^"]+)">', source(cell))
        for table in shown(cell):
            found += [(one, BUNDLES[table]) for one in waiting]
            waiting = []
    assert not waiting, "no explorer comes after them"
    return found


def test_a_value_in_the_text_is_a_stop_of_the_next_explorer():
    count = 0
    for path in NOTEBOOKS.glob("*.ipynb"):
        for said, bundle in links(path):
            labels = {c["name"]: c["labels"] for c in bundle["controls"]}
            for one in said.split(";"):
                name, _, stop = one.strip().partition("=")
                assert stop in labels.get(name, ()), (path.stem, one)
            count += 1
    assert count > 20


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A page from the disk with all explorers on it."""
    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(PLAYER, folder, dirs_exist_ok=True)
    page = '<!doctype html><meta charset="utf-8">'
    for name in BUNDLES:
        page += f'<figure class="explorer" data-explorer="{name}"><img></figure>'
    page += '<script defer src="player.js"></script>'
    for name, bundle in BUNDLES.items():
        code = f'explorer("{name}", {json.dumps(bundle)});'
        (folder / f"{name}.js").write_text(code)
        page += f'<script defer src="{name}.js"></script>'
    (folder / "page.html").write_text(page)
    with chromium(1000, 800) as driver:
        driver.get((folder / "page.html").as_uri())
        count = "return Object.keys(window.explorers || {}).length"
        wait(lambda: driver.execute_script(count) == len(BUNDLES), "all explorers")
        yield driver


SET = """const [name, chosen, right] = arguments;
    window.explorers[name].set(chosen);
    window.explorers[name].draw();
    const { artists, ...said } = window.explorers[name].state();
    const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
    const written = (one) => ((layer.innerHTML = one), layer.innerHTML);
    const wrong = artists.filter((one, i) => one !== written(right[i]));
    return [artists.length, wrong, said.strip, said.title];"""


@pytest.mark.parametrize("name", sorted(BUNDLES))
def test_the_page_draws_what_the_tables_say(browser, name):
    bundle, held = BUNDLES[name], HELD[name]
    names = [c["name"] for c in bundle["controls"]]
    for stops in places(bundle):
        right = at(name, stops)
        chosen = dict(zip(names, stops))
        count, wrong, *said = browser.execute_script(SET, name, chosen, right)
        assert (count, wrong) == (len(right), [])
        words = [tables.state(held[one], stops, bundle) for one in ("strip", "title")]
        assert [one.replace("\u00a0", " ") for one in said] == words


HOSTILE = """
<script>window.reached = 1</script><g onclick="reached = 1" class="x" id="y">
<image href="x" onerror="reached = 1"/><set onbegin="window.reached = 1"/>
<foreignObject><iframe srcdoc="<script>parent.reached = 1</script>"></iframe>
</foreignObject>
<a xlink:href="javascript:reached = 1"><text style="fill: url(//x)">a</text></a>
<use xlink:href="x.svg#y"/><rect style="fill: u\\72l(//x)" clip-path="url(//x#y)"/></g>
</svg><img src="x" onerror="window.reached = 1"><style>* { display: none }</style>"""
PLAY = """const [bundle, done] = arguments;
    const still = Object.assign(new Image(), {alt: "still"});
    const figure = document.body.appendChild(document.createElement("figure"));
    figure.append(still);
    explorer("hostile", bundle, figure).then(() => setTimeout(() => done([
        window.reached ?? 0, still.hidden, figure.lastChild.textContent,
        [...figure.querySelectorAll(".explorer-picture defs *")].map(one =>
            one.tagName + [...one.attributes].map(a => " " + a.name).join("")),
        figure.querySelector("label")?.textContent]), 500));"""


def test_a_hostile_table_reaches_nothing(browser):
    """Its drawings lose all that could run or load; its words are words."""
    bundle = tables.tables(seesaw(["line", "title"]))
    words = {"over": [], "at": [], "states": [HOSTILE]}
    held = {"background": HOSTILE, "artists": [words], "strip": words, "title": words}
    data = b64encode(zlib.compress(json.dumps(held).encode())).decode()
    label = {"label": HOSTILE, "labels": [HOSTILE] * 5}
    controls = [bundle["controls"][0] | label]
    hostile = bundle | {"data": data, "controls": controls, "alt": HOSTILE}
    reached, hidden, _, left, said = browser.execute_async_script(PLAY, hostile)
    assert (reached, hidden, said) == (0, True, HOSTILE)
    assert set(left) == {"g", "g id", "g id transform", "use", "rect"}
