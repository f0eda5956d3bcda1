"""plan, run, ledger, check: on a store that a test fills, and on two real runs."""

import functools
import gzip
import re
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS, GRPO, Objective
from refimpl.lab import evidence, grid, store
from refimpl.lab.claims import CLAIMS, STARTS
from refimpl.lab.grid import COLUMNS, Cell, spec
from refimpl.lab.outcomes import outcomes
from refimpl.lab.pool import about, trained
from refimpl.sft import WarmStart
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


@pytest.mark.parametrize(("lived", "earned"), [(25, 0.4), (12, 0.0)])
def test_what_a_run_did_not_live_to_see_earned_nothing(tmp_path, lived, earned):
    """Ended after 25 of 30: five rollouts at 0.8 and five that never were."""
    found = stored(tmp_path, (Cell("GRPO"), 0, 0, rows(lambda s: 0.8, n=lived)))
    assert found["reward"].tolist() == pytest.approx([earned])


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
    around = {"before/maj@8": 0.25, "after/maj@8": 0.75}
    cell = Cell("GRPO", 2e-4, 4, answers=True)
    found = stored(tmp_path, (cell, 0, 0, rows(**around)))
    assert found["maj@8 gained"].tolist() == [0.5]


# plan and run


def test_a_few_runs_of_every_cell_come_before_all_of_one():
    jobs = evidence.wanted(["9", "16"])
    assert len(jobs) == len(set(jobs)) == 3 * STARTS * 4
    assert {start for _, start, _ in jobs[:3]} == {0}
    assert {seed for _, _, seed in jobs[: 3 * STARTS]} == {0}
    assert {cell for cell, _, _ in jobs[:3]} == {c for c, _, _ in jobs}


def test_a_cell_is_run_once_with_the_seeds_that_its_own_claims_ask_for():
    both = evidence.wanted(["13", "breaking"])
    assert len(both) == len(set(both)) == len(evidence.wanted(["breaking"]))
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
    hours = [
        float(evidence.plan(out, ["16", "9"], workers=n).partition("about ")[2][:4])
        for n in (1, 2)
    ]
    assert hours[0] > 0.2 and hours[1] == pytest.approx(hours[0] / 2, abs=0.06)


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
    out, made, real = tmp_path / "e", [], grid.run
    monkeypatch.setattr(evidence, "precise", lambda out: precise)
    monkeypatch.setattr(evidence, "run", lambda *job: made.append(job) or real(*job))
    evidence.run_all(out, ["9"])
    assert [seed for *_, seed in made] == [n for n in range(seeds) for _ in range(2)]
    runs, first = store.read(out)
    assert len(runs) == 2 * seeds and len(first) == 4 * seeds
    assert runs["start"].eq(0).all() and first["drift/kl"].notna().all()
    known = ["behaviour", "weights", "commit", "torch", "instructions", "date"]
    assert runs[known].notna().all(axis=None) and runs["old_code"].isna().all()
    evidence.run_all(out, ["9"])
    assert len(made) == 2 * seeds
    file = store.paths(out)[0]  # killed before the last line was whole
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="that run is made again"):
        evidence.run_all(out, ["9"])
    assert len(made) == 2 * seeds + 1 and made[-1] == made[-2]
    again = store.read(out)[1]
    assert first.drop(columns="step_time").equals(again.drop(columns="step_time"))


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
    fewer = [c for c in COLUMNS if c != "drift/shared"]
    for columns, differ in (
        (fewer, "drift/shared"),
        (reversed(COLUMNS), "their order"),
    ):
        with pytest.raises(ValueError, match=f"these differ: {differ}"):
            store.Store(repeatable[0], columns)


def test_a_run_that_cannot_be_repeated_is_refused(repeatable, monkeypatch):
    out, run_key = repeatable
    with pytest.raises(ValueError, match="no run 'abc' is stored"):
        evidence.repeat(out, "abc")
    monkeypatch.setattr(WarmStart, "digest", lambda self: "another start's")
    with pytest.raises(ValueError, match=r"began from .* here .* has another star…"):
        evidence.repeat(out, run_key)
    monkeypatch.setenv("REFIMPL_SALT", "1")
    with pytest.raises(ValueError, match=r"made with salt 0 .* now they are 1 and"):
        evidence.repeat(out, run_key)


