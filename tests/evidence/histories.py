"""Made histories of runs: healthy, or with one fault that begins at a known row.

Values are those of ordinary logs: a reward in 0..1, entropy in nats, lengths in tokens.
The noise of neighbouring rows is correlated, as it is where batches share prompts.
"""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

Series = list[float | None]
EVALUATIONS = 25


class History(NamedTuple):
    columns: dict[str, Series]
    at: int
    """The row from which the fault can be seen."""


def wiggle(dice: random.Random, rows: int, size: float) -> list[float]:
    """Noise of standard deviation `size`; neighbours correlate by 0.4."""
    x, noise = 0.0, []
    for _ in range(rows):
        x = 0.4 * x + dice.gauss(0, size * math.sqrt(1 - 0.4**2))
        noise.append(x)
    return noise


def path(rows: int, *points: tuple[float, float]) -> list[float]:
    """Straight lines through (row, value), level outside them."""
    found = []
    for i in range(rows):
        after = next((k for k, (row, _) in enumerate(points) if row > i), len(points))
        if after in (0, len(points)):
            found.append(points[min(after, len(points) - 1)][1])
        else:
            (a, x), (b, y) = points[after - 1 : after + 1]
            found.append(x + (y - x) * (i - a) / (b - a))
    return found


def learns(rows: int, low: float, high: float, part: float = 0.3) -> list[float]:
    """From low to high, 1 − 1/e of the way in `part` of the rows."""
    return [high + (low - high) * math.exp(-i / (part * rows)) for i in range(rows)]


def healthy(dice: random.Random, rows: int) -> dict[str, list[float]]:
    return {
        "reward": learns(rows, 0.2, 0.7),
        "accuracy": learns(rows, 0.25, 0.65),
        "entropy": learns(rows, 0.6, 0.3),
        "completions/mean_length": learns(rows, 200, 280),
        "completions/clipped_ratio": [0.03] * rows,
        "frac_reward_zero_std": learns(rows, 0.1, 0.3),
        "kl": learns(rows, 0.0, 0.06, 0.6),
        "grad_norm": [0.3] * rows,
        "sampling/kl": [0.001] * rows,
        "clip_ratio/region_mean": [0.004] * rows,
    }


