"""The bench: what it makes of runs that arrived and of runs that did not."""

import json
import math

import pytest

from refimpl.history import History
from refimpl.lab import bench


def run_of(*accuracies) -> History:
    """Measured every two rollouts, of a second each."""
    rows = [
        {"step": float(i), "step_time": 1.0, "accuracy": a if i % 2 else None}
        for i, a in enumerate(x for accuracy in accuracies for x in (None, accuracy))
    ]
    return History("grpo", rows)


FAST, SLOW, NEVER = run_of(0.95, 0.9), run_of(0.5, 0.92), run_of(0.5, 0.6)


def measured(monkeypatch, *runs) -> dict:
    left = list(runs)
    monkeypatch.setattr(bench, "train", lambda *_, **__: left.pop(0))
    return bench.training("grpo", None, None, len(runs))


def test_a_run_that_never_arrives_takes_longer_than_any_that_does(monkeypatch):
    figures = measured(monkeypatch, NEVER, FAST, SLOW)
    assert figures["grpo: runs that reached 0.90"] == 2
    assert figures["grpo: rollouts to 0.90 (measured every 2)"] == 4  # not 2, nor 3
    assert figures["grpo: seconds to 0.90"] == 4.0
    assert figures["grpo: accuracy, worst seed"] == 0.6


@pytest.mark.parametrize("runs", [(NEVER,), (NEVER, NEVER, FAST), (NEVER, FAST)])
def test_if_too_few_arrive_there_is_no_median(monkeypatch, runs):
    figures = measured(monkeypatch, *runs)
    assert figures["grpo: runs that reached 0.90"] == runs.count(FAST)
    assert figures["grpo: rollouts to 0.90 (measured every 2)"] is None
    assert figures["grpo: seconds to 0.90"] is None
    assert math.inf not in json.loads(json.dumps(figures)).values()


def test_arriving_at_exactly_ninety_per_cent_counts(monkeypatch):
    figures = measured(monkeypatch, run_of(0.9))
    assert figures["grpo: rollouts to 0.90 (measured every 2)"] == 2
