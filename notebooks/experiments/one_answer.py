"""One answer per prompt and a critic, or a group? SAO's claim at equal answers.

`python -m experiments.one_answer`, called in `notebooks/`, makes the runs that the
store `figures/data/one_answer` does not hold yet, and prints the verdicts.

All of this was fixed before the runs. Every rollout has 128 answers and 4 updates, and
every arm has GLM-5's loss with SAO's bounds; only the advantage differs. The outcome is
the mean held-out accuracy over a run (ten evaluations), which no run can censor. An arm
is compared with `GROUP`, by warm start, each at the better of two learning rates, and a
difference below 0.05 does not matter. We expect an arm with a fresh critic to be behind
at first, when it is REINFORCE with the batch's mean, and make no forecast of the end.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import tyro
from tabulate import tabulate

from experiments import store
from experiments.behaviour import behaviour
from experiments.effects import verdict
from experiments.store import DATA
from experiments.grid import FIVE, check_start, nested
from experiments.pool import about, fill, trained
from experiments.statistics import Estimate, estimate
from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig
from refimpl.sft import WarmStart, warm_start, weights_digest

STORE = DATA / "one_answer"
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
COLUMNS = ("step", "reward", "accuracy", "explained_var", "value_loss", "grad_norm")


def settings(arm: str, rate: float, seed: int = 0) -> TrainConfig:
    """The settings of a stored run, with those that its method prescribes."""
    method, changed = ARMS[arm]
    config = TrainConfig(
        seed=seed, rollouts=30, learning_rate=rate, eval_every=3, **changed
    )
    return config.completed(ALGORITHMS[method].training)


def planned() -> Iterator[tuple[str, float, int]]:
    """Arm, rate and start of each run; all of one start, then of the next."""
    for start in STARTS:
        for rate in RATES:
            for arm in ARMS:
                yield arm, rate, start


def spec(arm: str, rate: float, start: int) -> dict[str, Any]:
    """A run's whole configuration as plain values; what names it."""
    config, method = settings(arm, rate, nested(start, 0)), ARMS[arm][0]
    return {
        "experiment": "one answer",
        "method": method,
        "arm": arm,
        "rate": rate,
        "start": start,
        "begins": weights_digest(WarmStart(seed=start)),
        "behaviour": behaviour(ALGORITHMS[method], config),
        **asdict(config),
    }


def run(arm: str, rate: float, start: int) -> tuple[list[dict], dict[str, str]]:
    """A run's rows, and its provenance."""
    begun, origin = time.perf_counter(), WarmStart(seed=start)
    model, tokenizer, _ = warm_start(origin)
    config = settings(arm, rate, nested(start, 0))
    given = {"model": model, "tokenizer": tokenizer}
    history = trained(ARMS[arm][0], config=config, **given)
    return history.rows, about(history, begun, weights_digest(origin))


@functools.cache
def outcomes() -> pd.DataFrame:
    """Of each stored run: mean accuracy, accuracy and explained variance at the end."""
    runs, rows = store.read(STORE)
    by_run = rows.groupby("run")
    found = by_run["accuracy"].agg(mean="mean", last="last").reset_index()
    explained = by_run["explained_var"].last().rename("explained").reset_index()
    named = runs[["run", "arm", "rate", "start"]]
    return named.merge(found, on="run").merge(explained, on="run")


def at_best(arm: str) -> pd.DataFrame:
    """An arm's runs, by start, at the rate whose mean outcome is best."""
    own = outcomes().query("arm == @arm")
    best = own.groupby("rate")["mean"].mean().idxmax()
    return own[own["rate"] == best].set_index("start").sort_index()


def against_group(arm: str) -> tuple[Estimate, str]:
    """The difference in mean accuracy from `GROUP`, and its verdict."""
    apart = at_best(arm)["mean"] - at_best(GROUP)["mean"]
    made = estimate({int(start): [x] for start, x in apart.items()})
    return made, verdict(made, SMALLEST)


def table() -> str:
    """What the runs say, a line per arm."""
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


def main(workers: int = 1) -> None:
    """Make what is missing, and print the table."""
    for start in STARTS:
        check_start("sums", start)
    fill(STORE, COLUMNS, planned(), spec, run, workers)
    print(table())


if __name__ == "__main__":
    tyro.cli(main)
