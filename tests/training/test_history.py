"""A history keeps every digit, in memory and in CSV."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.history import History, of_runs


def example() -> History:
    return History(
        "grpo",
        [
            {"step": 0.0, "reward": 0.1, "accuracy": None, "step_time": 1.5},
            {"step": 1.0, "reward": 1 / 3, "accuracy": 0.75, "step_time": 1.25},
            {"step": 2.0, "reward": -5e-324, "accuracy": 0.5, "step_time": 0.1},
        ],
    )


def changed(row: int, name: str, value) -> History:
    history = example()
    history.rows[row][name] = value
    return history


# Reading


def test_a_column_has_one_number_a_rollout_and_nan_where_there_is_none():
    history = example()
    assert len(history) == 3
    assert history["reward"] == [0.1, 1 / 3, -5e-324]
    assert math.isnan(history["accuracy"][0])
    assert history["accuracy"][1:] == [0.75, 0.5]


def test_columns_keep_their_order_and_one_that_comes_late_is_nan_before():
    history = changed(2, "kl", 0.25)
    assert history.columns == ["step", "reward", "accuracy", "step_time", "kl"]
    assert [math.isnan(value) for value in history["kl"]] == [True, True, False]


def test_a_missing_column_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match=r"'rewards'.*step, reward, accuracy"):
        example()["rewards"]


def test_accuracy_is_the_last_one_measured():
    assert example().accuracy == 0.5
    assert changed(2, "accuracy", None).accuracy == 0.75


def test_without_an_accuracy_there_is_a_sentence():
    for history in (History("grpo"), changed(1, "accuracy", None)):
        history.rows[2:] = []
        with pytest.raises(ValueError, match=r"no accuracy was measured in [02] roll"):
            history.accuracy  # noqa: B018


def test_reached_counts_rollouts_up_to_the_level():
    history = example()
    assert history.reached(0.75) == 2
    assert history.reached(0.4) == 2
    assert history.reached(0.76) is None
    assert history.reached(0.3, "reward") == 2


# Equality


def test_time_does_not_count_for_equality():
    assert changed(1, "step_time", 99.0) == example()


def test_everything_else_counts():
    assert example() == example()
    assert changed(1, "reward", math.nextafter(1 / 3, 1)) != example()
    assert changed(0, "accuracy", 0.0) != example()
    assert changed(0, "new", None) != example()
    assert History("ppo", example().rows) != example()
    assert History("grpo", example().rows[:2]) != example()
    assert example() != example().rows


def test_the_model_does_not_count_for_equality():
    assert History("grpo", example().rows, model=object()) == example()


# CSV


def test_csv_gives_the_same_history_back(tmp_path):
    history = example()
    history.to_csv(tmp_path / "run.csv")
    again = History.from_csv(tmp_path / "run.csv")
    assert again == history
    assert again.rows == history.rows  # the time too
    assert again.columns == history.columns


@given(
    values=st.lists(
        st.tuples(
            st.none() | st.floats(allow_nan=False), st.none() | st.floats(0, 1e-300)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_csv_keeps_every_digit(values, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "run.csv"
    history = History("ppo", [{"a": a, "b/c": b, "step": 0.0} for a, b in values])
    history.to_csv(path)
    assert History.from_csv(path).rows == history.rows


def test_a_missing_value_is_an_empty_field(tmp_path):
    example().to_csv(tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert lines[0] == "algorithm,step,reward,accuracy,step_time"
    assert lines[1] == "grpo,0.0,0.1,,1.5"


def test_csv_makes_its_folder_and_replaces_an_older_file(tmp_path):
    path = tmp_path / "deep" / "er" / "run.csv"
    changed(0, "reward", 9.0).to_csv(path)
    example().to_csv(path)
    assert History.from_csv(path) == example()
    assert [file.name for file in path.parent.iterdir()] == ["run.csv"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    class Broken:
        def __repr__(self):
            raise RuntimeError("no text")

    path = tmp_path / "run.csv"
    example().to_csv(path)
    with pytest.raises(RuntimeError, match="no text"):
        changed(2, "reward", Broken()).to_csv(path)
    assert History.from_csv(path) == example()


BAD = {
    "empty": "",
    "header only": "algorithm,step,reward\n",
    "no algorithm": "step,reward\n0.0,0.5\n",
    "words": "algorithm,step,reward\ngrpo,0.0,good\n",
    "too many fields": "algorithm,step\ngrpo,0.0,0.5\n",
    "cut off": "algorithm,step,reward\ngrpo,0.0,0.5\ngrpo,1.0\n",
    "prose": "Dear reader,\nthis is no table.\n",
    "two runs": "algorithm,step\ngrpo,0.0\nppo,1.0\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_that_is_no_history_is_refused(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.csv is not a history"):
        History.from_csv(path)


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"bad\.csv is not a history"):
        History.from_csv(path)


def test_a_missing_file_is_no_history(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.csv is not a history"):
        History.from_csv(tmp_path / "nowhere.csv")


# Several runs in a line


def test_several_runs_are_their_median_their_ends_and_their_number():
    assert of_runs([0.9, 0.5, 0.96, 0.95]) == "0.93 (0.50 to 0.96, n = 4)"
    assert of_runs(iter([3, 1, 2]), 0) == "2 (1 to 3, n = 3)"


def test_a_value_that_does_not_exist_is_no_run():
    assert of_runs([math.nan, 0.25], 3) == "0.250 (0.250 to 0.250, n = 1)"
    with pytest.raises(ValueError, match="at least one number that is not NaN"):
        of_runs([math.nan])
