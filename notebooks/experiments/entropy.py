"""Do a fifth of the tokens carry the training? 2506.01939, in the toy world.

GRPO learns from all tokens, from the fifth with the highest entropy, from the other
four fifths, or from a random fifth. `python -m experiments.entropy`, from the folder
`notebooks`, makes the runs that the store `figures/data/entropy` does not hold yet, and
prints what came of what was declared (`DECLARED`). No run preceded the declaration.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
import tyro
from jaxtyping import Bool
from torch import Tensor

import refimpl as rl
from experiments import store
from experiments.behaviour import behaviour
from experiments.store import DATA
from experiments.pool import about, fill, trained
from experiments.statistics import Estimate, estimate
from refimpl.algorithms import ALGORITHMS
from refimpl.entropy import Keeps, TopEntropy, largest
from refimpl.rollout import Batch
from refimpl.sft import weights_digest

STORE = DATA / "entropy"
STARTS, RATES, SHARE = range(10, 15), (2e-4, 4e-4), 0.2


class Rest(TopEntropy):
    """Train on the tokens that `TopEntropy` leaves out."""

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        return ~super().kept(mini)


class Random(Keeps):
    """Train on a random share of the tokens."""

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        purpose = rl.seeds.seed_for(0, int(mini.rollout.ids.sum()), "random tokens")
        draws = torch.rand(mini.mask.shape, generator=rl.seeds.generator(purpose))
        return largest(draws.masked_fill(~mini.mask.bool(), -1), SHARE, mini)


ARMS: dict[str, tuple[Keeps, ...]] = {
    "all": (),
    "top": (TopEntropy(SHARE),),
    "rest": (Rest(SHARE),),
    "random": (Random(),),
}
COLUMNS = tuple("step reward accuracy entropy grad_norm habit/careful".split())
DECLARED = {
    ("top", "all"): "at least −0.05: a fifth is enough",
    ("top", "rest"): "at least 0.05: the other tokens carry less",
    ("top", "random"): "at least 0.05: it is the entropy, not the number of tokens",
}
"""Of each pair of arms, the difference in reward, as a mean over all rollouts.

Paired by warm start (seed 100 · start), with Student's t over five starts, at each
rate. A statement is *reproduced* where the whole interval lies above its number,
*contradicted* where it lies below, and otherwise undecided.

What came of it: a fifth is not enough (contradicted at 2e-4, undecided at 4e-4). The
rest carries less at both rates, but whether by so much is undecided. A random fifth is
as good as the top one (contradicted at both rates)."""


def settings(rate: float, start: int) -> rl.TrainConfig:
    """Settings of a run: 16 rollouts of 16 prompts × 8 answers, K = 4."""
    return rl.TrainConfig(
        rollouts=16, learning_rate=rate, seed=100 * start, eval_every=16
    )


def planned() -> Iterator[tuple[str, float, int]]:
    """Arm, rate and start of each run."""
    for start in STARTS:
        for rate in RATES:
            for arm in ARMS:
                yield arm, rate, start


def spec(arm: str, rate: float, start: int) -> dict[str, Any]:
    """A run's whole configuration as plain values; what names it."""
    config = settings(rate, start)
    return {
        "experiment": "entropy",
        "arm": arm,
        "start": start,
        "begins": weights_digest(rl.WarmStart(seed=start)),
        "behaviour": behaviour(ALGORITHMS["grpo"], config),
        **asdict(config),
    }


def run(arm: str, rate: float, start: int) -> tuple[list[dict], dict[str, str]]:
    """Make a run. Returns its rows, and what else the store records."""
    begun, warm = time.perf_counter(), rl.WarmStart(seed=start)
    model, tokenizer, _ = rl.warm_start(warm)
    given = {"model": model, "tokenizer": tokenizer, "config": settings(rate, start)}
    history = trained("grpo", corrections=ARMS[arm], **given)
    return history.rows, about(history, begun, weights_digest(warm))


def rewards() -> pd.DataFrame:
    """The mean reward over a run's rollouts, by rate and start, a column per arm."""
    runs, rows = store.read(STORE)
    rows = rows.merge(runs[["run", "arm", "learning_rate", "start"]], on="run")
    return rows.pivot_table("reward", ["learning_rate", "start"], "arm")


def outcomes() -> dict[tuple[float, str, str], Estimate]:
    """The declared differences with their intervals, by rate and pair."""
    return {
        (rate, one, other): estimate(
            {start: [x] for start, x in (own[one] - own[other]).droplevel(0).items()}
        )
        for rate, own in rewards().groupby(level=0)
        for one, other in DECLARED
    }


def main(workers: int = 1) -> None:
    """Make what is missing, and print the outcomes."""
    fill(STORE, COLUMNS, planned(), spec, run, workers)
    for (rate, one, other), found in outcomes().items():
        low, high = found.low, found.high
        print(
            f"{rate:g} {one} − {other}: {found.effect:+.3f} ({low:+.3f} to {high:+.3f})"
        )
    print(rewards().groupby(level=0).mean().round(3))


if __name__ == "__main__":
    tyro.cli(main)