def test_a_repeat_says_that_nobody_knows_the_weights(repeatable):
    out, run_key = repeatable
    file = store.paths(out)[0]
    digest = store.read(out)[0].set_index("run").loc[run_key, "weights"]
    file.write_text(file.read_text().replace(digest, ""))
    with pytest.warns(UserWarning, match="nobody knows from which weights"):
        evidence.repeat(out, run_key)


def test_a_run_in_which_nothing_moves_is_stored_with_the_reason():
    """Every answer is paid the same."""
    given = {"model": warm_model(), "tokenizer": TOKENIZER, "reward": always_one}
    history = trained("grpo", config=replace(SMALL, rollouts=6), **given)
    said = about(history, time.perf_counter())
    assert 0 < len(history) < 6 and "the policy does not move" in said["ended"]
    assert 0 <= float(said["seconds"]) < 60


# Ledger and check


def full(tmp_path: Path, *more, r3=0.0) -> Path:
    """Claim 14 and the control with runs, R3 so much better, and more runs."""
    fourteen, runs = CLAIMS[13].effect, [*more]
    for start in range(STARTS):
        for cell, level in ((fourteen.arm, 0.7), (fourteen.control, 0.6)):
            runs.append((cell, start, 0, rows(lambda s, x=level + start / 100: x)))
        for replay, level in (("R2", 0.7), ("R3", 0.7 + r3)):
            cell = Cell(f"GRPO + {replay}", 6e-4, 16, "moe")
            sway = (0.01 if (start % 2) == (replay == "R2") else 0.0) + start / 50
            runs.append((cell, start, 0, rows(lambda s, x=level + sway: x)))
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
    nine = CLAIMS[8].effect
    more = [
        (cell, start, 0, rows(lambda s, late=late: 0.9 if s >= late else 0.1))
        for start in range(STARTS)
        for cell, late in ((nine.arm, 4), (nine.control, 12 + start))
    ]
    lines = evidence.ledger(full(tmp_path, *more, r3=-0.2))
    noise = next(x for x in lines if "reward, difference" in x["title"])
    assert noise["verdict"] == "noise called a difference"
    assert "two names of one algorithm" in lines[13]["why"]
    assert lines[8]["verdict"] == "reproduced"


def test_the_ledger_is_stored_shown_and_checked(tmp_path, capsys):
    out = full(tmp_path)
    with pytest.raises(ValueError, match=r"there is no ledger .* evidence ledger"):
        evidence.check(out)
    said = evidence.write_ledger(out)
    assert said.splitlines()[-1] == "16 claims"
    assert "no runs yet" in said and evidence.check(out) == []
    path = tmp_path / "e.ledger.csv"
    path.write_text(path.read_text().replace("14,τ_neg", "14,t_neg"))
    (wrong,) = evidence.check(out)
    assert "title is stored as 't_neg" in wrong
    text = path.read_text().replace("t_neg", "τ_neg")
    path.write_text(text.replace(",0.1,", ",0.12,", 1))
    assert any("effect is stored as '0.12'" in x for x in evidence.check(out))
    path.write_text(text.replace(",0.1,", ",0.10001,", 1))  # another processor's sum
    assert evidence.check(out) == []


FORMULA = grid.formula.__wrapped__


def with_a_formula(monkeypatch, name, objective) -> None:
    """A registered method whose objective is another."""
    other = replace(ALGORITHMS[name], objective=objective)
    monkeypatch.setitem(ALGORITHMS, name, other)
    for room in (grid, evidence):
        monkeypatch.setattr(room, "formula", functools.cache(FORMULA))


def test_a_changed_formula_orphans_the_runs_of_its_arms_alone(tmp_path, monkeypatch):
    """GRPO's, under R2 and R3; claim 14's arms are SAPO's. PPO has no runs here."""
    out = full(tmp_path)
    before, plan = evidence.table(out), evidence.plan(out)

    def wider(t, *, epsilon_low=0.2, epsilon_high=0.2):
        return GRPO.objective(t, epsilon_low=epsilon_low, epsilon_high=0.21)

    with_a_formula(monkeypatch, "ppo", wider)
    assert evidence.plan(out) == plan
    with_a_formula(monkeypatch, "grpo", wider)
    left_out = r"GRPO \+ R. \(5 runs\), GRPO \+ R. \(5 runs\)"
    with pytest.warns(UserWarning, match=f"10 of 20 runs were made by .*{left_out}"):
        after = evidence.table(out)
    assert set(before["arm"]) - set(after["arm"]) == {"GRPO + R2", "GRPO + R3"}
    assert after["reward"].tolist() == before.loc[after.index, "reward"].tolist()
    assert re.search(left_out, evidence.plan(out).splitlines()[-1])
    hard = lambda t, *, tau_pos=1.0, tau_neg=1.05: GRPO.objective(t)  # noqa: E731
    with_a_formula(monkeypatch, "sapo", hard)
    with pytest.raises(ValueError, match="20 of 20 runs were made by a formula"):
        evidence.ledger(out)


