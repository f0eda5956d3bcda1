"""Stored runs: named by what made them, added whole, never mixed."""

import csv
import json
from dataclasses import asdict

import pytest

from refimpl.config import TrainConfig
from refimpl.lab import store
from refimpl.lab.store import Store, bare, key, read

SPEC = {"arm": "GRPO", "seed": 0, "learning_rate": 2e-4}
ROWS = [{"step": 0.0, "reward": 0.25}, {"step": 1.0, "reward": 1 / 3, "accuracy": 0.5}]
ABOUT = {"code": "c", "commit": "abc", "seconds": "1.5"}
COLUMNS = ["step", "reward", "accuracy"]


def filled(tmp_path, runs=2):
    kept = Store(tmp_path / "real", COLUMNS)
    for seed in range(runs):
        kept.add({**SPEC, "seed": seed}, ROWS, ABOUT)
    return kept


def test_what_is_added_is_read_again(tmp_path):
    kept = filled(tmp_path)
    runs, rows = read(tmp_path / "real")
    assert runs["seed"].tolist() == [0, 1] and runs["arm"].tolist() == ["GRPO"] * 2
    assert runs["commit"].tolist() == ["abc"] * 2
    assert set(rows["run"]) == set(runs["run"]) == kept.done()
    assert rows["reward"].tolist() == [0.25, 0.333333] * 2
    assert rows["accuracy"].isna().tolist() == [True, False] * 2


def test_a_key_names_configuration_salt_and_code(monkeypatch):
    own = key(SPEC)
    assert own == key(dict(reversed(SPEC.items())))  # in any order
    assert own != key({**SPEC, "learning_rate": 2.1e-4})
    monkeypatch.setenv("REFIMPL_SALT", "3")
    assert own != key(SPEC)
    monkeypatch.delenv("REFIMPL_SALT")
    monkeypatch.setattr(store, "code", lambda: "another")
    assert own != key(SPEC)


def test_words_about_the_code_are_not_code():
    one = '"""What."""\n\ndef f(x):  # why\n    """How.\n\n    At length.\n    """\n'
    one += '    y = "# no comment"\n\n    return x + 1\n'
    other = 'def f(x):\n    "Otherwise."\n    y = "# no comment"\n    return x + 1\n'
    assert (
        bare(one)
        == bare(other)
        == ('def f(x):\n    y = "# no comment"\n    return x + 1')
    )
    assert bare(one) != bare(one.replace("x + 1", "x + 2"))


def test_the_code_of_every_loss_is_in_the_hash(monkeypatch, tmp_path):
    before = store.code.__wrapped__()
    for part in store.LOSSES:
        path = store.PACKAGE / part
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            copy = tmp_path / file.relative_to(store.PACKAGE)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(file.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(store, "PACKAGE", tmp_path)
    assert store.code.__wrapped__() == before
    sapo = tmp_path / "algorithms" / "sapo.py"
    sapo.write_text(sapo.read_text("utf-8").replace("4 /", "5 /"), "utf-8")
    changed = store.code.__wrapped__()
    assert changed != before, "the edit must have changed something"


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_rows_cut_off_are_dropped_and_the_rest_is_kept(tmp_path, lost):
    kept = filled(tmp_path)
    kept.runs_path.write_text("".join(kept.runs_path.open().readlines()[:2]))
    rows = kept.rows_path.read_bytes()
    kept.rows_path.write_bytes(rows[:-lost])
    again = Store(tmp_path / "real", COLUMNS)
    assert again.dropped == ["real.rows.csv.gz: rows cut off in the middle"]
    assert len(again.done()) == 1
    again.add({**SPEC, "seed": 1}, ROWS, ABOUT)
    runs, found = read(tmp_path / "real")
    assert runs["seed"].tolist() == [0, 1] and len(found) == 4


def test_a_line_cut_off_is_dropped_and_its_rows_do_not_count_twice(tmp_path):
    kept = filled(tmp_path)
    text = kept.runs_path.read_bytes()
    kept.runs_path.write_bytes(text[:-5])
    again = Store(tmp_path / "real", COLUMNS)
    assert again.dropped == [
        "real.runs.csv: a line cut off in the middle",
        "real.rows.csv.gz: rows of a run that has no line",
    ]
    assert len(read(tmp_path / "real")[1]) == 2  # of the run that has its line
    again.add({**SPEC, "seed": 1}, [{**ROWS[0], "reward": 0.75}], ABOUT)  # one row
    runs, rows = read(tmp_path / "real")
    assert runs["seed"].tolist() == [0, 1]
    second = rows[rows["run"] == key({**SPEC, "seed": 1})]
    assert second["reward"].tolist() == [0.75]


@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("lines", [None, 0, 10])
def test_a_store_killed_in_its_very_first_run_begins_anew(rows, lines, tmp_path):
    """Before even a first line was whole: `lines` bytes of one file, `rows` of one."""
    kept = filled(tmp_path)
    kept.rows_path.write_bytes(kept.rows_path.read_bytes()[:rows])
    text = kept.runs_path.read_bytes()
    kept.runs_path.unlink()
    if lines is not None:
        kept.runs_path.write_bytes(text[:lines])
    again = Store(tmp_path / "real", COLUMNS)
    assert again.done() == set()
    again.add(SPEC, ROWS, ABOUT)
    runs, found = read(tmp_path / "real")
    assert len(runs) == 1 and found["reward"].tolist() == [0.25, 0.333333]


def test_a_whole_store_is_left_alone(tmp_path):
    kept = filled(tmp_path)
    before = [kept.runs_path.read_bytes(), kept.rows_path.read_bytes()]
    assert Store(tmp_path / "real", COLUMNS).dropped == []
    assert before == [kept.runs_path.read_bytes(), kept.rows_path.read_bytes()]


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "real.runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="was not written by this version's runs"):
        Store(tmp_path / "real", COLUMNS).done()


def test_nothing_stored_says_which_file_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"no runs are stored at .*real.runs.csv"):
        read(tmp_path / "real")


