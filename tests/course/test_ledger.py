"""What chapter 12 draws, prints and quotes, and the stored ledger behind it."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from course.claims import figures as pictures
from course.kit import claims
from experiments import evidence
from experiments.claims import CLAIMS, SECOND, STARTS, of_cell
from experiments.grid import Cell
from web import ledger

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


def test_a_breaking_rate_is_averaged_over_octaves():
    middle, low, high = pictures.interval_of_logs({0: 1e-4, 1: 4e-4})
    assert middle == pytest.approx(math.log2(2e-4))
    assert high - middle == pytest.approx(12.706, abs=1e-3)
    assert middle - low == pytest.approx(12.706, abs=1e-3)


@pytest.fixture(scope="module")
def play(table):
    return pictures.audit_explorer(table)
