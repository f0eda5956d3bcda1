"""The tool that runs notebooks under other seeds: what it records, and what it says."""

import json

import pytest

from tests.tools.other_runs import execute


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Executes cells, and puts IPython and the working folder back."""
    from IPython.core.interactiveshell import InteractiveShell

    def made_up(*cells, tags=()):
        head = {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": []}
        path = tmp_path / "99_made_up.ipynb"
        path.write_text(json.dumps({"cells": [head | {"source": s} for s in cells]}))
        return execute(path)

    monkeypatch.chdir(tmp_path)
    yield made_up
    InteractiveShell.clear_instance()


def test_what_every_comparison_met_is_kept_up_to_an_error(run):
    """A chain stops where Python stops; a function's own asserts are left alone."""
    made = run(
        "a, b = 3.0, [1.0, 2.0]\nassert 2 < a < 4 and min(b) >= 0.5",
        "assert a > 5, 'no'",
        "def check(x):\n    assert x > 0\n    return 'a'\nassert check(1) in 'abc'",
        "import torch\nassert all(x > 0.5 for x in torch.tensor([0.75, 1]))",
        "b = []\nassert not (b and b[0] > 1)",
        "1 / 0",
        "assert 2 < 3",
    )["claims"]
    assert made[0]["claim"] == "2 < a < 4 and min(b) >= 0.5"
    assert [c["values"] for c in made[0]["compared"]] == [[2, 3], [3, 4], [1, 0.5]]
    distances = [[c["distance"] for c in row["compared"]] for row in made]
    assert distances == [[1, 1, 0.5], [-2], [], [0.25, 0.5], [], []]
    assert [row["held"] for row in made] == [True, False, True, True, True, False]
    assert made[1]["cell"] == 1
    assert made[-1]["claim"] == "ZeroDivisionError: division by zero"


def test_a_compared_output_that_differs_is_listed_and_an_ignored_one_is_not(run):
    assert run("print('new')", "pass")["changed"] == [0]
    assert run("print('new')", tags=["nbval-ignore-output"])["changed"] == []
