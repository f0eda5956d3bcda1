"""The tool that runs notebooks under other seeds: what it records, and what it says."""

import json

import pytest

from tests.other_runs import execute, print_report


def notebook(tmp_path, *cells, tags=()):
    head = {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": []}
    made = [{**head, "source": source} for source in cells]
    path = tmp_path / "99_made_up.ipynb"
    path.write_text(json.dumps({"cells": made}))
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Executes cells, and puts IPython and the working folder back."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    yield lambda *cells, **more: execute(notebook(tmp_path, *cells, **more))
    InteractiveShell.clear_instance()


def test_values_of_every_comparison_are_kept_and_a_failed_assert_goes_on(run):
    passed, failed = run(
        "a, b = 3.0, [1.0, 2.0]\nassert 2 < a < 4 and min(b) >= 0.5",
        "assert a > 5, 'no'",
    )["claims"]
    assert passed["claim"] == "2 < a < 4 and min(b) >= 0.5"
    assert [c["values"] for c in passed["compared"]] == [[2, 3], [3, 4], [1, 0.5]]
    assert [c["distance"] for c in passed["compared"]] == [1, 1, 0.5]
    assert (failed["cell"], passed["held"], failed["held"]) == (1, True, False)
    assert failed["compared"][0]["distance"] == -2


def test_tensors_generators_and_functions(run):
    made = run(
        "import torch\ndef check(x):\n    assert x > 0\n    return x",
        "assert all(x > 0.5 for x in torch.tensor([0.7, 0.9]))",
        "for i in range(2):\n    assert check(i + 1) < 3",
        "assert (torch.tensor([1.0, 2.0]) > 0).all() and 'a' in 'abc'",
    )
    first, *loops, last = made["claims"]
    distances = [c["distance"] for c in first["compared"]]
    assert distances == pytest.approx([0.2, 0.4])
    assert [row["compared"][0]["distance"] for row in loops] == [2, 1]
    assert last["held"] and last["compared"] == []
    (row,) = run("x = []\nassert not (x and x[0] > 1)")["claims"]
    assert row["held"] and row["compared"] == [], "a chain stops where python stops"


def test_an_error_ends_the_notebook_and_counts_as_a_failure(run):
    made = run("assert 1 < 2", "1 / 0", "assert 2 < 3")
    assert [row["held"] for row in made["claims"]] == [True, False]
    assert made["claims"][1]["claim"] == "ZeroDivisionError: division by zero"


def test_a_compared_output_that_differs_is_listed_and_an_ignored_one_is_not(run):
    assert run("print('new')", "pass")["changed"] == [0]
    assert run("print('new')", tags=["nbval-ignore-output"])["changed"] == []


def records(*values):
    """Runs in which the claim `x > 1` met these values of x."""
    every = []
    for i, x in enumerate(values):
        compared = [{"text": "x > 1", "values": [x, 1], "distance": x - 1}]
        claim = {"cell": 4, "claim": "x > 1", "held": x > 1, "compared": compared}
        of_run = {"notebook": "00_start_here", "run": f"salt {i}", "changed": []}
        every.append({**of_run, "claims": [claim]})
    return every


def test_the_report_says_how_near_a_claim_came_to_failing(capsys):
    assert print_report(records(3.0, 2.0, 4.0)) == 0
    printed = capsys.readouterr().out
    assert "cell  4  x > 1" in printed
    assert "nearest +1 (1.0 sd)   3/1  2/1  4/1" in printed
    assert print_report(records(3.0, 0.5)) == 1
    assert "FAILED in salt 1" in capsys.readouterr().out