def test_a_rewritten_formula_and_a_new_method_orphan_nothing(tmp_path, monkeypatch):
    out = full(tmp_path)
    evidence.write_ledger(out)
    plan = evidence.plan(out)

    def rewritten(t, *, epsilon_low=0.2, epsilon_high=0.2):
        good, r = t.advantages > 0, t.z.clamp(-20, 20).exp()
        low, high = r.clamp(min=1 - epsilon_low), r.clamp(max=1 + epsilon_high)
        return Objective(torch.where(good, high, low) * t.advantages)

    with_a_formula(monkeypatch, "grpo", rewritten)
    monkeypatch.setitem(ALGORITHMS, "new", replace(GRPO, name="new"))
    assert evidence.check(out) == [] and evidence.plan(out) == plan


RUNS, ROWS = "runs.csv", "rows.csv.gz"
DAMAGE = [
    (RUNS, lambda x: b"", "it lacks 20 runs that have rows"),
    (RUNS, lambda x: x[: x.index(b"\n") + 1], "it lacks 20 runs that have rows"),
    (RUNS, lambda x: x[:5000], "runs that have rows"),
    (RUNS, lambda x: x[:2000] + bytes(999) + x[2999:], "does not fit its key"),
    (RUNS, lambda x: x[:-5] + b"\0" + x[-4:], "line 21 does not fit its key"),
    (RUNS, lambda x: x.replace(b'"{""', b'"{', 1), "line 2 does not fit its key"),
    (RUNS, lambda x: x.replace(b"0.0006", b"0.0007", 1), "does not fit its key"),
    (RUNS, lambda x: x[:-9] + b"\xff" + x[-8:], "it is no table"),
    (RUNS, lambda x: x + x.splitlines(True)[-1], "runs are there twice"),
    (RUNS, None, "it lacks 20 runs that have rows"),
    (ROWS, lambda x: b"run,step\n", "from byte 0 on it is not gzip"),
    (ROWS, lambda x: gzip.compress(b"a,b\n1,2\n"), "it holds no rows of runs"),
    (ROWS, lambda x: x[:-9], "it lacks the rows of 1 of 20 runs"),
    (ROWS, lambda x: x[:900] + bytes([x[900] ^ 4]) + x[901:], ""),
    (ROWS, lambda x: x * 2, "rows are there twice"),
    (ROWS, None, "it lacks the rows of 20 of 20 runs"),
]


@pytest.mark.parametrize(("kind", "broken", "what"), DAMAGE)
def test_a_damaged_store_is_named_and_left_as_it_is(
    kind, broken, what, tmp_path, capsys
):
    out = full(tmp_path)
    evidence.write_ledger(out)
    file = out.with_name(f"e.{kind}")
    file.write_bytes(broken(file.read_bytes())) if broken else file.unlink()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for action in ("plan", "check", "ledger", "run"):
        assert main(["evidence", action, "--out", str(out)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert f"e.{kind} is damaged: " in said and what in said
        assert f"git checkout {tmp_path}" in said
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


# Bad input


@pytest.mark.parametrize("call", [evidence.plan, evidence.run_all])
def test_an_unknown_claim_is_named_with_its_nearest(tmp_path, call):
    with pytest.raises(ValueError, match="unknown claim 'braking', did you mean 'brea"):
        call(tmp_path / "e", ["braking"])
    assert not list(tmp_path.iterdir())


def test_without_runs_a_plan_has_all_to_make_and_the_others_say_so(tmp_path, capsys):
    out = str(tmp_path / "e")
    assert "20 runs are missing" in evidence.plan(out, ["16"])
    with pytest.raises(ValueError, match=r"no runs are stored at .*e.runs.csv is miss"):
        evidence.ledger(out)
    store.Store(out, COLUMNS).add({"arm": "GRPO"}, rows(n=1), ABOUT)
    (tmp_path / "e.rows.csv.gz").unlink()
    (tmp_path / "e.runs.csv").write_text(",".join(store.HEAD) + "\n")
    assert main(["evidence", "plan", "--out", out]) == 2
    assert "e.runs.csv holds no run; make them" in capsys.readouterr().err
