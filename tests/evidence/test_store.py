"""Stored runs: named by what made them, added whole, each once."""

import json
import sqlite3
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import store
from experiments.experiment import Experiment
from experiments.grid import RUNS
from experiments.outcomes import CELL
from experiments.store import Store, key, read
from refimpl import TrainConfig, UserError

SPEC = {"arm": "GRPO", "seed": 0, "learning_rate": 3e-4, "behaviour": "b"}
ROWS = [{"step": 0.0, "reward": 0.25}, {"step": 1.0, "reward": 1 / 3, "accuracy": 0.5}]
ABOUT = {"weights": "w", "commit": "abc", "seconds": "1.5"}
COLUMNS = ["step", "reward", "accuracy", "credit, 4"]
STORED = Path(__file__).parents[2] / "figures" / "data" / "evidence"


def filled(tmp_path, runs=2) -> Path:
    with Store(tmp_path / "real", COLUMNS) as kept:
        for seed in range(runs):
            kept.add({**SPEC, "seed": seed}, ROWS, ABOUT)
    return kept.path


def test_what_is_added_is_read_again(tmp_path):
    store.paths(tmp_path / "new")[-1].touch()  # a process that was killed at once
    assert store.stored(tmp_path / "new") == {}
    store.paths(tmp_path / "new")[-1].unlink()
    out = filled(tmp_path)
    runs, rows = read(out)
    assert runs["seed"].tolist() == [0, 1] and runs["arm"].tolist() == ["GRPO"] * 2
    assert runs["commit"].tolist() == ["abc"] * 2
    assert set(runs["run"]) == set(rows["run"]) == store.done(out)
    assert rows["reward"].tolist() == [0.25, 0.333333] * 2
    assert rows["accuracy"].isna().tolist() == [True, False] * 2
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    Store(out, COLUMNS).close()  # which leaves it alone
    store.export(out, store.stored(out).values())  # the same runs are the same bytes
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_an_experiment_makes_what_its_store_lacks(tmp_path):
    made = []

    def run(job):
        made.append(job["seed"])
        return ROWS, ABOUT

    own, out = Experiment(), tmp_path / "real"
    own.columns, own.run, own.check = COLUMNS, run, lambda job: None
    own.spec = lambda job: {**SPEC, **job}
    for seeds in (range(2), range(1, 4)):  # the second time, two are new
        own.fill(out, [{"seed": seed} for seed in seeds])
    assert made == read(out)[0]["seed"].tolist() == [0, 1, 2, 3]


def test_a_key_names_configuration_salt_weights_and_behaviour(monkeypatch):
    known = {**SPEC, "begins": "b0121a88"}
    assert key(known) == key(dict(reversed(known.items())))  # in any order
    others = [{"learning_rate": 2.1e-4}, {"begins": "ff"}, {"behaviour": "c"}]
    keys = {key({**known, **other}) for other in ({}, *others)}
    monkeypatch.setenv("REFIMPL_SALT", "3")
    assert len(keys | {key(known)}) == 5


MOMENTS = "add", "killed", "killed between", "killed late", "closed"


@given(moments=st.lists(st.sampled_from(MOMENTS)))
def test_what_was_added_is_found_however_a_process_ends(tmp_path_factory, moments):
    """Before it exports, between the two files, after that with the database still
    there, or as it should."""
    out, added = tmp_path_factory.mktemp("store") / "real", []
    kept = Store(out, COLUMNS)
    for moment in moments:
        if moment == "add":
            kept.add({**SPEC, "seed": len(added)}, ROWS, ABOUT)
            added.append(len(added))
        else:
            if moment in ("killed between", "killed late") and added:
                lines = store.paths(out)[0]
                before = lines.read_bytes() if lines.exists() else None
                store.export(out, store.stored(out).values())
                if moment == "killed between":
                    lines.write_bytes(before) if before else lines.unlink()
            kept.close() if moment == "closed" else kept.lock.release()
            assert moment != "closed" or not store.paths(out)[-1].exists()
            kept = Store(out, COLUMNS)
        if added:
            runs, rows = read(out)
            assert runs["seed"].tolist() == added and len(rows) == 2 * len(added)
            assert rows["reward"].tolist() == [0.25, 0.333333] * len(added)
    kept.lock.release()


def test_one_process_at_a_time_adds_runs_and_each_once(tmp_path):
    out = filled(tmp_path)
    with Store(out, COLUMNS) as first:
        with pytest.raises(UserError, match=r"another process is adding runs"):
            Store(out, COLUMNS)
        first.add({**SPEC, "seed": 2}, ROWS, ABOUT)
        with pytest.raises(sqlite3.IntegrityError):
            first.add({**SPEC, "seed": 2}, ROWS[:1], ABOUT)
        assert len(read(out)[1]) == 6, "what is added can be read at once"
    store.paths(out)[1].write_bytes(b"not packed")
    for _ in range(2):  # what is refused takes no lock along
        with pytest.raises(UserError, match="are damaged"):
            Store(out, COLUMNS)


def test_files_with_other_columns_are_refused(tmp_path):
    out = filled(tmp_path)
    for columns, differ in ((COLUMNS[:2], "accuracy"), (COLUMNS[::-1], "their order")):
        with pytest.raises(UserError, match=f"these differ: {differ}"):
            Store(out, columns)


def test_defaults_are_not_part_of_a_key():
    """So that a setting may be added later, or taken away, and stored runs remain."""
    spec = {"arm": "GRPO", **asdict(TrainConfig(rollouts=30))}
    fewer = {n: v for n, v in spec.items() if n not in ("router_rate", "top_p")}
    assert key(fewer) == key(spec)
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
    for line in late.to_dict("records"):
        assert RUNS.key({n: line[n] for n in (*CELL, "start", "seed")}) == line["run"]


def test_no_default_that_stored_runs_rest_on_has_changed():
    """Whoever changes one renames every stored run that has it (`store.key`), or makes
    these runs anew. A new setting has the digest changed here, and nothing else."""
    defaults = json.dumps(asdict(TrainConfig()), sort_keys=True)
    assert sha256(defaults.encode()).hexdigest()[:12] == "d2e82f1f2d8e"
