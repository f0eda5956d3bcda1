"""The short paper: its numbers are those of the store, and it says what they say."""

import math
import re

import pandas as pd
import pytest

from course.kit import claims
from experiments.arms import AT_PACE
from web import paper

NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e-?\d+)?"


@pytest.fixture(scope="module")
def told() -> str:
    return paper.text()


def test_the_page_is_what_the_store_gives(told):
    """Words alike; numbers by a unit of their last digit, where another processor
    rounds otherwise."""
    stored = paper.PAGE.read_text(encoding="utf-8")
    assert not re.search(r"\bnan\b", told)
    assert re.split(NUMBER, stored) == re.split(NUMBER, told)
    for one, other in zip(re.findall(NUMBER, stored), re.findall(NUMBER, told)):
        digits = len(one.partition(".")[2].partition("e")[0])
        unit = 10.0 ** -(digits - (1 if "e" in one else 0)) if digits else 0
        assert math.isclose(float(one), float(other), rel_tol=0.1, abs_tol=1.01 * unit)


def test_the_pace_is_compared_with_the_leaders_of_the_same_start_and_rate(monkeypatch):
    """Eleven rollouts at 1 to 2 times the leader's, and one after the collapse, which
    does not count. Another start's leader is far away."""
    arm = AT_PACE["SAPO 8.8"]
    runs = pd.DataFrame(
        [("a", "GRPO", 10, 4e-4), ("b", "GRPO", 11, 4e-4), ("c", arm, 10, 4e-4)],
        columns=["run", "arm", "start", "rate"],
    )
    moved = {"a": [0.5] * 12, "b": [9.0] * 12}
    moved["c"] = [*(0.5 * (1 + k / 10) for k in range(11)), 0.01]
    rows = {  # each with its own index, as rows of one store have
        run: pd.DataFrame(
            {"step": range(12), "drift/step": x, "reward": [0.5] * 11 + [0.05]},
            index=range(100 * i, 100 * i + 12),
        )
        for i, (run, x) in enumerate(moved.items())
    }
    monkeypatch.setattr(claims, "rows_of", rows.get)
    assert paper.off_pace(runs) == "1.50 (1.10 to 1.90)"
