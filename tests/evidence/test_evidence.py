"""plan, run, ledger, check: on a store that a test fills, and on two real runs."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from refimpl.lab import evidence, grid, store
from refimpl.lab.claims import CLAIMS, STARTS
from refimpl.lab.grid import COLUMNS, Cell, spec
from refimpl.lab.outcomes import outcomes
from refimpl.lab.pool import about, trained
from tests.worlds import SMALL, TOKENIZER, always_one, warm_model

ABOUT = {**store.provenance(), "seconds": "12.5", "ended": ""}


def rows(reward=lambda step: 0.5, n=30, **more) -> list[dict]:
    return [
        {
            "step": float(step),
            "reward": reward(step),
            "num_samples": 256.0 * (step + 1),
            "log_ratio/q01": -0.5,
            "log_ratio/q99": 0.3,
            **more,
        }
        for step in range(n)
    ]


def filled(folder: Path, *runs) -> Path:
    """A store with (cell, start, seed, rows) in it."""
    opened = store.Store(folder / "e", COLUMNS)
    for cell, start, seed, own in runs:
        opened.add(spec(cell, start, seed), own, ABOUT)
    return folder / "e"


def stored(folder: Path, *runs):
    return outcomes(*store.read(filled(folder, *runs)))


# Outcomes


def test_the_primary_outcome_is_the_mean_of_the_last_ten(tmp_path):
    cell = Cell("GRPO")
    found = stored(tmp_path, (cell, 0, 0, rows(lambda s: 0.9 if s >= 20 else 0.1)))
    assert found["reward"].tolist() == pytest.approx([0.9])
    assert found["spread"].tolist() == pytest.approx([0.8])
    only = found.iloc[0]
    assert (only["arm"], only["start"], only["seed"]) == ("GRPO", 0, 0)


def test_what_a_run_did_not_live_to_see_earned_nothing(tmp_path):
    """Ended after 25 of 30: five rollouts at 0.8 and five that never were."""
    found = stored(tmp_path, (Cell("GRPO"), 0, 0, rows(lambda s: 0.8, n=25)))
    assert found["reward"].tolist() == pytest.approx([0.4])
    (tmp_path / "b").mkdir()
    found = stored(tmp_path / "b", (Cell("GRPO"), 0, 0, rows(lambda s: 0.8, n=12)))
    assert found["reward"].tolist() == [0]


def test_the_way_to_a_reward_of_080_is_three_in_a_row(tmp_path):
    once = rows(lambda s: 0.85 if s == 3 or s >= 7 else 0.2)
    never = rows(lambda s: 0.79)
    found = stored(tmp_path, (Cell("GRPO"), 0, 0, once), (Cell("GRPO"), 0, 1, never))
    assert found["to_80"].tolist() == [10, 31]
    assert found["samples_80"].tolist() == [2560, 7680]
    assert found["to_95"].tolist() == [31, 31]


def test_what_collapses_is_measured_before_it_and_what_stands_still_as_a_whole(
    tmp_path,
):
    own = rows()
    for step, row in enumerate(own):
        row["router/expert_change"] = 0.2 if step < 10 else 0.0
        row["drift/within_small"] = 0.0 if step < 15 else 1.0
        row["entropy"] = 1.0 if step < 20 else 0.5
    found = stored(tmp_path, (Cell("GRPO"), 0, 0, own)).iloc[0]
    assert found["expert_change"] == pytest.approx(0.2)
    assert found["within_small"] == pytest.approx(0.5)
    assert found["entropy"] == pytest.approx(0.5)


def test_gains_are_after_less_before(tmp_path):
    around = {f"{w}/{x}": 0.25 for w in ("before",) for x in ("maj@8", "pass@64")}
    around |= {"after/maj@8": 0.75, "after/pass@64": 0.25}
    cell = Cell("GRPO", 2e-4, 4, answers=True)
    found = stored(tmp_path, (cell, 0, 0, rows(**around)))
    assert found["maj@8 gained"].tolist() == [0.5]
    assert found["pass@64 gained"].tolist() == [0]


# plan and run


def test_a_few_runs_of_every_cell_come_before_all_of_one():
    jobs = evidence.wanted(["9", "16"])
    assert len(jobs) == len(set(jobs)) == 3 * STARTS * 4
    assert {start for _, start, _ in jobs[:3]} == {0}
    assert {seed for _, _, seed in jobs[: 3 * STARTS]} == {0}
    assert {cell for cell, _, _ in jobs[:3]} == {c for c, _, _ in jobs}


def test_a_cell_that_two_claims_need_is_run_once():
    both = evidence.wanted(["13", "breaking"])
    assert len(both) == len(set(both)) == len(evidence.wanted(["breaking"]))


def test_each_cell_has_the_seeds_that_its_own_claim_asks_for():
    jobs = evidence.wanted(["9", "sorting"])  # four seeds and one
    assert {seed for cell, _, seed in jobs if cell.world == "rare"} == {0, 1, 2, 3}
    assert {seed for cell, _, seed in jobs if cell.world == "sorting"} == {0}


def pilot_of_16(tmp_path, gains):
    """Claim 16's two seeds from every warm start; what maj@8 gains, by start."""
    jobs = [job for job in evidence.wanted(["16"]) if job[2] < evidence.PILOT]
    around = {"before/maj@8": 0.2, "before/pass@64": 0.5, "after/pass@64": 0.5}
    made = [
        (*job, rows(**around, **{"after/maj@8": 0.2 + gains[job[1]]})) for job in jobs
    ]
    return filled(tmp_path, *made)


