"""Does FlashREINFORCE's gate help when the sampler is late? Runs with it and without.

`python -m experiments.sequence_gate`, called in `notebooks/`, makes the runs that the
store `figures/data/sequence_gate` does not hold yet, and prints the verdicts.

All of this was fixed before the runs. As in the paper, a batch has one answer to each
prompt and gets one update. Here it has 32 answers, and a run 80 batches. The sampler is
4 updates late, as in the paper, or 16. Both arms have the paper's loss; in one of them
δ is 0.003, in the other it is so large that no answer is dropped. The outcome is the
mean held-out accuracy over a run (ten evaluations). Arms are compared by warm start, at
one lag. A difference below 0.05 does not matter. At 16 updates we expect the gate to
help, because some ratios are far from 1 and nothing else bounds them. At 4 we expect no
difference.
"""

import functools

import pandas as pd
from tabulate import tabulate

from experiments.effects import verdict
from experiments.experiment import Experiment, command
from experiments.grid import FIVE, nested
from experiments.statistics import Estimate, estimate
from refimpl.config import TrainConfig

STARTS, LAGS, SMALLEST = FIVE, (4, 16), 0.05
DELTAS = {"δ = 0.003": 3e-3, "no gate": 1e9}
DROPPED = "clip_ratio/region_mean"


class SequenceGate(Experiment):
    """All runs of one start, then of the next."""

    name = "sequence gate"
    columns = ("step", "reward", "accuracy", "grad_norm", DROPPED)

    def jobs(self):
        for start in STARTS:
            for lag in LAGS:
                for arm in DELTAS:
                    named = {"method": "flash_reinforce", "arm": arm}
                    yield {**named, "lag": lag, "start": start}

    def config(self, job):
        return TrainConfig(
            rollouts=80,
            prompts_per_rollout=32,
            group_size=1,
            minibatches=1,
            allow_on_policy=True,
            learning_rate=4e-4,
            sampler_delay=job["lag"],
            hyperparameters={"delta": DELTAS[job["arm"]]},
            eval_every=8,
            seed=nested(job["start"], 0),
        )


RUNS = SequenceGate()


@functools.cache
def outcomes() -> pd.DataFrame:
    """Return each run's mean and last accuracy, and the share of tokens dropped."""
    rows = RUNS.table("arm", "lag", "start").groupby(["arm", "lag", "start"])
    found = rows["accuracy"].agg(mean="mean", last="last")
    return found.assign(dropped=rows[DROPPED].mean()).reset_index()


def gain(lag: int) -> tuple[Estimate, str]:
    """Return the accuracy that the gate adds at this lag, and the verdict."""
    own = outcomes().query("lag == @lag").pivot(index="start", columns="arm")["mean"]
    gated, free = (own[arm] for arm in DELTAS)
    made = estimate({int(start): [x] for start, x in (gated - free).items()})
    return made, verdict(made, SMALLEST)


def table() -> str:
    """Format the results, a line per lag and arm."""
    lines = []
    for (lag, arm), own in outcomes().groupby(["lag", "arm"]):
        line = [lag, arm, own["mean"].mean(), own["last"].mean(), own["dropped"].mean()]
        if arm == next(iter(DELTAS)):
            made, word = gain(lag)
            line += [f"{made.effect:+.3f} ({made.low:+.3f} to {made.high:+.3f})", word]
        lines.append(line)
    heads = ["lag", "arm", "accuracy, mean", "at the end", "tokens dropped"]
    heads += ["against no gate", "verdict, if it helps"]
    return tabulate(lines, heads, floatfmt=".3g")


if __name__ == "__main__":
    command(RUNS, table)