def test_provenance_says_where_and_with_what(monkeypatch):
    said = store.provenance()
    assert set(said) | {"run", "spec", "seconds", "ended"} == set(store.HEAD)
    assert all(said[name] for name in ("code", "torch", "instructions", "processor"))
    line = next(csv.reader([",".join(["x", json.dumps(said["date"])])]))
    assert line[1].count("-") == 2


DEFAULTS = {
    "seed": 0,
    "rollouts": 40,
    "prompts_per_rollout": 16,
    "group_size": 8,
    "max_new_tokens": 48,
    "temperature": 1.0,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "dynamic_sampling": None,
    "max_sampling_rounds": 6,
    "overlong_share": None,
    "overlong_filtering": False,
    "rollout_dtype": None,
    "sampler_delay": 0,
    "trust_sampler": False,
    "router_noise": 0.0,
    "max_rollout_weight": None,
    "replay": None,
    "router_shift": None,
    "router_shift_floor": 0.7,
    "placement": "before_clip",
    "detach_shift": True,
    "router_rate": 1.0,
    "router_aux_loss": 0.001,
    "minibatches": 4,
    "epochs": 1,
    "micro_batch_size": 16,
    "share_prompts": None,
    "gradient_checkpointing": False,
    "optimizer": "adamw",
    "learning_rate": 0.0002,
    "warmup_updates": 0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "hyperparameters": {},
    "normaliser": None,
    "max_length": None,
    "entropy_bonus": 0.0,
    "beta": 0.0,
    "kl_in": "loss",
    "kl_estimator": "k3",
    "gamma": 1.0,
    "lam": 0.95,
    "critic_learning_rate": 0.001,
    "value_clip": 0.2,
    "eval_every": 10,
    "eval_problems": 256,
    "eval_samples": 1,
    "samples_every": 0,
    "measure_drift": False,
    "allow_on_policy": False,
    "device": "cpu",
    "dtype": "float32",
    "checkpoint_every": 10,
}


def test_a_setting_at_its_default_is_not_part_of_a_key():
    """So that one that is added later leaves stored runs what they are."""
    spec = {"arm": "GRPO", **asdict(TrainConfig(rollouts=30))}
    older = {name: value for name, value in spec.items() if name != "router_rate"}
    assert key(older) == key(spec)
    assert key({**spec, "router_rate": 2.0}) != key(spec)
    assert key({**spec, "rollouts": 40}) != key(spec)
    assert key({**spec, "arm": "GSPO"}) != key(spec)


def test_no_default_that_stored_runs_rest_on_has_changed():
    """Whoever changes one renames every stored run that has it (`store.key`), or makes
    these runs anew. A new setting is added here."""
    assert asdict(TrainConfig()) == DEFAULTS
