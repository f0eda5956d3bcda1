"""One answer per prompt and a critic, or a group? SAO's claim at equal answers.

`python -m experiments.one_answer`, called in `notebooks/`, makes the runs that the
store `figures/data/one_answer` does not hold yet, and prints the verdicts.

All of this was fixed before the runs. Every rollout has 128 answers and 4 updates, and
every arm has GLM-5's loss with SAO's bounds; only the advantage differs. The outcome is
the mean held-out accuracy over a run (ten evaluations), which no run can censor. An arm
is compared with `GROUP`, by warm start, each at the better of two learning rates. A
difference below 0.05 does not matter. We expect an arm with a fresh critic to be behind
at first, when it is REINFORCE with the batch's mean, and make no forecast of the end.
"""

import functools
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments.effects import verdict
from experiments.experiment import Experiment, command
from experiments.grid import FIVE, nested
from experiments.statistics import Estimate, estimate
from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig

STARTS, RATES, SMALLEST = FIVE, (2e-4, 4e-4), 0.05
GROUP, ONE = "16 × 8, group", "128 × 1, critic"
EIGHT = {"prompts_per_rollout": 16, "group_size": 8}
ALONE = {"prompts_per_rollout": 128, "group_size": 1}
BOUNDS = {"hyperparameters": {"epsilon_low": 0.3, "epsilon_high": 5.0}}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    GROUP: ("glm5", EIGHT | BOUNDS),
    ONE: ("sao", ALONE),
    "128 × 1, critic, 10 rollouts ahead": ("sao", ALONE | {"critic_warmup": 10}),
    "128 × 1, critic, one step": ("sao", ALONE | {"critic_updates": 1}),
    "128 × 1, critic, nothing frozen": ("sao", ALONE | {"critic_frozen": ()}),
    "128 × 1, the batch's mean": (
        "glm5",
        ALONE | BOUNDS | {"advantage": "reinforce_plus_plus"},
    ),
}


class OneAnswer(Experiment):
    """Thirty rollouts of 128 answers; all runs of one start, then of the next."""

    name = "one answer"
    columns = ("step", "reward", "accuracy", "explained_var", "value_loss", "grad_norm")

    def jobs(self):
        for start in STARTS:
            for rate in RATES:
                for arm, (method, _) in ARMS.items():
                    named = {"method": method, "arm": arm}
                    yield {**named, "rate": rate, "start": start}

    def config(self, job):
        method, changed = ARMS[job["arm"]]
        given = {"seed": nested(job["start"], 0), "learning_rate": job["rate"]}
        config = TrainConfig(rollouts=30, eval_every=3, **given, **changed)
        return config.completed(ALGORITHMS[method].training)


RUNS = OneAnswer()


@functools.cache
def outcomes() -> pd.DataFrame:
    """Return each stored run's mean accuracy, final accuracy and explained variance."""
    by_run = RUNS.table("arm", "rate", "start").groupby(["run", "arm", "rate", "start"])
    found = by_run["accuracy"].agg(mean="mean", last="last")
    return found.assign(explained=by_run["explained_var"].last()).reset_index()


def at_best(arm: str) -> pd.DataFrame:
    """Return an arm's runs, by start, at the rate whose mean outcome is best."""
    own = outcomes().query("arm == @arm")
    best = own.groupby("rate")["mean"].mean().idxmax()
    return own[own["rate"] == best].set_index("start").sort_index()


def against_group(arm: str) -> tuple[Estimate, str]:
    """Return the difference in mean accuracy from `GROUP`, and its verdict."""
    apart = at_best(arm)["mean"] - at_best(GROUP)["mean"]
    made = estimate({int(start): [x] for start, x in apart.items()})
    return made, verdict(made, SMALLEST)


def table() -> str:
    """Format the results, a line per arm."""
    lines = []
    for arm in ARMS:
        own = at_best(arm)
        line = [arm, own["rate"].iloc[0], own["mean"].mean(), own["last"].mean()]
        line += [own["explained"].mean()]
        if arm != GROUP:
            made, word = against_group(arm)
            line += [f"{made.effect:+.3f} ({made.low:+.3f} to {made.high:+.3f})", word]
        lines.append(line)
    heads = ["arm", "rate", "accuracy, mean", "at the end", "explained variance"]
    heads += ["against the group", "verdict, if it is ahead"]
    return tabulate(lines, heads, floatfmt=".3g")


if __name__ == "__main__":
    command(RUNS, table)
