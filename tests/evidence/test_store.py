"""Stored runs: named by what made them, added whole, never mixed."""

import json
import os
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest

from experiments import store
from experiments.grid import Cell, spec
from experiments.pool import fill
from experiments.store import Store, key, read
from refimpl import TrainConfig, UserError

SPEC = {"arm": "GRPO", "seed": 0, "learning_rate": 3e-4, "behaviour": "b"}
ROWS = [{"step": 0.0, "reward": 0.25}, {"step": 1.0, "reward": 1 / 3, "accuracy": 0.5}]
ABOUT = {"weights": "w", "commit": "abc", "seconds": "1.5"}
COLUMNS = ["step", "reward", "accuracy"]
STORED = Path(__file__).parents[2] / "figures" / "data" / "evidence"


def filled(tmp_path, runs=2):
    with Store(tmp_path / "real", COLUMNS) as kept:
        for seed in range(runs):
            kept.add({**SPEC, "seed": seed}, ROWS, ABOUT)
    return kept


def test_what_is_added_is_read_again(tmp_path):
    kept = filled(tmp_path)
    runs, rows = read(tmp_path / "real")
    assert runs["seed"].tolist() == [0, 1] and runs["arm"].tolist() == ["GRPO"] * 2
    assert runs["commit"].tolist() == ["abc"] * 2
    files = [kept.runs_path.read_bytes(), kept.rows_path.read_bytes()]
    with Store(tmp_path / "real", COLUMNS) as again:  # which leaves it alone
        assert again.dropped == []
    assert set(runs["run"]) == set(rows["run"]) == store.done(tmp_path / "real")
    assert files == [kept.runs_path.read_bytes(), kept.rows_path.read_bytes()]
    assert rows["reward"].tolist() == [0.25, 0.333333] * 2
    assert rows["accuracy"].isna().tolist() == [True, False] * 2


def test_an_experiment_makes_what_its_store_lacks(tmp_path):
    made = []

    def run(seed):
        made.append(seed)
        return ROWS, ABOUT

    for seeds in (range(2), range(1, 4)):  # the second time, two are new
        planned = [(seed,) for seed in seeds]
        out = tmp_path / "real"
        fill(out, COLUMNS, planned, lambda seed: {**SPEC, "seed": seed}, run, 1)
    assert made == read(out)[0]["seed"].tolist() == [0, 1, 2, 3]


def test_a_key_names_configuration_salt_weights_and_behaviour(monkeypatch):
    known = {**SPEC, "begins": "b0121a88"}
    assert key(known) == key(dict(reversed(known.items())))  # in any order
    others = [{"learning_rate": 2.1e-4}, {"begins": "ff"}, {"behaviour": "c"}]
    keys = {key({**known, **other}) for other in ({}, *others)}
    monkeypatch.setenv("REFIMPL_SALT", "3")
    assert len(keys | {key(known)}) == 5


CUT = "real.rows.csv.gz: rows cut off in the middle"
ALONE = "real.rows.csv.gz: rows of a run that has no line"
LINE = "real.runs.csv: a line cut off in the middle"


@pytest.mark.parametrize(
    ("rows", "line", "dropped"),
    [(1, 0, [CUT]), (-1, 0, [CUT]), (None, 0, [ALONE])]
    + [(None, n, [LINE, ALONE]) for n in (10, -1)],
)
def test_what_a_kill_leaves_of_a_run_is_dropped(tmp_path, rows, line, dropped):
    """So many bytes of its rows and of its line are there. Who only reads leaves them
    there: another process may be writing."""
    kept, out = filled(tmp_path, runs=1), tmp_path / "real"
    paths = kept.rows_path, kept.runs_path
    before = [path.read_bytes() for path in paths]
    kept.add({**SPEC, "seed": 1}, ROWS, ABOUT)
    for path, whole, part in zip(paths, before, (rows, line)):
        path.write_bytes(whole + path.read_bytes()[len(whole) :][:part])
    there = [path.read_bytes() for path in paths]
    with pytest.warns(UserWarning, match="rows of a run that is not whole"):
        assert len(read(out)[1]) == 2
    assert [path.read_bytes() for path in paths] == there
    again = Store(out, COLUMNS)
    assert again.dropped == dropped and len(store.done(out)) == 1
    assert list(tmp_path.glob("*.before"))  # what was cut off, with all the rest
    again.add({**SPEC, "seed": 1}, [{**ROWS[0], "reward": 0.75}], ABOUT)
    runs, found = read(out)
    assert runs["seed"].tolist() == [0, 1]
    assert found["reward"].tolist() == [0.25, 0.333333, 0.75]


