"""Results of several runs, as text."""

import math
import statistics
from collections.abc import Iterable, Iterator

from tqdm.auto import tqdm

from refimpl.run import Run

bars: list[tqdm] = []
"""The bars of `watched` that are shown, the innermost last."""


def watched(runs: Iterable, what: str = "runs") -> Iterator:
    """Yield `runs` one by one under a progress bar that disappears at the end.

    If the loop is interrupted, it says after how many.
    """
    done, every = 0, [*runs]
    bar = tqdm(every, desc=what, leave=False)
    bars.append(bar)
    try:
        for run in bar:
            yield run
            done += 1
    except GeneratorExit:
        print(f"stopped by you after {done} of {len(every)} {what}")
        raise
    finally:
        bars.remove(bar)


def count_rollouts(run: Run, step: int) -> None:
    """Say at the bar of `watched` which rollout of a run this was; a hook."""
    say_at_bar(f"rollout {step + 1} of {run.config.rollouts}")


def say_at_bar(text: str) -> None:
    """Write a text behind the bar of `watched`, if there is one."""
    for bar in bars[-1:]:
        bar.set_postfix_str(text)


def of_runs(values: Iterable[float], digits: int = 2) -> str:
    """The median, lowest and highest, and how many: "0.94 (0.91 to 0.96, n = 3)".

    NaN counts as no run. Raises `ValueError` if nothing is left.
    """
    numbers = sorted(x for x in map(float, values) if not math.isnan(x))
    if not numbers:
        raise ValueError(
            "no run is finished: let the cell that trains go on to its end"
        )
    low, middle, high = (
        f"{x:.{digits}f}" for x in (numbers[0], statistics.median(numbers), numbers[-1])
    )
    return f"{middle} ({low} to {high}, n = {len(numbers)})"
