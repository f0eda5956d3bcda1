"""Sliders, driven in the kernel: the image is what the moves make of their values."""

import io
import math
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from course.kit import explorer
from course.kit.plots.words import title
from course.sapo import explorer as sapo_explorer
from refimpl import History
from refimpl.curves import curve
from refimpl.gate import from_gate


def seesaw(returns=("line",), **more) -> explorer.Explorer:
    """A line from (0, 0) to (b, a), under a title, on 200 × 200 pixels."""
    figure, axis = plt.subplots(figsize=(2, 2), dpi=100)
    (line,) = axis.plot([0, 1], [0, 1])
    axis.set(xlim=(0, 3), ylim=(0, 3), title="0.0")
    artists = {"line": line, "title": axis.title, "axis": axis}

    def slope(a, b):
        line.set_data([0, b], [0, a])
        return [artists[name] for name in returns if name != "title"]

    def title(a):
        axis.set_title(f"{a:.1f}")
        return [axis.title] if "title" in returns else []

    controls = {
        "a": explorer.slider("a", 1.0, 0.0, 2.0, 0.5),
        "b": explorer.slider("b", 1, 0, 3, 1),
    }
    return explorer.Explorer(figure, [slope, title], controls, **more)


def pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)).convert("RGB"))


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
    play.buttons["steep"].click()
    assert play.values == {"a": 2.0, "b": 3} and len(drawn) == 1
    play.controls["a"].value = 1.0
    assert len(drawn) == 2, "the controls are still listened to"


def test_the_gate_that_trains_is_the_gate_that_is_drawn():
    gate = sapo_explorer.Gate("one-sided", 3.0, 7.0)
    method, settings = gate.method()
    ratio = torch.tensor([0.5, 1.5]).double()
    soft = [1 / math.cosh(tau * 0.5 / 2) ** 2 for tau in gate.taus]
    for sign, gates in ((1, [1, soft[0]]), (-1, [soft[1], 1])):
        drawn = curve(method, sign, ratio, **settings).gate.tolist()
        assert drawn == pytest.approx(gates)


def bell(r, advantages):
    return torch.exp(-(((r - 1) / 0.3) ** 2))


@pytest.mark.parametrize("given", [bell, from_gate(bell, "bell")])
def test_a_gate_of_ones_own_is_drawn_beside_the_others_and_trains(given, monkeypatch):
    stored = 5, [[0.5] * 30] * 3  # to read all of them takes seconds
    monkeypatch.setattr(sapo_explorer, "rewards", lambda *_: stored)
    play = sapo_explorer.sapo_explorer(given)
    assert play.values["gate"] == "bell" and play.controls["tau_pos"].disabled
    for column in play.picture.columns:
        expected = bell(sapo_explorer.GRID, None).numpy()
        assert column["line"].get_ydata() == pytest.approx(expected)
        assert len(column["line"].axes.lines) > 3, "GRPO's and SAPO's stay"
    assert title(play.figure).startswith("bell keeps")
    asked = []

    def train(method, *, config, hooks, **_):
        asked.append((method, config))
        history = History("sapo", [{"reward": 0.5}])
        hooks[0](SimpleNamespace(history=history), 0)
        return history

    monkeypatch.setattr(sapo_explorer, "train", train)
    play.train.click()
    ((method, config),) = asked
    assert method.name == "bell" and not config.hyperparameters
    assert play.controls["tau_pos"].disabled, "it has no temperature"
    play.buttons["one-sided 8.8"].click()
    assert not play.controls["tau_pos"].disabled
    assert title(play.figure).startswith("one-sided 8.8 keeps")
    for side in ("tau_pos", "tau_neg"):  # whose stored runs have another rate
        play.controls[side].value = 17.6
    play.train.click()
    assert [config.learning_rate for _, config in asked] == [6e-4, 4e-4]
    drawn = [len(line.get_xdata()) for line in play.picture.mine]
    assert drawn[0] == 1 and not any(drawn[1:]), "a run beside its own rate alone"
