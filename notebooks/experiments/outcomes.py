"""Outcomes that claims are about: one line per run, computed from its stored rows.

    reward      mean training reward of the last ten rollouts, or of all if there are
                fewer: the primary outcome
    accuracy    on 1,024 held-out problems, after the last rollout
    to_80       rollouts until three in a row have a mean reward of 0.8 or more
    step_early  ‖Δθ‖ of a rollout, mean of the second to the fifth
    samples_80  answers sampled until then; `to_95` and `samples_95` likewise

The rollouts that a run lacks because it ended early count as reward 0. If 0.8 was never
reached, `to_80` is one more than the planned rollouts, and `samples_80` counts all.
"""

import numpy as np
import pandas as pd

TEN, IN_A_ROW = 10, 3
GOALS = {"80": 0.8, "95": 0.95}
MEANS = {
    "entropy": "entropy",
    "length": "completions/mean_length",
    "wrong_length": "length/wrong",
    "clipped": "clip_ratio/region_mean",
    "kl": "drift/kl",
}
"""Outcomes that are means of a column over the last ten rollouts, as is `spread`."""
WHOLE = {
    "within_small": "drift/within_small",
    "sampling_kl": "sampling/kl",
}
"""Means over all rollouts, since the last ones change little."""
EARLY = {
    "masked": "clip_ratio/region_mean",
    "expert_change": "router/expert_change",
    "good": "drift/good",
    "bad": "drift/bad",
}
"""Means over the first ten rollouts, before a run can have collapsed."""
AROUND = ("pass@1", "pass@8", "pass@64", "maj@8")
LATEST = {"accuracy": "accuracy"} | {
    f"{what} {when}": f"{when}/{what}"
    for when in ("before", "after")
    for what in AROUND
}
"""Outcomes that are values of the last row."""
CELL = ["arm", "world", "updates", "rate", "changed", "answers"]
"""Columns of the table that identify a cell. `start` and `seed` follow."""


def outcomes(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Make a table with one line per run: its cell, start, seed, and every outcome."""
    table = runs.set_index("run")
    changed = table["changed"].map(lambda c: tuple(sorted(dict(c).items())))
    weights = table["weights"].fillna("lost")
    named = [*CELL, "start", "weights", "seed", "rollouts", "ended"]
    table = table.assign(changed=changed, weights=weights)[named]
    columns = {name: rows[name].to_numpy(float) for name in rows if name != "run"}
    planned = table["rollouts"].to_dict()
    every = {
        name: _of_run({c: x[at] for c, x in columns.items()}, planned[name])
        for name, at in rows.groupby("run", sort=False).indices.items()
    }
    return table.join(pd.DataFrame.from_dict(every, orient="index"))


def _of_run(rows: dict[str, np.ndarray], rollouts: int) -> dict[str, float]:
    """Compute the outcomes of a run from its columns. `rollouts` were planned."""
    earned = rows["reward"][rows["step"] >= rollouts - TEN]
    result = {
        "reward": earned.sum() / min(TEN, rollouts),
        "area": rows["reward"].sum() / rollouts,
    }
    last, first = slice(-TEN, None), slice(TEN)
    for part, names in ((last, MEANS), (slice(None), WHOLE), (first, EARLY)):
        result |= {name: _mean(rows[column][part]) for name, column in names.items()}
    result["step_early"] = _mean(rows["drift/step"][1:5])  # rollouts 2 to 5
    result["spread"] = _mean((rows["log_ratio/q99"] - rows["log_ratio/q01"])[last])
    result |= {name: rows[column][-1] for name, column in LATEST.items()}
    for what in AROUND:
        result[f"{what} gained"] = result[f"{what} after"] - result[f"{what} before"]
    for name, goal in GOALS.items():
        good = rows["reward"] >= goal
        in_a_row = np.convolve(good, np.ones(IN_A_ROW))[: len(good)]
        there = np.flatnonzero(in_a_row == IN_A_ROW)
        result[f"to_{name}"] = there[0] + 1.0 if len(there) else rollouts + 1.0
        result[f"samples_{name}"] = rows["num_samples"][there[0] if len(there) else -1]
    return result


def _mean(values: np.ndarray) -> float:
    """Return the mean of the known values."""
    known = values[~np.isnan(values)]
    return known.mean() if len(known) else np.nan