@pytest.mark.parametrize("gain", [0.2, -0.2, 0.0])
def test_a_precise_claim_gets_no_more_seeds_whatever_its_verdict(tmp_path, gain):
    out = pilot_of_16(tmp_path, [gain + 0.001 * n for n in range(STARTS)])
    assert evidence.precise(out) == {"16"}
    assert evidence.missing(out, ["16"], evidence.precise(out)) == []


@pytest.mark.parametrize("gain", [0.3, 0.0])
def test_a_claim_whose_starts_differ_widely_gets_all_of_its_seeds(tmp_path, gain):
    out = pilot_of_16(tmp_path, [gain + 0.1 * (-1) ** n for n in range(STARTS)])
    assert evidence.precise(out) == set()
    left = evidence.missing(out, ["16"], evidence.precise(out))
    assert {seed for _, _, seed in left} == {2, 3} and len(left) == 2 * STARTS
    line = next(x for x in evidence.plan(out, ["16"]).splitlines() if x[:2] == "16")
    assert line.split()[-3:-1] == ["20", "10"]


def test_what_cannot_be_tested_gets_no_more_seeds(tmp_path, monkeypatch):
    out = pilot_of_16(tmp_path, [0.1 * (-1) ** n for n in range(STARTS)])
    assert evidence.precise(out) == set()
    of_16 = replace(CLAIMS[15], premise=lambda table: "there is no room to rise")
    monkeypatch.setattr(evidence, "CLAIMS", (of_16,))
    assert evidence.precise(out) == {"16"}


def test_without_a_whole_pilot_nothing_is_precise(tmp_path):
    jobs = evidence.wanted(["16"])[: 2 * STARTS - 1]
    out = filled(tmp_path, *((*job, rows()) for job in jobs))
    assert evidence.precise(out) == set()


def test_the_plan_counts_what_is_missing_and_prices_it(tmp_path):
    jobs = evidence.wanted(["16"])
    out = filled(tmp_path, *((*job, rows()) for job in jobs[:5]))
    said = evidence.plan(out, ["16"], workers=2)
    line = next(x for x in said.splitlines() if x.startswith("16"))
    assert line.split()[-3:] == ["20", "15", f"{15 * 12.5 / 3600:.1f}"]
    assert "15 runs are missing" in said and "with 2 workers" in said
    many = evidence.plan(out, ["16", "9"])
    hours = float(many.partition("about ")[2].split()[0])
    half = evidence.plan(out, ["16", "9"], workers=2)
    assert float(half.partition("about ")[2].split()[0]) == pytest.approx(
        hours / 2, abs=0.06
    )
    assert hours > 0.2


