"""Explorers without a kernel: the committed tables are what `update` draws, and a
browser draws what the tables say."""

import json
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.artist import Artist

from course.kit import explorer, stakes
from course.kit.plots import primitives
from course.sapo import explorer as sapo_explorer
from tests.course.test_explorer import seesaw
from tests.tools.execute import NOTEBOOKS, TABLES
from tests.tools.sliders import explorers
from web import tables
from web.browser import MISSING, chromium, wait
from web.pieces import pieces
from web.recorder import Recorder

BUNDLES = {path.stem: json.loads(path.read_text()) for path in TABLES.glob("*.json")}
UNTRAINED = ("03", "04", "05", "08", "09", "11", "13", "14", "15", "16", "17")
"""Chapters whose explorers need no run."""
DRAWN = sorted(name for name, bundle in BUNDLES.items() if "model" not in bundle)
drawn_from_tables = pytest.mark.parametrize("name", DRAWN)
NEAR = 0.3  # pixels: other processors


def places(bundle: dict) -> list[list[int]]:
    """Stops of all controls: of each the first, the last and two in the middle."""
    found = []
    for i, control in enumerate(bundle["controls"]):
        last = len(control["stops"]) - 1
        for stop in {0, last // 3, 2 * last // 3, last}:
            start = [c["start"] for c in bundle["controls"]]
            found.append([*start[:i], stop, *start[i + 1 :]])
    return found


def chosen(bundle: dict, stops: list[int]) -> dict:
    return {c["name"]: c["stops"][i] for c, i in zip(bundle["controls"], stops)}


def drawn(play: explorer.Explorer, values: dict) -> list[dict]:
    recorder = Recorder(play.canvas)
    moved = sorted(play.update(**values), key=Artist.get_zorder)
    strip = [tables.strip(play.outcome(**values))] if play.stakes else []
    return [recorder.state(artist) for artist in moved] + strip


def held(bundle: dict, stops: list[int]) -> list[dict]:
    """What the tables have there: pixels, and texts alone."""
    reader, found = tables.Reader(bundle), []
    for i in range(len(bundle["artists"])):
        x, y, look, text = (reader.state(4 * i + c, stops) for c in range(4))
        pixels = [np.frombuffer(z, "<i2") for z in (x, y)]
        x, y = (np.where(z == tables.GAP, np.nan, z / tables.SCALE) for z in pixels)
        found.append({"x": x, "y": y, "look": look, "text": text})
    return found


def words(text: str) -> list[str]:
    return [one for one, _ in json.loads(text)]


def near(ours, theirs, most: float) -> bool:
    ends = [np.clip(np.asarray(z, float), -1638, 1638) for z in (ours, theirs)]
    return np.allclose(*ends, rtol=0, atol=most, equal_nan=True)


@pytest.mark.parametrize("chapter", UNTRAINED)
def test_committed_tables_are_what_update_draws(chapter):
    (path,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    for i, play in enumerate(explorers(path).values(), 1):
        bundle = BUNDLES[f"{path.stem}_{i}"]
        for stops in places(bundle):
            pairs = zip(held(bundle, stops), drawn(play, chosen(bundle, stops)))
            for ours, right in pairs:
                assert near(ours["x"], right["x"], NEAR), (path.stem, i, stops)
                assert near(ours["y"], right["y"], NEAR), (path.stem, i, stops)
                assert words(ours["text"]) == words(right["text"])
                assert json.loads(ours["look"]) == json.loads(right["look"])


def test_no_file_is_heavier_than_a_page_can_carry():
    sizes = [path.stat().st_size for path in TABLES.glob("*.json")]
    assert max(sizes) <= 300_000 and sum(sizes) <= 4_000_000


def test_what_changes_and_is_not_returned_is_refused():
    said = r"Line2D of the panel '\d.\d' changes, and update does not return it"
    with pytest.raises(ValueError, match=said):
        tables.tables(seesaw(["title"]))


def test_an_axis_label_may_not_move():
    """matplotlib draws it into the background, and the page its number over it."""
    figure, axis = plt.subplots(figsize=(2, 2))
    (line,), label = axis.plot([0, 1], [0, 1]), axis.set_xlabel("100 %")

    def update(a):
        line.set_ydata([0, a])
        label.set_text(f"{a} %")
        return [line, label]

    play = explorer.Explorer(figure, update, {"a": explorer.slider("a", 0, 0, 3, 1)})
    with pytest.raises(ValueError, match="moves an axis label"):
        tables.tables(play)


def test_the_strip_is_tabulated_and_the_prediction_with_its_answers():
    guess = stakes.Prediction("Which way?", ("up", "down"), "up", "The slope is 1.")
    moved = {"returns": ["line", "title"], "prediction": guess}
    bundle = tables.tables(seesaw(stakes=lambda a, b: f"run {b // 2}", **moved))
    said = [held(bundle, [0, stop])[-1]["text"] for stop in range(4)]
    assert list(map(words, said)) == [["run 0"], ["run 0"], ["run 1"], ["run 1"]]
    assert bundle["prediction"]["said"]["down"] == "No: up. The slope is 1."


def test_a_picture_comes_in_pieces_and_a_panel_without_numbers_borrows_them():
    """Two panels over one y-axis; the legend has the title, which a slider moves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    (line,), _ = left.plot([0, 1], [0, 1], label="a"), left.plot([1], [1], label="b")
    right.plot([0, 1], [1, 0])
    primitives.heading(figure, left, "slope 1")

    def update(a):
        line.set_ydata([0, a])
        return [line, primitives.say(figure, f"slope {a}")]

    play = explorer.Explorer(figure, update, {"a": explorer.slider("a", 1, 0, 3, 1)})
    made = tables.tables(play)
    phone = made["phone"]
    texts = [words(one["text"]) for one in held(made, [3])]
    assert "slope 3" in texts[phone["title"]]
    *entries, first, second = phone["pieces"]
    assert len(entries) == 2 and entries[0][2] < entries[1][0]
    assert phone["top"] <= entries[0][1] + 3 < entries[0][3] <= first[1] + 3
    assert len(first) == 4 and first[2] < second[0]
    assert second[4] == first[0] < second[5] <= round(left.bbox.x0)
    assert second[6] < second[3] - 15  # without the numbers of the x-axis
    figure.text(0, 0, "more words"), figure.text(0.5, 0, "than a footer")
    assert pieces(play)["pieces"] == [[0, phone["top"], *figure.bbox.size.astype(int)]]


def test_every_text_of_every_explorer_is_within_the_picture():
    """Of each control at its first, last and two middle stops: no title is cut."""
    cut = []
    for name in DRAWN:
        bundle = BUNDLES[name]
        assert bundle["phone"]["title"] != "", name
        for stops in places(bundle):
            for one in held(bundle, stops):
                cut += [(name, stops, text) for text in outside(one, bundle["width"])]
    assert cut == []


def outside(one: dict, width: int) -> list[str]:
    """Texts of an artist that do not end inside a picture so wide."""
    at, found, texts = 0, [], iter(json.loads(one["text"]))
    for look in json.loads(one["look"]):
        said, wide = next(texts) if "size" in look else ("", 0)
        left = one["x"][at] - {"center": wide / 2, "right": wide}.get(
            look.get("align"), 0
        )
        if said.strip() and not look.get("angle"):
            found += [said] if left < -1 or left + wide > width + 1 else []
        at += look["n"]
    return found


def links(path) -> list[tuple[str, dict]]:
    """Each value in the text that sets sliders, with the explorer that it sets."""
    found, waiting, number = [], [], 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        waiting += re.findall(r'<a data-set="([^"]+)">', "".join(cell["source"]))
        shown = json.dumps([o.get("data", {}) for o in cell.get("outputs", ())])
        if '"Explorer(' in shown:
            number += 1
            found += [(one, BUNDLES[f"{path.stem}_{number}"]) for one in waiting]
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


def test_every_explorer_has_a_strip_or_shows_its_runs_and_asks_first():
    for name, bundle in BUNDLES.items():
        kinds = [one["kind"] for one in bundle["artists"]]
        assert kinds[-1] == "Strip" or "model" in bundle, name
        assert len(bundle["prediction"]["said"]) > 1, name


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A page from the disk with all explorers on it."""
    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(NOTEBOOKS / "web" / "assets", folder / "assets")
    page = '<!doctype html><meta charset="utf-8">'
    for name in BUNDLES:
        page += f'<figure class="explorer" data-explorer="{name}"><img></figure>'
    page += '<script defer src="assets/player.js"></script>'
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


SET = """const [name, chosen] = arguments;
    window.explorers[name].set(chosen);
    window.explorers[name].draw();
    return JSON.stringify(window.explorers[name].state(),
      (key, z) => (ArrayBuffer.isView(z) ? [...z] : z));"""


def shown(browser, name: str, stops: list[int]) -> dict:
    names = [c["name"] for c in BUNDLES[name]["controls"]]
    return json.loads(browser.execute_script(SET, name, dict(zip(names, stops))))


CALLS = """const [name, chosen] = arguments;
    const kind = CanvasRenderingContext2D.prototype, kept = {}, calls = [];
    for (const call of ["moveTo", "lineTo", "fill", "stroke", "fillText"]) {
      kept[call] = kind[call];
      kind[call] = function (...given) {
        const { a, e, f } = this.getTransform();
        if (call === "fillText") calls.push(["text", e, f, a, given[0]]);
        else if (given[0] instanceof Path2D) calls.push(["mark", e, f, a]);
        else if (call.endsWith("To")) calls.push(["to", ...given]);
        return kept[call].apply(this, given);
      };
    }
    window.explorers[name].set(chosen);
    window.explorers[name].draw();
    Object.assign(kind, kept);
    const canvas = document.querySelector(`figure[data-explorer="${name}"] canvas`);
    return JSON.stringify([canvas.width, calls]);"""


def traced(codes, at: int) -> list[int]:
    """The points that a path's moves (1) and lines (2) go to."""
    found = []
    for code, count in codes:
        found += range(at, at + count) if code in (1, 2) else ()
        at += count
    return found


@drawn_from_tables
def test_every_point_marker_and_text_reaches_the_canvas(browser, name):
    """A line point by point, a marker at each of its places, words at theirs."""
    bundle = BUNDLES[name]
    stops = [c["start"] for c in bundle["controls"]]
    chosen = dict(zip([c["name"] for c in bundle["controls"]], stops))
    width, calls = json.loads(browser.execute_script(CALLS, name, chosen))
    scale = width / bundle["width"]
    points, marks, texts = [], [], []
    for one in held(bundle, stops):
        x, y, at = one["x"], one["y"], 0
        said = iter(words(one["text"]))
        for look in json.loads(one["look"]):
            there = range(at, at + look["n"])
            seen = [i for i in there if not np.isnan(x[i] + y[i])]
            if look.get("size"):
                texts.append((next(said), scale * x[at], scale * y[at]))
            elif look.get("mark"):
                painted = sum(bool(look.get(part)) for part in ("fill", "stroke"))
                places = [(scale * x[i], scale * y[i]) for i in seen]
                marks += [place for place in places for _ in range(painted)]
            else:
                if look.get("codes"):
                    seen = traced(look["codes"], at)
                points += [(x[i], y[i]) for i in seen]
            at += look["n"]
    drawn = {kind: [c[1:3] for c in calls if c[0] == kind] for kind in ("to", "mark")}
    assert len(drawn["to"]) == len(points) and near(drawn["to"], points, 1e-3)
    assert len(drawn["mark"]) == len(marks) and near(drawn["mark"], marks, 0.02)
    said = [(c[4], c[1], c[2]) for c in calls if c[0] == "text"]
    assert [one[0] for one in said] == [one[0] for one in texts]
    assert near([one[1:] for one in said], [one[1:] for one in texts], 0.02)


def with_gaps(values) -> list[float]:
    return [np.nan if z is None else z for z in values]


@drawn_from_tables
def test_the_page_draws_what_the_tables_say(browser, name):
    for stops in places(BUNDLES[name]):
        state = shown(browser, name, stops)["artists"]
        for ours, right in zip(state, held(BUNDLES[name], stops), strict=True):
            assert near(with_gaps(ours["x"]), right["x"], 1e-3)
            assert near(with_gaps(ours["y"]), right["y"], 1e-3)
            assert ours["text"] == words(right["text"])


def test_the_page_computes_sapos_gate_as_the_loss_does(browser):
    play, bundle = sapo_explorer.sapo_explorer(), BUNDLES["10_sapo_1"]
    presets = [[*p["set"].values(), k] for p in bundle["presets"] for k in (3, 16)]
    for stops in places(bundle) + presets:
        values, state = chosen(bundle, stops), shown(browser, "10_sapo_1", stops)
        gate = sapo_explorer.Gate(values["gate"], values["tau_pos"], values["tau_neg"])
        method, settings = gate.method()
        every, k = play.picture.tokens, values["k"]
        g = [tokens.gates(method, k, **settings)[1] for tokens in every]
        for ours, right in zip(state["g"], g):
            assert near(ours, right, 1e-6)
        shares = sapo_explorer.kept(every, k, g)
        assert near(with_gaps(state["shares"]), shares, 1e-6)
        for ours, one in zip(state["artists"], drawn(play, values), strict=True):
            if re.search("codes.*codes.*codes", one["look"]):  # tokens: a path each
                continue
            assert near(with_gaps(ours["x"]), one["x"], NEAR), stops
            if not np.isnan(one["x"]).any():  # else there is no line
                assert near(with_gaps(ours["y"]), one["y"], NEAR), stops
            assert ours["text"] == words(one["text"])
