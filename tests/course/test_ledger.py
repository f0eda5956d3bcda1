"""What chapter 12 draws, prints and quotes, and the stored ledger behind it."""

import math
import re
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

from course.claims import figures as pictures
from course.kit import claims
from experiments import evidence
from experiments.claims import CLAIMS, SECOND, STARTS, of_cell
from experiments.effects import VERDICTS
from experiments.grid import Cell
from web import ledger

BY_NUMBER = {claim.number: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return claims.table()


def line(number=4, **changed):
    """A line of the ledger as the file holds it."""
    claim = BY_NUMBER[number]
    known = {"claim": str(number), "title": claim.title, "unit": claim.unit}
    told = {"effect": "0.5", "low": "0.2", "high": "0.8", "starts": "5", "runs": "10"}
    told |= {"detectable": "0.4", "p": "0.01", "verdict": "undecided", "why": ""}
    return known | told | changed


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


def test_a_chapter_quotes_its_claims_and_no_other():
    """Texts as they are: +0.10 stays +0.10."""
    text = claims.quote(6, 8).data
    assert re.findall(r"^\| (\w+) · ", text, re.M) == ["6", "8", "6b", "6c"]
    for stored in claims.claimed():
        if stored["claim"] in ("6", "8"):
            parts = stored["title"], *claims.measured(stored)
            assert all(part in text for part in parts)


def test_the_whole_table_names_every_command_and_chapter():
    numbers = [n for stored in claims.CHAPTERS.values() for n in stored]
    assert sorted(numbers) == sorted(BY_NUMBER), "every claim has one chapter"
    text, root = claims.whole().data, claims.DATA.parents[1]
    second = [claim.number for claim in SECOND]
    every = [str(n) for n in range(1, 17)] + second
    assert re.findall(r"--claims (\w+)`", text) == every
    links = re.findall(r"\]\((.+?)\)", text)
    assert len(links) == len(every)
    assert [link for link in links if not (root / "notebooks" / link).exists()] == []


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


def test_a_difference_is_taken_start_by_start():
    """1, 2 and 3 apart: 2 ± 4.3027 / √3, however far the starts lie apart."""
    made = claims.difference([1.0, 12.0, 23.0], [0.0, 10.0, 20.0])
    assert claims.shown(made) == "+2.00 (-0.48 to +4.48)"
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        claims.difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize("claim", [*CLAIMS, *SECOND], ids=lambda claim: claim.number)
def test_the_runs_of_a_claim_on_the_site_are_those_that_decide_it(claim):
    own, cells = claim.own(claims.everything()), dict.fromkeys(claim.effect.cells)
    listed = [run for key in ledger.of(claim) for run in ledger.cells()[key]]
    assert len(listed) == sum(len(of_cell(own, cell)) for cell in cells) > 0


def test_the_ledger_draws_in_units_of_the_smallest_effect():
    """Claim 5 expects a negative effect: −3 tokens are three smallest effects."""
    stored = line(5, effect="-3", low="-5", high="-1", verdict="reproduced")
    axis = pictures.ledger([stored], "").axes[0]
    span, mark = axis.lines[:2]
    assert list(span.get_xdata()) == [5, 1]
    assert list(mark.get_xdata()) == [3] and mark.get_marker() == "o"
    said = [text.get_text() for text in axis.texts]
    counts = [f"{verdict}: 0" for verdict in VERDICTS if verdict != "reproduced"]
    assert said[:2] == ["reproduced: 1", "−3 tokens"] and {*said[2:]} == {*counts}
    pictures.bar(axis, 0, [1, 400, 900], "reproduced")  # beyond the axis: at its end
    assert list(axis.lines[-1].get_xdata()) == [pictures.EDGE]
    looks = {(mark, fill == "white") for mark, fill in pictures.MARKS.values()}
    assert len(looks) == len(pictures.MARKS) == 5, "told apart without colours"


def test_a_breaking_rate_is_averaged_over_octaves():
    middle, low, high = pictures.interval_of_logs({0: 1e-4, 1: 4e-4})
    assert middle == pytest.approx(math.log2(2e-4))
    assert high - middle == pytest.approx(12.706, abs=1e-3)
    assert middle - low == pytest.approx(12.706, abs=1e-3)


NUMBERS = "no one two three four five six seven eight nine".split()


def test_what_is_said_of_the_ledger_is_what_it_says():
    """Chapter 12 counts as the ledger does, and no page uses a word of the rule that
    was."""
    root = claims.DATA.parents[1]
    counted = Counter(line["verdict"] for line in claims.judged())
    assert set(counted) <= set(VERDICTS) == set(pictures.MARKS)
    chapter = (root / "notebooks/12_claims.ipynb").read_text("utf-8")
    papers = Counter(line["verdict"] for line in claims.claimed())
    four, two = papers["reproduced"], papers["contradicted"]
    told = f"sixteen claims {NUMBERS[four]} reproduce here, {NUMBERS[two]} are contrad"
    assert told in chapter
    for name in (*claims.CHAPTERS, "12_claims"):
        text = (root / f"notebooks/{name}.ipynb").read_text("utf-8")
        assert not re.search(r"not testable|\*not seen\*", text, re.I), name


@pytest.fixture(scope="module")
def play(table):
    return pictures.audit_explorer(table)


def said(play) -> str:
    """The claim and its verdict, on one line."""
    return play.figure.get_suptitle().replace("\n", " ")


def test_the_audit_begins_with_what_the_ledger_says(play):
    for stored in claims.claimed():
        number = int(stored["claim"])
        if BY_NUMBER[number] not in pictures.AUDITED:
            continue
        play.set(number=number)
        if stored["why"] == "":
            assert said(play).endswith(stored["verdict"])
        *_, text = play.figure.axes[0].texts
        shown = float(text.get_text().split()[0])  # three digits of four
        assert shown == pytest.approx(float(stored["effect"]), rel=0.01)


def test_an_outcome_that_nobody_declared_gets_no_verdict(play):
    play.set(number=5, outcome="reward", threshold=2.0)
    axis = play.figure.axes[0]
    assert said(play).endswith("an outcome that nobody declared")
    far = float(axis.texts[4].get_text()) / axis.texts[4].get_position()[0]
    assert far * axis.lines[3].get_xdata()[0] == pytest.approx(-2.0)
    play.set(outcome="as declared", threshold=5.0)
    assert said(play).endswith("none that matters")  # of that size