def test_a_plan_only_looks(tmp_path):
    """`run` may be in the middle of a save: its rows are there, its line is not."""
    out = filled(tmp_path, *((*job, rows()) for job in evidence.wanted(["16"])[:2]))
    files = [tmp_path / "e.runs.csv", tmp_path / "e.rows.csv.gz"]
    line = files[0].read_bytes().splitlines(keepends=True)[-1]
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[: -len(line)] + line[:20])
    before = [file.read_bytes() for file in files]
    with pytest.warns(UserWarning, match="30 rows of a run that is not whole"):
        assert "19 runs are missing" in evidence.plan(out, ["16"])
    assert [file.read_bytes() for file in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.fixture
def short(monkeypatch):
    """Runs of two rollouts of 4 × 4, for one claim."""
    small = {"rollouts": 2, "prompts_per_rollout": 4, "group_size": 4}
    small |= {"eval_every": 2, "eval_problems": 8, "max_new_tokens": 12}
    monkeypatch.setattr(grid, "BASE", grid.replace(grid.BASE, **small))
    monkeypatch.setattr(evidence, "STARTS", 1)


@pytest.mark.parametrize(("precise", "seeds"), [((), 4), (("9",), 2)])
def test_run_makes_what_is_missing_and_nothing_twice(
    tmp_path, short, monkeypatch, precise, seeds
):
    monkeypatch.setattr(evidence, "precise", lambda out: precise)
    made = []
    real = grid.run

    def watched(*job):
        made.append(job)
        return real(*job)

    monkeypatch.setattr(evidence, "run", watched)
    out = tmp_path / "e"
    evidence.run_all(out, ["9"])
    assert len(made) == 2 * seeds
    assert [seed for _, _, seed in made] == sorted(seed for _, _, seed in made)
    runs, stored_rows = store.read(out)
    assert len(runs) == 2 * seeds and len(stored_rows) == 4 * seeds
    assert runs["start"].eq(0).all() and set(runs["seed"]) == {*range(seeds)}
    provenance = ["code", "commit", "torch", "processor", "instructions", "date"]
    assert runs[provenance].notna().all(axis=None)
    assert stored_rows["drift/kl"].notna().all()
    evidence.run_all(out, ["9"])
    assert len(made) == 2 * seeds


def test_a_run_is_the_same_when_it_is_made_again(short):
    """Bit for bit on one machine, all but the time it took."""
    one, other = (grid.run(Cell("SAPO 8.8, half open"), 0, 3)[0] for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert {**a, "step_time": 0} == {**b, "step_time": 0}


@pytest.fixture
def repeatable(tmp_path, short):
    cell = Cell("GSPO 0.03", 8e-4, 1, "rare", (("normaliser", "token_mean"),))
    opened = store.Store(tmp_path / "e", grid.COLUMNS)
    opened.add(evidence.spec(cell, 2, 5), *grid.run(cell, 2, 5))
    other = Cell("GRPO", 1e-3)
    opened.add(evidence.spec(other, 0, 0), rows(), store.provenance())
    return tmp_path / "e", store.key(evidence.spec(cell, 2, 5))


def test_a_stored_run_is_repeated_as_it_was(repeatable):
    out, run_key = repeatable
    stored_rows, again = evidence.repeat(out, run_key)
    pd.testing.assert_frame_equal(stored_rows, again, check_dtype=False)
    assert len(again) == 2 and again["reward"].notna().all()
    assert "step_time" not in again and "drift/kl" in again


def test_rows_of_other_columns_are_not_mixed_with_these(repeatable):
    out, _ = repeatable
    with pytest.raises(ValueError, match="these differ: drift/shared"):
        store.Store(out, [c for c in grid.COLUMNS if c != "drift/shared"])
    with pytest.raises(ValueError, match="these differ: their order"):
        store.Store(out, reversed(grid.COLUMNS))
    store.Store(out, grid.COLUMNS)


def test_a_run_that_cannot_be_repeated_is_refused(repeatable, monkeypatch):
    out, run_key = repeatable
    with pytest.raises(ValueError, match="no run 'abc' is stored"):
        evidence.repeat(out, "abc")
    monkeypatch.setenv("REFIMPL_SALT", "1")
    with pytest.raises(ValueError, match=r"made with salt 0 .* now they are 1 and"):
        evidence.repeat(out, run_key)


def test_a_run_in_which_nothing_moves_is_stored_with_the_reason():
    """Every answer is paid the same."""
    history = trained(
        "grpo",
        config=replace(SMALL, rollouts=6),
        model=warm_model(),
        tokenizer=TOKENIZER,
        reward=always_one,
    )
    assert 0 < len(history) < 6
    said = about(history, time.perf_counter())
    assert "the policy does not move" in said["ended"]
    assert said["commit"] == store.provenance()["commit"]
    assert 0 <= float(said["seconds"]) < 60


# Ledger and check


def full(tmp_path: Path, better=0.1) -> Path:
    """Claims 9 and 14, and the control, with runs; the others without."""
    fourteen = CLAIMS[13].effect
    runs = []
    for start in range(STARTS):
        for cell, level in ((fourteen.arm, 0.6 + better), (fourteen.control, 0.6)):
            runs.append((cell, start, 0, rows(lambda s, x=level + start / 100: x)))
        for replay in ("R2", "R3"):
            cell = Cell(f"GRPO + {replay}", 6e-4, 16, "moe")
            sway = (0.01 if (start % 2) == (replay == "R2") else 0.0) + start / 50
            runs.append((cell, start, 0, rows(lambda s, x=0.7 + sway: x)))
    return filled(tmp_path, *runs)


def test_the_ledger_has_a_line_for_every_claim_and_for_the_control(tmp_path):
    lines = evidence.ledger(full(tmp_path))
    assert [x["claim"] for x in lines[:16]] == list(range(1, 17))
    assert lines[13]["verdict"] == "reproduced"
    assert lines[13]["effect"] == pytest.approx(0.1)
    assert (lines[13]["starts"], lines[13]["runs"]) == (5, 5)
    assert lines[0]["verdict"] == "no runs yet" and lines[0]["effect"] is None
    control = {x["title"]: x for x in lines[16:]}
    assert control["R3 against R2: reward, difference"]["verdict"] == "as it should be"


def test_a_control_that_differs_is_called_noise_and_decides_no_claim(tmp_path):
    """Claim 14 stands on the reward; claim 9 on another outcome, and keeps its own."""
    fourteen, nine = CLAIMS[13].effect, CLAIMS[8].effect
    runs = []
    for start in range(STARTS):
        near = start / 900
        for replay, level in (("R2", 0.5), ("R3", 0.7)):
            cell = Cell(f"GRPO + {replay}", 6e-4, 16, "moe")
            runs.append((cell, start, 0, rows(lambda s, x=level + near: x)))
        for cell, level in ((fourteen.arm, 0.7), (fourteen.control, 0.6)):
            runs.append((cell, start, 0, rows(lambda s, x=level + near: x)))
        for cell, late in ((nine.arm, 4), (nine.control, 12 + start)):
            own = rows(lambda s, late=late: 0.9 if s >= late else 0.1)
            runs.append((cell, start, 0, own))
    lines = evidence.ledger(filled(tmp_path, *runs))
    noise = next(x for x in lines if "reward, difference" in x["title"])
    assert noise["verdict"] == "noise called a difference"
    assert lines[13]["verdict"] == "not testable here"
    assert "two names of one algorithm" in lines[13]["why"]
    assert lines[13]["effect"] == pytest.approx(0.1)
    assert lines[8]["verdict"] == "reproduced"


def test_the_ledger_is_stored_shown_and_checked(tmp_path, capsys):
    out = full(tmp_path)
    with pytest.raises(ValueError, match=r"there is no ledger .* evidence ledger"):
        evidence.check(out)
    said = evidence.write_ledger(out)
    assert said.splitlines()[-1] == "16 claims"
    assert "reproduced" in said and "no runs yet" in said
    assert evidence.check(out) == []
    path = tmp_path / "e.ledger.csv"
    path.write_text(path.read_text().replace("14,τ_neg", "14,t_neg"))
    (wrong,) = evidence.check(out)
    assert "title is stored as 't_neg" in wrong
    evidence.write_ledger(out)
    text = path.read_text()
    path.write_text(text.replace(",0.1,", ",0.12,", 1))
    assert any("effect is stored as '0.12'" in x for x in evidence.check(out))
    path.write_text(text.replace(",0.1,", ",0.10001,", 1))  # another processor's sum
    assert evidence.check(out) == []


def test_runs_of_other_losses_are_named_and_never_mixed(tmp_path, monkeypatch):
    out = full(tmp_path)
    before = evidence.table(out)
    monkeypatch.setattr(store, "code", lambda: "0" * 16)
    with pytest.warns(UserWarning, match="20 of 20 runs were made with other code"):
        after = evidence.table(out)
    assert len(before) == 20 and len(after) == 0


# Bad input


@pytest.mark.parametrize("call", [evidence.plan, evidence.run_all])
def test_an_unknown_claim_is_named_with_its_nearest(tmp_path, call):
    with pytest.raises(ValueError, match="unknown claim 'braking', did you mean 'brea"):
        call(tmp_path / "e", ["braking"])
    assert not list(tmp_path.iterdir())


def test_without_runs_the_ledger_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="no runs are stored at"):
        evidence.ledger(tmp_path / "e")


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_rows(tmp_path):
    """kill −9 five times, some of them in a save; then to the end, and compared."""
    program = (
        "from refimpl.lab import evidence, grid\n"
        "small = dict(rollouts=2, prompts_per_rollout=4, group_size=4,\n"
        "             eval_every=2, eval_problems=8, max_new_tokens=12)\n"
        "grid.BASE = grid.replace(grid.BASE, **small)\n"
        "evidence.STARTS = 1\n"
        "evidence.run_all({!r}, ['9', '1'])\n"
    )

    def started(out):
        command = [sys.executable, "-W", "ignore", "-c", program.format(str(out))]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert started(whole).wait() == 0
    for attempt in range(5):
        process = started(killed)
        runs = killed.with_name("killed.runs.csv")
        size, deadline = runs.stat().st_size if runs.exists() else 0, time.time() + 60
        while process.poll() is None and time.time() < deadline:
            if runs.exists() and runs.stat().st_size > size:
                break
            time.sleep(0.01)
        time.sleep(0.03 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert started(killed).wait() == 0
    (runs, one), (again, other) = store.read(whole), store.read(killed)
    assert sorted(runs["run"]) == sorted(again["run"])
    same = [c for c in one.columns if c != "step_time"]
    order = ["run", "step"]
    one, other = (
        x.sort_values(order)[same].reset_index(drop=True) for x in (one, other)
    )
    assert one.equals(other)