def test_a_kill_in_the_very_first_run_leaves_a_store_that_begins_anew(tmp_path):
    kept = filled(tmp_path, runs=1)
    kept.rows_path.write_bytes(kept.rows_path.read_bytes()[:20])
    kept.runs_path.unlink()
    with Store(tmp_path / "real", COLUMNS) as again:
        assert again.dropped == [CUT] and not again.rows_path.exists()
        again.add(SPEC, ROWS, ABOUT)
    assert len(read(tmp_path / "real")[1]) == 2


def test_rows_are_on_the_disk_before_the_line_that_names_them(tmp_path, monkeypatch):
    """And what was there before is added to: who reads it has it as it was."""
    kept, synced, sync = filled(tmp_path, runs=1), [], os.fsync
    paths = kept.rows_path, kept.runs_path
    before = [path.read_bytes() for path in paths]

    def watched(handle):
        names = {path.stat().st_ino: path for path in paths}
        synced.append((names[os.fstat(handle).st_ino], len(store.done(kept.path))))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with open(paths[0], "rb") as rows, open(paths[1], "rb") as lines:
        kept.add({**SPEC, "seed": 1}, ROWS, ABOUT)
        assert synced == [(kept.rows_path, 1), (kept.runs_path, 2)]
        for file, old in zip((rows, lines), before):
            assert file.read(len(old)) == old and file.read()


def test_one_process_at_a_time_adds_runs(tmp_path):
    kept = filled(tmp_path)
    with Store(tmp_path / "real", COLUMNS) as first:
        with pytest.raises(UserError, match=r"another process adds runs to '.*real'"):
            Store(tmp_path / "real", COLUMNS)
        first.add({**SPEC, "seed": 2}, ROWS, ABOUT)
    kept.rows_path.write_bytes(b"no gzip")
    for _ in range(2):  # what is refused takes no lock along
        with pytest.raises(UserError, match="is not gzip"):
            Store(tmp_path / "real", COLUMNS)


def test_files_of_another_kind_are_refused(tmp_path):
    filled(tmp_path)
    for columns, differ in ((COLUMNS[:2], "accuracy"), (COLUMNS[::-1], "their order")):
        with pytest.raises(UserError, match=f"these differ: {differ}"):
            Store(tmp_path / "real", columns)
    (tmp_path / "real.runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="was not written by this version's runs"):
        Store(tmp_path / "real", COLUMNS)


def test_defaults_and_what_only_measures_are_not_part_of_a_key():
    """So that a setting may be added later, or taken away, and stored runs remain."""
    spec = {"arm": "GRPO", **asdict(TrainConfig(rollouts=30))}
    fewer = {n: v for n, v in spec.items() if n not in ("router_rate", "top_p")}
    assert key(fewer) == key(spec)
    for name in store.MEASURING:
        assert key({**spec, name: 7}) == key(spec)
    for other in ({"router_rate": 2.0}, {"rollouts": 40}, {"arm": "GSPO"}):
        assert key({**spec, **other}) != key(spec)


def test_a_rule_that_is_renamed_leaves_stored_runs_their_names(tmp_path):
    """`max_rollout_weight` is read as it is called now; a band stays a pair."""
    cap, band = {"token_truncate": 2.0}, {"token_mask": (0.5, 5.0), "sampler_delay": 4}
    now = {"arm": "GRPO", "changed": cap, "corrections": cap}
    was = {"max_rollout_weight": 2.0}
    assert store.run_spec(now) == {"arm": "GRPO", "changed": was, **was}
    with Store(tmp_path / "real", COLUMNS) as kept:
        kept.add(now, ROWS, ABOUT)
        kept.add({"arm": "GRPO", "changed": band}, ROWS, ABOUT)
    assert read(tmp_path / "real")[0]["changed"].tolist() == [cap, band]
    stored = read(STORED)[0]
    late = stored[stored["max_rollout_weight"].notna()]
    assert len(late) == 100
    for line in late.itertuples():
        changed = tuple(sorted(line.changed.items()))
        cell = line.arm, line.rate, line.updates, line.world, changed, line.answers
        assert key(spec(Cell(*cell), line.start, line.seed)) == line.run


def test_no_default_that_stored_runs_rest_on_has_changed():
    """Whoever changes one renames every stored run that has it (`store.key`), or makes
    these runs anew. A new setting has the digest changed here, and nothing else."""
    defaults = json.dumps(asdict(TrainConfig()), sort_keys=True)
    assert sha256(defaults.encode()).hexdigest()[:12] == "f289d7bda8d4"
