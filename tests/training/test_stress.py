"""The stress command: its arms are what they say, and it goes on where it stopped."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from refimpl.experiments import arms, stress
from tests.worlds import SMALL, TOKENIZER, warm_model

STORED = Path(__file__).parents[2] / "figures" / "data" / "stress.csv"


def test_every_arm_can_run_in_every_setting():
    for arm in arms.ARMS.values():
        algorithm, changed = arm.build()
        for setting in stress.SETTINGS.values():
            config = replace(setting, **changed)
            config.check(algorithm)
            completed = config.completed(algorithm)
            assert completed.updates_per_rollout == 16
            assert not completed.dynamic_sampling and not completed.overlong_share


class InProcess:
    """A pool of no processes, so that a run is short and can be watched."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)


@pytest.fixture
def done(monkeypatch):
    """Runs of two rollouts, 16 responses each; a list of those that were made."""
    jobs, run = [], stress._run
    monkeypatch.setattr(stress, "ProcessPoolExecutor", InProcess)
    monkeypatch.setattr(stress, "_run", lambda job: jobs.append(job) or run(job))
    monkeypatch.setattr(stress, "_start", lambda _: (warm_model(), TOKENIZER, []))
    for name in ("hard", "mild"):
        rate = stress.SETTINGS[name].learning_rate
        monkeypatch.setitem(
            stress.SETTINGS, name, replace(SMALL, rollouts=2, learning_rate=rate)
        )
    return jobs


ARMS = ["GRPO", "PPO"]


def test_a_run_leaves_a_row_for_every_rollout(tmp_path, done):
    out = tmp_path / "new" / "stress.csv"
    stress.stress(out, ARMS, ["hard", "mild"], seeds=2)
    rows = stress.read(out)
    assert done == [(s, a, n) for s in ("hard", "mild") for a in ARMS for n in (0, 1)]
    assert [row["step"] for row in rows] == ["0", "1"] * 8
    assert list(rows[0]) == ["setting", "arm", "seed", *stress.COLUMNS]
    found = stress.final(rows, "hard")
    assert {arm: len(values) for arm, values in found.items()} == {"PPO": 2, "GRPO": 2}
    one, other = (
        stress.column(rows, name, "GRPO", "reward") for name in ("hard", "mild")
    )
    assert [column[0] for column in one] == [column[0] for column in other]
    assert one != other  # the settings act


def test_what_is_in_the_file_is_not_run_again(tmp_path, done):
    out = tmp_path / "stress.csv"
    stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    before = out.read_text(encoding="utf-8")
    done.clear()
    stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    assert done == [] and out.read_text(encoding="utf-8") == before
    stress.stress(out, ARMS, ["hard"], seeds=2)
    assert done == [("hard", "GRPO", 1), ("hard", "PPO", 0), ("hard", "PPO", 1)]
    assert out.read_text(encoding="utf-8").startswith(before)
    assert stress.read(tmp_path / "none.csv") == []


