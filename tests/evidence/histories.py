"""Made histories of runs: healthy, or with one fault that begins at a known row.

Values are those of ordinary logs: a reward in 0..1, entropy in nats, lengths in tokens.
The noise of neighbouring rows is correlated, as it is where batches share prompts.
"""

import math
import random
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


def healthy(rows: int) -> dict[str, list[float]]:
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
    judged = enumerate(found["accuracy"])
    found["accuracy"] = [None if i % every else v for i, v in judged]
    return found


def rise(until: float, *after: tuple[float, float]) -> dict[str, tuple]:
    """Reward and accuracy rise up to this row, and then go through the points."""
    return dict.fromkeys(("reward", "accuracy"), ((0, 0.2), (until, 0.6), *after))


def collapse(n, at, dice):
    """The reward rises, stays, and falls; the accuracy with it."""
    return rise(0.6 * at, (at, 0.6), (at + dice.choice([1, 10, 30]), 0.06))


def certain(n, at, dice):
    """Entropy falls to nothing while the reward rises and then stays."""
    entropy = [0.001 + 0.58 * math.exp(-3 * i / at) for i in range(n)]
    return rise(at) | {"entropy": entropy}


def spike(n, at, dice):
    """One gradient a thousand times too large; one step later the reward is gone."""
    norms = [300.0 if i == at else 0.3 for i in range(n)]
    gone = {"entropy": ((at, 0.5), (at + 1, 2.5)), "grad_norm": norms}
    return rise(0.7 * at, (at, 0.6), (at + 1, 0.1)) | gone


def dead(n, at, dice):
    """The groups die, and the reward stays where it is from there on."""
    return rise(at) | {"frac_reward_zero_std": ((at, 0.15), (at + n / 20, 0.9))}


def late_sampler(n, at, dice):
    """The sampler keeps the weights of row `at`; later the reward falls."""
    apart = {"sampling/kl": ((at, 0.001), (n, 0.4))}
    return rise(0.8 * at, ((at + n) / 2, 0.6), (n, 0.2)) | apart


def hacked(n, at, dice):
    """The reward rises on, while the held-out accuracy falls."""
    judged = {
        "reward": ((0, 0.2), (n, 0.9)),
        "accuracy": ((0, 0.3), (at, 0.55), (n, 0.15)),
    }
    return judged | {"completions/mean_length": ((at, 200), (n, 330))}


def endless(n, at, dice):
    """Answers grow to the limit, where they are cut off."""
    end = at + 0.3 * (n - at)
    longer = {"completions/mean_length": ((at, 200), (end, 900))}
    longer["completions/clipped_ratio"] = ((at + end) / 2, 0.03), (end, 0.8)
    return rise(0.8 * at, (end, 0.6), (n, 0.3)) | longer


def wrong_sign(n, at, dice):
    return dict.fromkeys(("reward", "accuracy"), learns(n, 0.4, 0.05))


FALLS = ("reward rises, then falls", "reward falls", "held-out accuracy falls")
WORSE, MORE = "entropy grows without end", "many answers are cut off"
FAULTS = {
    "collapse": (collapse, "reward rises, then falls", FALLS[2:]),
    "certain": (certain, "entropy collapses", FALLS),
    "spike": (spike, "gradient norm spikes, or NaN", (WORSE, *FALLS)),
    "dead": (dead, "most groups are dead", FALLS),
    "late sampler": (late_sampler, "… more with every update", FALLS),
    "hacked": (hacked, "reward rises, accuracy does not", ("length grows",)),
    "endless": (endless, "length grows", (MORE, *FALLS)),
    "wrong sign": (wrong_sign, "reward falls", FALLS[2:]),
}
"""Faults, the row that names each, and rows that may follow, but not precede it."""


def history(fault: str | None, rows: int, part: float, seed: int) -> History:
    dice = random.Random(f"{fault} {rows} {part} {seed}")
    at, changes = int(part * rows), {}
    if fault:
        changes = FAULTS[fault][0](rows, at, dice)
    for name, x in changes.items():
        changes[name] = x if isinstance(x, list) else path(rows, *x)
    at = at if fault not in (None, "certain", "wrong sign") else 0
    return History(noisy(dice, healthy(rows) | changes), at)