def noisy(dice: random.Random, columns: dict[str, list[float]]) -> dict[str, Series]:
    """Add noise, within 0..1 or above 0, and evaluate now and then."""
    found: dict[str, Series] = {}
    for name, x in columns.items():
        share = name in ("reward", "accuracy", "frac_reward_zero_std")
        if share or name == "completions/clipped_ratio":
            size = 0.02 if name in ("accuracy", "completions/clipped_ratio") else 0.04
            noise = wiggle(dice, len(x), size)
            found[name] = [
                min(1.0, max(0.0, v + e)) if 0 < v < 1 else v for v, e in zip(x, noise)
            ]
        else:
            noise = wiggle(dice, len(x), 0.3 if name == "grad_norm" else 0.08)
            found[name] = [v * math.exp(e) for v, e in zip(x, noise)]
    every = max(1, len(found["reward"]) // EVALUATIONS)
    found["accuracy"] = [
        v if i % every == 0 else None for i, v in enumerate(found["accuracy"])
    ]
    return found


Fault = Callable[[dict[str, list[float]], random.Random, int], int | None]


def collapse(run, dice, at):
    """The reward rises, stays, and falls; accuracy and entropy with it."""
    n, gone = len(run["reward"]), at + dice.choice([1, 10, 30])
    run["reward"] = path(n, (0, 0.2), (0.6 * at, 0.65), (at, 0.65), (gone, 0.08))
    run["accuracy"] = path(n, (0, 0.2), (0.6 * at, 0.6), (at, 0.6), (gone, 0.05))
    return at


def certain(run, dice, at):
    """Entropy falls to nothing while the reward rises and then stays."""
    n = len(run["reward"])
    run["reward"] = path(n, (0, 0.25), (at, 0.6))
    run["accuracy"] = path(n, (0, 0.25), (at, 0.5))
    run["entropy"] = [0.001 + 0.58 * math.exp(-3 * i / at) for i in range(n)]
    return 0


def spike(run, dice, at):
    """One gradient a thousand times too large; one step later the reward is gone."""
    n = len(run["reward"])
    run["grad_norm"][at] *= 1000
    run["reward"] = path(n, (0, 0.2), (0.7 * at, 0.6), (at, 0.6), (at + 1, 0.1))
    run["accuracy"] = path(n, (0, 0.2), (0.7 * at, 0.6), (at, 0.6), (at + 1, 0.1))
    run["entropy"] = path(n, (at, 0.5), (at + 1, 2.5))
    return at


def dead(run, dice, at):
    """The groups die, and the reward stays where it is from there on."""
    n = len(run["reward"])
    run["frac_reward_zero_std"] = path(n, (at, 0.15), (at + n / 20, 0.9))
    run["reward"] = path(n, (0, 0.2), (at, 0.5))
    run["accuracy"] = path(n, (0, 0.2), (at, 0.5))
    return at


def late_sampler(run, dice, at):
    """The sampler keeps the weights of row `at`; later the reward falls."""
    n = len(run["reward"])
    run["sampling/kl"] = path(n, (at, 0.001), (n, 0.4))
    bad = at + 0.5 * (n - at)
    run["reward"] = path(n, (0, 0.2), (0.8 * at, 0.6), (bad, 0.6), (n, 0.2))
    run["accuracy"] = path(n, (0, 0.2), (0.8 * at, 0.6), (bad, 0.6), (n, 0.2))
    return at


def hacked(run, dice, at):
    """The reward rises on, while the held-out accuracy falls."""
    n = len(run["reward"])
    run["reward"] = path(n, (0, 0.2), (n, 0.9))
    run["accuracy"] = path(n, (0, 0.3), (at, 0.55), (n, 0.15))
    run["completions/mean_length"] = path(n, (at, 200), (n, 330))
    return at


def endless(run, dice, at):
    """Answers grow to the limit, where they are cut off."""
    n = len(run["reward"])
    end = at + 0.3 * (n - at)
    run["completions/mean_length"] = path(n, (at, 200), (end, 900))
    run["completions/clipped_ratio"] = path(n, ((at + end) / 2, 0.03), (end, 0.8))
    run["reward"] = path(n, (0, 0.2), (0.8 * at, 0.6), (end, 0.6), (n, 0.3))
    run["accuracy"] = path(n, (0, 0.2), (0.8 * at, 0.6), (end, 0.6), (n, 0.3))
    return at


def wrong_sign(run, dice, at):
    n = len(run["reward"])
    run |= {"reward": learns(n, 0.4, 0.05), "accuracy": learns(n, 0.4, 0.05)}
    return 0


FALLS = ("reward rises, then falls", "reward falls", "held-out accuracy falls")
FAULTS: dict[str, tuple[Fault, str, tuple[str, ...]]] = {
    "collapse": (collapse, "reward rises, then falls", FALLS[2:]),
    "certain": (certain, "entropy collapses", FALLS),
    "spike": (
        spike,
        "gradient norm spikes, or NaN",
        ("entropy grows without end", *FALLS),
    ),
    "dead": (dead, "most groups are dead", FALLS),
    "late sampler": (late_sampler, "… more with every update", FALLS),
    "hacked": (hacked, "reward rises, accuracy does not", ("length grows",)),
    "endless": (endless, "length grows", ("many answers are cut off", *FALLS)),
    "wrong sign": (wrong_sign, "reward falls", FALLS[2:]),
}
"""Faults, the row that names each, and rows that may follow, but not precede it."""


def history(fault: str | None, rows: int, part: float, seed: int) -> History:
    dice = random.Random(f"{fault} {rows} {part} {seed}")
    columns = healthy(dice, rows)
    at = FAULTS[fault][0](columns, dice, int(part * rows)) if fault else 0
    return History(noisy(dice, columns), at)
