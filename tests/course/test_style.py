"""The palette: methods drawn together can be told apart, by anyone, on any printer.

Distances are CIELAB ΔE (1976). About 2 is the least that is seen of two patches; thin
lines need several times as much: 15 is roughly that of neighbouring colours in
matplotlib's own cycle as a deuteranope sees it. In greyscale nine methods share what
stands out from white; steps of 5 are then what there is, and dashes do the rest.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from course.kit.plots import primitives, style
from course.moe_and_rspo import figures as routers
from refimpl import ALGORITHMS

DEUTERANOPIA = np.array(  # Machado et al. 2009, severity 1, linear RGB
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
TO_XYZ = np.array(  # linear sRGB, D65
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
LEAST = {"deuteranopia": 18.0, "greyscale": 5.0, "as it is": 25.0}
"""Between two methods that some figure draws together."""
TOGETHER = (
    "reinforce ppo grpo",
    "reinforce grpo dr_grpo",
    "reinforce grpo gspo gspo_token",
    "grpo gspo gmpo rspo sapo",
    "reinforce grpo gspo dapo cispo gmpo sapo sapo_narrow one_sided",
    "reinforce grpo sapo sapo_narrow one_sided yours",
    "reinforce grpo cispo dppo_tv ipo glm5 vespo luspo minirl dro kimi",
    "dppo_tv dppo_kl",
)
LABELS = {"sapo_narrow": "sapo 8.8", "one_sided": "one-sided"}
PAIRS = {
    tuple(sorted(LABELS.get(name, name) for name in pair))
    for names in TOGETHER
    for pair in itertools.combinations(names.split(), 2)
}


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear sRGB; white is (100, 0, 0)."""
    xyz = (TO_XYZ @ np.clip(rgb, 0, 1)) / TO_XYZ.sum(1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


SEEN = {
    "as it is": lambda colour: lab(linear(colour)),
    "deuteranopia": lambda colour: lab(DEUTERANOPIA @ linear(colour)),
    "greyscale": lambda colour: lab(linear(colour)) * [1, 0, 0],
}


def distance(one, other, seen="as it is"):
    return float(np.linalg.norm(SEEN[seen](one) - SEEN[seen](other)))


@pytest.mark.parametrize("seen", SEEN)
def test_methods_drawn_together_are_told_apart(seen):
    apart = {pair: distance(*(style.look(n)[0] for n in pair), seen) for pair in PAIRS}
    worst = min(apart, key=apart.get)
    assert apart[worst] >= LEAST[seen], (worst, apart[worst])


@pytest.fixture
def unknown(monkeypatch):
    """More methods in the registry than there are free looks; nobody knows them."""
    names = [f"nobody_{n}" for n in range(len(style.NEXT) + 1)]
    for name in names:
        title = name.replace("_", "-").title()
        method = replace(ALGORITHMS["cispo"], name=name, title=title, parent="cispo")
        monkeypatch.setitem(ALGORITHMS, name, method)
    return names


def test_every_method_of_the_registry_has_a_look_and_no_two_the_same(unknown):
    looks = [style.look(name) for name in ALGORITHMS]
    assert len({colour for colour, _ in looks}) == len(ALGORITHMS)
    first = next(name for name in ALGORITHMS if name not in style.LOOKS)
    assert style.look(first) == style.NEXT[0], "the next free one"
    assert style.method("Nobody-3, K = 16") == unknown[3]
    assert style.looks_of(["GRPO", "Nobody-3"])[1] == style.look(unknown[3])


NAN = math.nan


def test_a_nan_is_left_out_of_median_and_range():
    """Where no run has a value they are NaN; a run that ended early counts before."""
    runs = [[1.0, NAN, 5.0], [3.0, 4.0, NAN], [9.0, 2.0, NAN]]
    assert primitives.summary(runs) == ([3, 3, 5], [1, 2, 5], [9, 4, 5])
    assert primitives.summary([[1.0, 5.0], [3.0]]) == ([2, 5], [1, 5], [3, 5])
    nothing = primitives.summary([[NAN], [NAN]])
    assert all(math.isnan(column[0]) for column in nothing)


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.2])
def test_a_drifted_token_is_clipped_where_gamma_times_its_ratio_is(gamma):
    """Also at a small γ, which lifts log π_old by much."""
    shifted = gamma * routers.RATIOS
    live = {1: shifted < math.exp(0.4), -1: shifted > math.exp(-0.4)}
    for sign, free in live.items():
        c = routers.coefficients(gamma, sign)
        torch.testing.assert_close(c, torch.where(free, shifted, 0.0))
