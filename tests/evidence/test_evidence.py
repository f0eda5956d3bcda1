"""plan, run, ledger, check: on a store that a test fills, and on short real runs."""

import functools
import lzma
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments import evidence, grid, store
from experiments.arms import AT_PACE
from experiments.claims import CLAIMS
from experiments.command import main
from experiments.effects import STARTS
from experiments.experiment import Experiment, trained
from experiments.grid import COLUMNS, RUNS, Cell, maj_at
from experiments.outcomes import CELL, outcomes
from experiments.statistics import Estimate
from refimpl import ALGORITHMS, UserError, WarmStart
from refimpl.sft import digest, shipped, weights_digest
from refimpl.tasks import rare_careful
from tests.tools.make_starts import EVIDENCE
from tests.worlds import SMALL, TOKENIZER, always_one, warm_model

ABOUT = {**store.provenance(), "seconds": "12.5", "ended": ""}
STORED = Path(__file__).parents[2] / "figures" / "data" / "evidence"
GRPO = ALGORITHMS["grpo"]
JOB = (*CELL, "start", "seed")


def rows(reward=lambda step: 0.5, n=30, **more) -> list[dict]:
    more |= {"log_ratio/q01": -0.5, "log_ratio/q99": 0.3}
    return [
        {"step": float(s), "reward": reward(s), "num_samples": 256.0 * (s + 1), **more}
        for s in range(n)
    ]


def filled(folder: Path, *runs) -> Path:
    """A store with (cell, start, seed, rows) in it."""
    with store.Store(folder / "e", COLUMNS) as opened:
        for cell, start, seed, given in runs:
            opened.add(RUNS.spec(cell.job(start, seed)), given, ABOUT)
    return folder / "e"


def outcomes_of(folder: Path, given: list[dict], **cell) -> pd.Series:
    """Those of one run."""
    run = Cell("GRPO", **cell), 0, 0, given
    return outcomes(*store.read(filled(folder, run))).iloc[0]


@pytest.fixture(scope="module")
def stored() -> pd.DataFrame:
    return evidence.read(STORED)[0]


@pytest.mark.ci
def test_stored_runs_have_the_names_that_they_would_get_today(stored):
    """No formula has changed; and of each arm, world and K one name is made again."""
    assert not evidence.outdated(stored).any()
    some = stored.groupby(["arm", "world", "updates"]).sample(1, random_state=0)
    for line in some.to_dict("records"):
        assert RUNS.key({name: line[name] for name in JOB}) == line["run"]


@pytest.mark.parametrize(
    ("reward", "lived", "expected"),
    [  # mean of the last ten; rollouts to three in a row at 0.8, answers until then
        (lambda s: 0.9 if s >= 20 else 0.1, 30, (0.9, 23, 23)),
        (lambda s: 0.85 if s == 3 or s >= 7 else 0.2, 30, (0.85, 10, 10)),
        (lambda s: 0.8 if s >= 27 else 0.79, 30, (0.793, 30, 30)),
        # ended early: rollouts that never were earn nothing, 0.8 comes after the 30th
        (lambda s: 0.7, 25, (0.35, 31, 25)),
        (lambda s: 0.7, 12, (0.0, 31, 12)),
    ],
)
def test_reward_and_the_way_to_a_reward(tmp_path, reward, lived, expected):
    run = outcomes_of(tmp_path, rows(reward, lived))
    first = run["reward"], run["to_80"], run["samples_80"] / 256
    assert first == pytest.approx(expected)
    assert run["area"] == pytest.approx(sum(map(reward, range(lived))) / 30)
    assert (run["arm"], run["start"], run["seed"]) == ("GRPO", 0, 0)


