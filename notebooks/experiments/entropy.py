"""Do a fifth of the tokens carry the training? 2506.01939, in the toy world.

GRPO learns from all tokens, from the fifth with the highest entropy, from the other
four fifths, or from a random fifth. `python -m experiments.entropy`, called in
`notebooks/`, makes the runs that the store `figures/data/entropy` does not hold yet,
and prints the outcomes of what was declared before any run (`DECLARED`).
"""

import torch
from jaxtyping import Bool
from tabulate import tabulate
from torch import Tensor

import refimpl as rl
from experiments.experiment import Experiment, command, trained
from experiments.statistics import Estimate, estimate
from refimpl.entropy import Keeps, TopEntropy, largest
from refimpl.rollout import Batch

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
DECLARED = {
    ("top", "all"): "at least −0.05: a fifth is enough",
    ("top", "rest"): "at least 0.05: the other tokens carry less",
    ("top", "random"): "at least 0.05: it is the entropy, not the number of tokens",
}
"""For each pair of arms, the difference in reward, as a mean over all rollouts.

Paired by warm start (seed 100 · start), with Student's t over five starts, at each
rate. A statement is *reproduced* where the whole interval lies above its number,
*contradicted* where it lies below, and otherwise undecided.

Outcome: a fifth is not enough (contradicted at 2e-4, undecided at 4e-4). The
rest carries less at both rates, but whether by so much is undecided. A random fifth is
as good as the top one (contradicted at both rates)."""


class Entropy(Experiment):
    """16 rollouts of 16 prompts × 8 answers, K = 4."""

    name = "entropy"
    columns = tuple("step reward accuracy entropy grad_norm habit/careful".split())

    def jobs(self):
        for start in STARTS:
            for rate in RATES:
                for arm in ARMS:
                    yield {"arm": arm, "learning_rate": rate, "start": start}

    def config(self, job):
        rate, seed = job["learning_rate"], 100 * job["start"]
        return rl.TrainConfig(rollouts=16, learning_rate=rate, seed=seed, eval_every=16)

    def make(self, job):
        return trained(**self.given(job), corrections=ARMS[job["arm"]])


RUNS = Entropy()


def rewards():
    """Return the runs' mean rewards, by rate and start, with a column per arm."""
    rows = RUNS.table("arm", "learning_rate", "start")
    return rows.pivot_table("reward", ["learning_rate", "start"], "arm")


def outcomes() -> dict[tuple[float, str, str], Estimate]:
    """Return the declared differences with their intervals, by rate and pair."""
    return {
        (rate, one, other): estimate(
            {start: [x] for start, x in (own[one] - own[other]).droplevel(0).items()}
        )
        for rate, own in rewards().groupby(level=0)
        for one, other in DECLARED
    }


def report() -> str:
    """Format the outcomes, and the mean reward of each arm."""
    lines = [
        [rate, f"{one} − {other}", made.effect, made.low, made.high]
        for (rate, one, other), made in outcomes().items()
    ]
    head = ["rate", "arms", "effect", "low", "high"]
    table = tabulate(lines, head, floatfmt=("g", "", *["+.3f"] * 3))
    return f"{table}\n{rewards().groupby(level=0).mean().round(3)}"


if __name__ == "__main__":
    command(RUNS, report)
