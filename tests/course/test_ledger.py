"""What chapter 12 draws, prints and quotes, and the stored ledger behind it."""

import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from course.claims import figures as pictures
from course.kit import claims
from experiments import evidence
from experiments.arms import AT_PACE
from experiments.claims import CLAIMS, SECOND, STARTS, of_cell
from experiments.grid import Cell
from tests.tools import tables
from web import ledger, paper

pytestmark = pytest.mark.ci
BY_NUMBER = {claim.number: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return claims.table()


def test_the_stored_ledger_is_what_the_rows_give():
    assert evidence.check(claims.STORE) == []


def test_no_verdict_rests_on_one_warm_start():
    lines = claims.judged()
    assert [int(stored["claim"]) for stored in lines] == [*range(1, 18)]
    for stored in lines:
        assert int(stored["starts"]) == len(BY_NUMBER[int(stored["claim"])].starts) >= 5
    for stored in lines:
        assert stored["verdict"] != "no runs yet"
        assert all(stored[name] for name in ("effect", "low", "high", "detectable"))


def test_a_column_is_read_run_by_run(table):
    """Against the outcomes, which are computed from the same rows in another way."""
    cell = Cell("GRPO", 2e-4)
    stored = of_cell(table, cell).sort_index()
    runs = claims.column("reward", cell, 2)
    asked = stored[stored.index.get_level_values("seed") < 2]
    assert [len(run) for run in runs] == [30] * STARTS * 2
    means = [sum(run[-10:]) / 10 for run in runs]
    assert means == pytest.approx(asked["reward"].to_list())
    ends = claims.final({"GRPO": cell})["GRPO"]
    assert ends == stored["accuracy"].xs(0, level="seed").to_list()
    noisy = Cell("GRPO", 2e-4, 16, "moe", (("router_noise", 0.5),))
    plain = claims.column("reward", replace(noisy, changed=()))
    assert claims.column("reward", noisy) != plain
    with pytest.raises(ValueError, match=r"no run of .*rate=0\.123.* is stored at"):
        claims.column("reward", Cell("GRPO", 0.123))


@pytest.mark.parametrize("claim", [*CLAIMS, *SECOND], ids=lambda claim: claim.number)
def test_the_runs_of_a_claim_on_the_site_are_those_that_decide_it(claim):
    own, cells = claim.own(claims.everything()), dict.fromkeys(claim.effect.cells)
    listed = [run for key in ledger.of(claim) for run in ledger.cells()[key]]
    assert len(listed) == sum(len(of_cell(own, cell)) for cell in cells) > 0


def test_the_strips_say_how_the_stored_runs_ended():
    assert tables.ENDED.read_text(encoding="utf-8") == tables.ended()


def test_a_breaking_rate_is_averaged_over_octaves():
    middle, low, high = pictures.interval_of_logs({0: 1e-4, 1: 4e-4})
    assert middle == pytest.approx(math.log2(2e-4))
    assert high - middle == pytest.approx(12.706, abs=1e-3)
    assert middle - low == pytest.approx(12.706, abs=1e-3)


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