def test_each_outcome_has_its_rollouts_and_what_is_not_known_is_left_out(tmp_path):
    """What collapses is measured before it, what stands still as a whole."""
    given = rows(lambda s: 0.9, **{"before/maj@8": 0.25, "after/maj@8": 0.75})
    for step, row in enumerate(given):
        row["router/expert_change"] = 0.2 if step < 10 else 0.0
        row["drift/step"] = float(step)
        row["drift/within_small"] = 0.0 if step < 15 else 1.0
        row["entropy"] = 1.0 if step < 20 else 0.5
        row["length/wrong"] = 7.0 if step == 25 else None  # none was wrong elsewhere
    run = outcomes_of(tmp_path, given, answers=True)
    expected = {"expert_change": 0.2, "within_small": 0.5, "entropy": 0.5}
    expected |= {
        "step_early": 2.5,
        "wrong_length": 7,
        "maj@8 gained": 0.5,
        "spread": 0.8,
        "to_95": 31,
    }
    assert {name: run[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("names", [["3b", "breaking"], ["breaking", "3b"]])
def test_a_cell_is_run_once_with_the_most_seeds_that_any_claim_asks_for(names):
    jobs, shared = evidence.wanted(names), Cell("GRPO", 2e-4, 4)
    assert len(jobs) == len(set(jobs))
    seeds = [seed for cell, start, seed in jobs if (cell, start) == (shared, 0)]
    assert seeds == [0, 1, 2, 3]


def test_new_runs_begin_where_everybody_can(stored, tmp_path, monkeypatch):
    """By name and by digest: what a run's line says is what its start has."""
    jobs = evidence.wanted(["17"])
    assert {start for _, start, _ in jobs} == set(grid.TWENTY) and len(jobs) == 80
    for start in grid.TWENTY:
        RUNS.check({"world": "sums", "start": start})
        seeds = [seed for cell, s, seed in jobs[::2] if s == start]
        assert seeds == [100 * start, 100 * start + 1]
    monkeypatch.setitem(evidence.NAMES, "9", replace(CLAIMS[8], starts=(3,)))
    with pytest.raises(UserError, match="start 3 of rare is not part"):
        evidence.run_all(tmp_path / "e", ["9"])
    for name, settings in EVIDENCE.items():
        folder = shipped(settings)
        assert folder is not None and folder.name == name
        assert digest(folder / "model.safetensors") == weights_digest(settings)
    names = ["world", "start", "weights", "begins"]
    late = stored.loc[stored["start"] >= grid.TEN.start, names].drop_duplicates()
    for line in late.itertuples():
        settings = grid.WORLDS[line.world](seed=line.start)
        assert line.weights == line.begins == weights_digest(settings)


@pytest.fixture
def repeatable(tmp_path, monkeypatch):
    """A run of two rollouts of 4 × 4, from a start that nobody ships; and another."""
    small = {"rollouts": 2, "prompts_per_rollout": 4, "group_size": 4}
    small |= {"eval_every": 2, "eval_problems": 8, "max_new_tokens": 12}
    recipe = {"world": rare_careful(), "skill_steps": 9, "habit_steps": 9}
    monkeypatch.setattr(grid, "BASE", replace(grid.BASE, **small))
    rare = functools.partial(WarmStart, **recipe)
    monkeypatch.setitem(grid.WORLDS, "rare", rare)
    monkeypatch.setattr(grid, "begins", grid.begins.__wrapped__)
    cell = Cell("GSPO 0.03", 8e-4, 1, "rare", (("normaliser", "token_mean"),))
    with store.Store(tmp_path / "e", COLUMNS) as opened:
        job = cell.job(2, 5)
        opened.add(RUNS.spec(job), *RUNS.run(job))
        other = Cell("GRPO", 1e-3).job(0, 0)
        opened.add(RUNS.spec(other), rows(), store.provenance())
    return tmp_path / "e", RUNS.key(job)


@pytest.mark.ci
def test_a_stored_run_is_repeated_as_it_was_or_refused(repeatable, monkeypatch):
    out, run_key = repeatable
    stored, again = evidence.repeat(out, run_key)
    pd.testing.assert_frame_equal(stored, again, check_dtype=False)
    assert len(again) == 2
    assert again[["reward", "drift/kl", "drift/step"]].notna().all(axis=None)
    line = store.read(out)[0].set_index("run").loc[run_key]
    with pytest.raises(UserError, match="no run 'abc' is stored"):
        evidence.repeat(out, "abc")
    with monkeypatch.context() as patch:
        patch.setattr(RUNS, "weights", lambda job: "another start's")
        with pytest.raises(UserError, match=r"began from .* has another star…"):
            evidence.repeat(out, run_key)
        patch.setenv("REFIMPL_SALT", "1")
        with pytest.raises(UserError, match=r"made with salt 0 .* now they are 1 and"):
            evidence.repeat(out, run_key)
    file = store.paths(out)[0]
    nowhere = inside(lambda x: x.replace(line["weights"].encode(), b""))
    file.write_bytes(nowhere(file.read_bytes()))
    with pytest.warns(UserWarning, match="the weights from which the run"):
        evidence.repeat(out, run_key)


@pytest.mark.ci
def test_a_run_keeps_pace_with_the_stored_run_of_the_same_dice(tmp_path, monkeypatch):
    """Of other dice, or of another arm, it is not the one; and it is repeated so."""
    small = {"rollouts": 3, "prompts_per_rollout": 4, "group_size": 4}
    monkeypatch.setattr(grid, "BASE", replace(grid.BASE, **small, eval_problems=8))
    leader, cell = (Cell(arm, 4e-4) for arm in ("GRPO", AT_PACE["SAPO 8.8"]))
    out, job = tmp_path / "e", (cell, 10, 1000)
    steps = {"drift/step": 0.125}
    filled(
        tmp_path,
        (leader, 10, 1001, rows(n=3)),
        (Cell("SAPO 8.8", 4e-4), 10, 1000, rows(n=3, **steps)),
    )
    with pytest.raises(UserError, match="follows GRPO's run from start 10"):
        evidence.paced(out, [job])
    filled(tmp_path, (leader, 10, 1000, rows(n=3, **steps)))
    assert evidence.paced(out, [(leader, 10, 1000)]) == [leader.job(10, 1000)]
    (paced,) = evidence.paced(out, [job])
    assert paced == {**cell.job(10, 1000), "pace": [0.125] * 3}
    (own, _), (kept, about_it) = RUNS.run(cell.job(10, 1000)), RUNS.run(paced)
    moved = [[row["drift/step"] for row in found] for found in (own, kept)]
    assert all(abs(x - 0.125) < 0.04 for x in moved[1]) and min(moved[0]) > 0.2
    with store.Store(out, COLUMNS) as opened:
        opened.add(RUNS.spec(paced), kept, about_it)
    stored, again = evidence.repeat(out, RUNS.key(paced))
    pd.testing.assert_frame_equal(stored, again, check_dtype=False)


def test_a_run_in_which_nothing_moves_is_stored_with_the_reason():
    """Every answer is paid the same."""
    given = {"model": warm_model(), "tokenizer": TOKENIZER, "reward": always_one}
    own, config = Experiment(), replace(SMALL, rollouts=6)
    own.make = lambda job: trained("grpo", config=config, **given)
    own.weights = lambda job: "w"
    made, known = own.run({})
    assert 0 < len(made) < 6 and "the policy does not move" in known["ended"]


def full(folder: Path, r3=0.0) -> Path:
    """Claim 14 and the control with runs, R3 so much better."""
    fourteen, runs = CLAIMS[13].effect, []
    for start in CLAIMS[13].starts[:STARTS]:
        for cell, level in ((fourteen.arm, 0.7), (fourteen.control, 0.6)):
            given = rows(lambda s, x=level + start / 100: x)
            runs.append((cell, start, grid.nested(start, 0), given))
    for start in range(STARTS):
        for replay, level in (("R2", 0.7), ("R3", 0.7 + r3)):
            cell = Cell(f"GRPO + {replay}", 6e-4, 16, "moe")
            sway = (0.01 if (start % 2) == (replay == "R2") else 0.0) + start / 50
            runs.append((cell, start, 0, rows(lambda s, x=level + sway: x)))
    return filled(folder, *runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """`full`, with its ledger."""
    folder = tmp_path_factory.mktemp("made")
    evidence.write_ledger(full(folder))
    return folder


@pytest.fixture
def out(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "copy") / "e"


@pytest.mark.parametrize("r3", [0.0, -0.2])
def test_a_control_that_differs_sets_a_size_in_its_own_world_alone(tmp_path, r3):
    """Claims 12 and 14 stand on the reward; the second was run in another world."""
    lines = evidence.ledger(full(tmp_path, r3=r3))
    assert [x["claim"] for x in lines[:17]] == list(range(1, 18))
    noise = next(x for x in lines[17:] if "reward, difference" in x["title"])
    said = "noise called a difference" if r3 else "as it should be"
    assert (lines[13]["verdict"], noise["verdict"]) == ("reproduced", said)
    known = {"reward, difference": Estimate(r3, r3 - 0.1, r3 + 0.1, 5, 5, 0.1, 0.5)}
    sizes = [evidence.size_of_noise(CLAIMS[n], known) for n in (11, 13)]
    assert sizes == [pytest.approx(0.1 - r3), 0.0]
    numbers = [lines[13][name] for name in ("effect", "starts", "runs")]
    assert numbers == [pytest.approx(0.1), 5, 5]
    assert lines[0]["verdict"] == "no runs yet" and lines[0]["effect"] is None


@pytest.mark.ci
def test_the_ledger_is_stored_shown_and_checked(out):
    path = out.with_name("e.ledger.csv")
    text = path.read_text()
    path.unlink()
    with pytest.raises(UserError, match=r"there is no ledger .* evidence ledger"):
        evidence.check(out)
    shown = evidence.write_ledger(out)
    assert shown.splitlines()[-1] == "17 claims" and "no runs yet" in shown
    assert path.read_text() == text and evidence.check(out) == []
    for right, stored, wrong in (
        ("14,τ_neg", "14,t_neg", "title is stored as 't_neg"),
        (",0.1,", ",0.12,", "effect is stored as '0.12'"),
        (",0.1,", ",0.10001,", ""),  # another processor's sum
    ):
        path.write_text(text.replace(right, stored, 1))
        differ = evidence.check(out)
        assert (wrong in differ[0]) if wrong else differ == []


FORMULA = grid.formula.__wrapped__


def with_a_formula(monkeypatch, name, objective) -> None:
    """A registered method whose objective is another."""
    other = replace(ALGORITHMS[name], objective=objective)
    monkeypatch.setitem(ALGORITHMS, name, other)
    for room in (grid, evidence):
        monkeypatch.setattr(room, "formula", functools.cache(FORMULA))


def test_a_changed_formula_orphans_the_runs_of_its_arms_alone(out, monkeypatch):
    """GRPO's, under R2 and R3; claim 14's arms are SAPO's. PPO has no runs here."""
    before = evidence.table(out)

    def wider(t, *, epsilon_low=0.2, epsilon_high=0.2):
        return GRPO.objective(t, epsilon_low=epsilon_low, epsilon_high=0.21)

    with_a_formula(monkeypatch, "ppo", wider)
    assert evidence.check(out) == []
    with_a_formula(monkeypatch, "grpo", wider)
    left_out = r"GRPO \+ R. \(5 runs\), GRPO \+ R. \(5 runs\)"
    with pytest.warns(UserWarning, match=f"10 of 20 runs were made by .*{left_out}"):
        after = evidence.table(out)
    assert set(before["arm"]) - set(after["arm"]) == {"GRPO + R2", "GRPO + R3"}
    assert after["reward"].tolist() == before.loc[after.index, "reward"].tolist()
    assert re.search(left_out, evidence.plan(out, ["14"]).splitlines()[-1])
    hard = lambda t, *, tau_pos=1.0, tau_neg=1.05: GRPO.objective(t)  # noqa: E731
    with_a_formula(monkeypatch, "sapo", hard)
    with pytest.raises(UserError, match="20 of 20 runs were made by a formula"):
        evidence.ledger(out)


LINES, ROWS = "runs.csv.xz", "rows.csv.xz"


def inside(change):
    """Change what the file holds, not its packing."""
    return lambda x: lzma.compress(change(lzma.decompress(x)))


DAMAGE = [
    (LINES, inside(lambda x: x[: x.index(b"\n") + 1]), "they hold different runs"),
    (LINES, inside(lambda x: x[:-9] + b"\xff" + x[-8:]), "can't decode"),
    (LINES, inside(lambda x: x.replace(b"+ R3", b"+ R2", 1)), "fit its key"),
    (LINES, inside(lambda x: x + x.splitlines(True)[-1]), "they hold different runs"),
    (LINES, inside(lambda x: b"a,b\n1,2\n"), "spec"),
    (ROWS, lambda x: x[:900] + bytes([x[900] ^ 4]) + x[901:], ""),
    (ROWS, None, "No such file"),
]


@pytest.mark.parametrize(("kind", "broken", "what"), DAMAGE)
def test_a_damaged_store_is_named_and_left_as_it_is(kind, broken, what, out, capsys):
    file = out.with_name(f"e.{kind}")
    file.write_bytes(broken(file.read_bytes())) if broken else file.unlink()
    before = {file: file.read_bytes() for file in out.parent.iterdir()}
    for action in ("plan", "check", "ledger", "run"):
        of = ["--claims", "14"] if action in ("plan", "run") else []
        assert main(["evidence", action, "--out", str(out), *of]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{str(out)!r} are damaged" in line and what in line
        assert f"git checkout {out.parent}" in line
    assert {file: file.read_bytes() for file in out.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("given", "k", "expected"),
    [
        (["7", "8", "8"], 3, 0.0),  # 8 has the most, and is wrong
        (["7", "8"], 2, 1.0),  # on a tie the one that came first
        (["8", "7"], 2, 0.0),
        (["8", "7", "7", "8"], 2, 0.5),  # two lots, none overlaps
        (["8", "7", "7", "7", "8"], 2, 0.5),  # the fifth makes no lot
    ],
)
def test_the_commonest_of_a_lot_decides_and_the_first_on_a_tie(given, k, expected):
    """7 is right."""
    scores = torch.tensor([[float(answer == "7") for answer in given]])
    assert maj_at(scores, [given], k) == pytest.approx(expected)
    two = torch.cat([scores, 0 * scores])
    assert maj_at(two, [given, given], k) == pytest.approx(expected / 2)
