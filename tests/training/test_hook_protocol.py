"""A hook is f(run, step); one with `around` also has a beginning and an end."""

import contextlib

import pytest

from refimpl.checkpoint import NAME, Checkpoint, load
from tests.worlds import same_weights, small_run


class Clock:
    def __init__(self):
        self.said = []

    @contextlib.contextmanager
    def around(self, run):
        self.said.append(f"begins with {len(run.history)}")
        try:
            yield
        except ZeroDivisionError:
            self.said.append("failed")
            raise
        finally:
            self.said.append(f"ends with {len(run.history)}")

    def __call__(self, run, step):
        self.said.append(step)
        run.history.rows[-1]["clock"] = 1.0 / (3 - len(self.said))


def test_a_hook_may_have_a_beginning_and_an_end():
    clock = Clock()
    with pytest.raises(ZeroDivisionError):
        small_run(hooks=[clock])
    assert clock.said == ["begins with 0", 0, 1, "failed", "ends with 2"]


def test_a_checkpoint_is_a_hook_like_any_other(tmp_path):
    """Saved by one name, resumed by the other, and equal to a run in one piece."""
    first = small_run(rollouts=2, hooks=[Checkpoint(tmp_path)])
    assert (tmp_path / NAME).exists() and load(tmp_path)["rows"] == first.rows
    resumed = small_run(rollouts=3, checkpoint_dir=tmp_path, resume=True)
    again = small_run(rollouts=3)
    for row in (*resumed.rows, *again.rows):
        row["accuracy"] = None
    assert resumed == again and same_weights(resumed.model, again.model)
    # What ends before it began leaves no lock.
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        small_run(hooks=[Checkpoint(tmp_path)])
    small_run(rollouts=3, hooks=[Checkpoint(tmp_path, resume=True)])
