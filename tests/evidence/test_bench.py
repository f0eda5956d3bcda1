"""The bench: what it makes of runs that arrived and of runs that did not."""

import json

import pytest

from refimpl import History
from refimpl.lab import bench


def run_of(*accuracies) -> History:
    """Measured every two rollouts, of a second each."""
    measured = [x for accuracy in accuracies for x in (None, accuracy)]
    return History("grpo", [{"step_time": 1.0, "accuracy": a} for a in measured])


FAST, SLOW, NEVER = run_of(0.9, 0.9), run_of(0.5, 0.92), run_of(0.5, 0.6)


@pytest.mark.parametrize(
    ("runs", "arrived", "rollouts"),
    [
        ((NEVER, FAST, SLOW), 2, 4),  # who never arrives takes longer than who does
        ((FAST,), 1, 2),  # at exactly 90 %
        ((NEVER,), 0, None),
        ((NEVER, NEVER, FAST), 1, None),
        ((NEVER, FAST), 1, None),
    ],
)
def test_rollouts_to_ninety_per_cent(runs, arrived, rollouts, monkeypatch):
    left = list(runs)
    monkeypatch.setattr(bench, "train", lambda *_, **__: left.pop(0))
    figures = json.loads(json.dumps(bench.training("grpo", None, None, len(runs))))
    assert figures["grpo: runs that reached 0.90"] == arrived
    assert figures["grpo: rollouts to 0.90 (measured every 2)"] == rollouts
    assert figures["grpo: seconds to 0.90"] == rollouts
    assert figures["grpo: accuracy, worst seed"] == min(run.accuracy for run in runs)
