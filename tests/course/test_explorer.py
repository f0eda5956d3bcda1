"""Sliders, driven in the kernel: the image is what `update` makes of their values.

Where the suite runs the chapters, every explorer that is made there is asked whether
each of its controls moves the picture (`REFIMPL_CHECK_SLIDERS`, see `conftest.py`).
"""

import base64
import io

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from course import explorer
from course.plots import ppo, style
from course.plots.sapo_explorer import sapo_explorer


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    monkeypatch.delenv("REFIMPL_CHECK_SLIDERS", raising=False)


def seesaw(returns=("line",), presets=None, **more) -> explorer.Explorer:
    """A line from (0, 0) to (b, a), under a title, on 200 × 200 pixels."""
    figure, axis = plt.subplots(figsize=(2, 2), dpi=100)
    (line,) = axis.plot([0, 1], [0, 1])
    axis.set(xlim=(0, 3), ylim=(0, 3), title="0.0")
    artists = {"line": line, "title": axis.title, "axis": axis}

    def update(a, b, **_):
        line.set_data([0, b], [0, a])
        axis.set_title(f"{a:.1f}")
        return [artists[name] for name in returns]

    controls = {
        "a": explorer.slider("a", 1.0, 0.0, 2.0, 0.5),
        "b": explorer.slider("b", 1, 0, 3, 1),
    }
    return explorer.Explorer(figure, update, controls | more, presets)


def pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)).convert("RGB"))


def test_the_same_values_draw_the_same_picture():
    play = seesaw()
    before = play.image.value
    play.controls["b"].value = 3
    assert play.image.value != before
    play.controls["b"].value = 1
    assert play.image.value == before


@pytest.mark.parametrize(
    "returns", [("line", "title"), ("title", "line"), ("axis",), ("line",), ()]
)
def test_the_picture_is_that_of_a_figure_drawn_from_scratch(returns):
    """Also where `update` forgets to return what it moved: that is only slower."""
    play = seesaw(returns)
    play.controls["a"].value = 2.0
    for artist in play.figure.findobj():
        artist.set_animated(False)
    play.canvas.draw()
    whole = np.array(play.canvas.buffer_rgba())[..., :3]
    assert (pixels(play.image.value) != whole).any(-1).sum() <= 50


def test_a_preset_sets_several_controls_and_draws_once():
    play = seesaw(presets={"steep": {"a": 2.0, "b": 3}})
    drawn = []
    play.image.observe(drawn.append, names="value")
    row = play.children[0]
    row.children[0].click()
    assert play.values == {"a": 2.0, "b": 3} and len(drawn) == 1
    play.controls["a"].value = 1.0
    assert len(drawn) == 2, "the controls are still listened to"


def test_a_control_that_does_nothing_is_named_and_refused_under_test(monkeypatch):
    idle = {
        "c": explorer.slider("c", 0.0, 0.0, 1.0, 0.1),
        "d": explorer.choice("d", ["x", "y"], "x"),
        "e": explorer.stops("e", [1.0, 2.0, 4.0], 2.0),
    }
    play = seesaw(**idle)
    before = play.image.value
    assert play.idle() == ["c", "d", "e"] and seesaw().idle() == []
    assert play.moves("a", 2.0) and not play.moves("a", 1.0)
    assert play.image.value == before and play.values["a"] == 1, "all set back"
    monkeypatch.setenv("REFIMPL_CHECK_SLIDERS", "1")
    seesaw()
    with pytest.raises(ValueError, match="moves with c, d, e"):
        seesaw(**idle)


def test_a_number_in_a_title_is_not_a_movement():
    figure, axis = plt.subplots(figsize=(4, 4))
    controls = {"a": explorer.slider("a", 0.5, 0.4, 0.6, 0.1)}
    play = explorer.Explorer(
        figure, lambda a: [axis.set_title(f"a = {a:.2f}")], controls
    )
    assert play.idle() == ["a"]


def test_all_controls_follow_the_drag_and_stay_where_they_are_put():
    whole = explorer.slider("a", 5, 0, 10, 1)
    made = [whole, explorer.log_slider("a", 1.0, 0.1, 10.0)]
    made += [explorer.slider("a", 0.5, 0.0, 1.0, 0.1), explorer.stops("a", [1, 2], 2)]
    assert all(one.continuous_update for one in made)
    assert isinstance(whole, widgets.IntSlider)
    with pytest.raises(ValueError, match=r"β: 0.05 is not 0 plus steps of 0.02"):
        explorer.slider("β", 0.05, 0.0, 1.0, 0.02)  # the browser would move it


def test_the_saved_page_has_the_picture():
    play = seesaw()
    bundle = play._repr_mimebundle_()
    widget = "application/vnd.jupyter.widget-view+json"
    assert bundle.keys() == {"text/plain", "image/png", widget}
    saved = pixels(base64.b64decode(bundle["image/png"]))
    assert abs(saved.astype(int) - play.pixels()).max() < 32  # 256 colours
    assert bundle["text/plain"] == "Explorer(a, b)"


def test_the_clip_explorer_draws_the_bounds_that_act():
    count = len(plt.get_fignums())
    play = ppo.clip_explorer()
    assert len(plt.get_fignums()) == count, "closed after drawing"
    play.set(epsilon_low=0.4, epsilon_high=0.9, size=2.0)
    axes = play.figure.axes
    assert [axis.get_title() for axis in axes[:2]] == [
        "Â > 0: no gradient above 1.90",
        "Â < 0: no gradient below 0.60",
    ]
    for axis, bound in zip(axes, (1.9, 0.6, 1.9, 0.6)):
        unclipped, ours, *_, rule = axis.lines
        assert rule.get_xdata() == pytest.approx([bound, bound])
        assert unclipped.get_color() == style.COLOURS["reinforce"] != ours.get_color()
    objectives = [axis.lines[1].get_ydata() for axis in axes[:2]]
    assert objectives[0].max() == pytest.approx(1.9 * 2)
    assert objectives[1].max() == pytest.approx(-0.6 * 2)
    for axis, values in zip(axes, objectives):
        low, high = axis.get_ylim()
        assert low < values[len(values) // 2] < high, "in view"
    assert play.idle() == []


def test_sapos_explorer_counts_what_the_gates_keep_and_starts_in_the_open():
    play = sapo_explorer()
    upper, _, *signs = play.figure.axes
    published, mine = upper.lines[1], upper.lines[3]
    assert abs(published.get_ydata() - mine.get_ydata()).max() > 0.5, "not hidden"

    def shares(axis) -> list[int]:
        texts = [text.get_text() for text in axis.get_legend().get_texts()]
        return [int(text.split()[0].strip("\u2007")) for text in texts]

    play.children[0].children[0].click()
    assert play.values == {"tau_pos": 1.0, "tau_neg": 1.05, "gate": "SAPO", "k": 16}
    assert published.get_ydata() == pytest.approx(mine.get_ydata())
    for clip, published, mine in map(shares, signs):
        assert clip < published == mine
    play.set(k=0)
    assert [*map(shares, signs)] == [[100] * 3] * 2, "every ratio is 1"