CUTS = {
    "in the last line": lambda text: text[:-20],
    "before the last newline": lambda text: text[:-1],
    "after the first rollout": lambda text: text[: text[:-1].rindex("\n") + 1],
    "a rollout from the midst": lambda text: "".join(
        line for i, line in enumerate(text.splitlines(keepends=True)) if i != 3
    ),
    "all but the header": lambda text: text[: text.index("\n") + 1],
    "in the header": lambda text: "",
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_that_was_cut_off_is_made_again(cut, tmp_path, done):
    """Neither counted as done nor glued to the next one."""
    out = tmp_path / "stress.csv"
    stress.stress(out, ARMS, ["hard"], seeds=1)
    whole, text = stress.read(out), out.read_text(encoding="utf-8")
    out.write_text(CUTS[cut](text), encoding="utf-8")
    done.clear()
    stress.stress(out, ARMS, ["hard"], seeds=1)
    assert len(done) == (2 if "header" in cut else 1)
    assert sorted(map(str, stress.read(out))) == sorted(map(str, whole))
    assert len(out.read_text(encoding="utf-8").splitlines()) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["stress.csv"]


def test_rows_of_a_setting_that_is_not_known_here_stay(tmp_path, done):
    out = tmp_path / "stress.csv"
    stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    mine = out.read_text(encoding="utf-8").splitlines()[-1].replace("hard", "mine")
    with out.open("a", encoding="utf-8") as file:
        file.write(mine + "\nhard,PPO,0,cut")
    stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == mine and len(lines) == 4


def test_another_file_is_refused_and_left_alone(tmp_path, done):
    out = tmp_path / "notes.csv"
    out.write_text("setting,arm\nhard,GRPO\n")
    with pytest.raises(ValueError, match=r"notes\.csv was not written by stress"):
        stress.stress(out, ["GRPO"], ["hard"], seeds=1)
    assert out.read_text() == "setting,arm\nhard,GRPO\n" and done == []


def test_a_run_that_ends_early_is_named_and_not_stored(tmp_path, done, monkeypatch):
    """A part of a run would look like a run; leaving it out in silence, like luck."""
    train = stress.train

    def diverges(algorithm, **arguments):
        history = train(algorithm, **arguments)
        if algorithm.name == "ppo":
            history.rows.pop()
            history.ended = FloatingPointError("stopped after 1 of 2 rollouts: inf")
        return history

    monkeypatch.setattr(stress, "train", diverges)
    out = tmp_path / "stress.csv"
    with pytest.warns(UserWarning, match=r"not stored: hard, PPO, 0 stopped after 1"):
        stress.stress(out, ["PPO", "GRPO"], ["hard"], seeds=1)
    assert {row["arm"] for row in stress.read(out)} == {"GRPO"}
    assert len(done) == 2


@pytest.mark.parametrize(
    ("arms", "settings"), [(["GROP"], ["hard"]), (["GRPO"], ["tough"])]
)
def test_an_unknown_arm_or_setting_is_named_before_any_work(arms, settings, tmp_path):
    with pytest.raises(ValueError, match=r"unknown '(GROP|tough)'; one of: "):
        stress.stress(tmp_path / "stress.csv", arms, settings)
    assert not (tmp_path / "stress.csv").exists()


def test_an_arm_that_needs_routers_is_refused_on_a_dense_model(tmp_path):
    with pytest.raises(ValueError, match=r"RSPO need a mixture of experts: .* hard"):
        stress.stress(tmp_path / "stress.csv", ["GRPO", "RSPO"], ["moe-hard", "hard"])
    assert not (tmp_path / "stress.csv").exists()
    needed = {n for n, arm in arms.ARMS.items() if needs_routers(arm)}
    assert needed == arms.NEED_MOE


def needs_routers(arm) -> bool:
    algorithm, changed = arm.build()
    return bool(replace(stress.HARD, **changed).completed(algorithm).needs_moe)


def test_stored_runs_are_read_by_arm_and_by_seed():
    def row(arm, seed, step, accuracy, reward, setting="hard"):
        own = {"setting": setting, "arm": arm, "seed": seed, "step": step}
        return {**own, "accuracy": accuracy, "reward": reward}

    rows = [
        row("SAPO 8.8", "0", "0", "", "0.3"),
        row("SAPO 8.8", "0", "29", "0.5", "0.6"),
        row("GRPO", "1", "0", "", "0.1"),
        row("GRPO", "1", "29", "0.7", "0.2"),
        row("GRPO", "0", "29", "0.9", "0.8"),
        row("GRPO", "0", "29", "0.1", "0.4", setting="mild"),
    ]
    assert stress.final(rows, "hard") == {"GRPO": [0.7, 0.9], "SAPO 8.8": [0.5]}
    assert list(stress.final(rows, "hard")) == ["GRPO", "SAPO 8.8"]  # as in ARMS
    assert stress.column(rows, "hard", "GRPO", "reward") == [[0.1, 0.2], [0.8]]
    assert stress.column(rows, "hard", "GRPO", "reward", 1) == [[0.1], [0.8]]


def test_a_cell_that_is_empty_is_nan():
    """Accuracy is measured every few rollouts."""
    rows = [
        {"setting": "hard", "arm": "GRPO", "seed": "0", "step": str(i), "accuracy": a}
        for i, a in enumerate(["", "0.5", ""])
    ]
    ((first, second, third),) = stress.column(rows, "hard", "GRPO", "accuracy")
    assert math.isnan(first) and second == 0.5 and math.isnan(third)


def test_every_stored_run_is_whole_and_known():
    rows = stress.read(STORED)
    steps = {}
    for row in rows:
        assert row["arm"] in arms.ARMS
        key = row["setting"], row["arm"], row["seed"]
        steps.setdefault(key, []).append(int(row["step"]))
    for (setting, _, _), seen in steps.items():
        assert seen == list(range(stress.SETTINGS[setting].rollouts))
