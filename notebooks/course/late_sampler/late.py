"""A sampler four rollouts late, under corrections: chapter 15's stored runs.

`python -m course.late_sampler.late`, from the folder `notebooks`, makes the runs that
the store `figures/data/late` does not hold yet.
"""

import functools
from dataclasses import replace
from typing import Any
from unittest import mock

import pandas as pd
import torch
import tyro

import refimpl as rl
from experiments.effects import verdict
from experiments.experiment import Experiment, trained
from experiments.grid import TEN, nested
from experiments.statistics import Estimate, estimate
from refimpl import sampling, seeds
from refimpl.algorithms import Algorithm
from refimpl.history import Meter
from refimpl.loop import update
from refimpl.rollout import Batch
from refimpl.run import Run

DELAY, ROLLOUTS = 4, 20
STARTS = TEN
RANDOM = "bad answers at random"
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "TIS, 2": {"token_truncate": 2.0},
    "IcePop, 0.5 to 5": {"token_mask": (0.5, 5.0)},
    "KPop, 0.1": {"kpop": 0.1},
    "sequence mask, 3": {"sequence_mask": 3.0},
    "mean k3, 0.01": {"mean_k3": 0.01},
    "OPSM, 0.003": {"opsm": 0.003},
    "OPSM, 0.01": {"opsm": 0.01},
    "OPSM, 0.03": {"opsm": 0.03},
    RANDOM: {},
}
"""The bounds are published values except OPSM's: no report has one for answers this
short, so three are run. All of these settings were fixed before the runs."""
DROPPED = 0.77
"""Probability with which `RANDOM`, a control, leaves a bad answer out. In earlier runs
OPSM at 0.01 left out 76 % of the bad answers of GRPO, and 79 % of SAPO's."""
SMALLEST = 0.05
"""The smallest gain in accuracy that matters: the mean of the last five evaluations."""
TWO = "two policies"
METHODS = ("grpo", "sapo")
SHARES = {
    "clip": "clip_ratio/region_mean",
    "tokens": "rollout_corr/rollout_rs_masked_fraction",
    "answers": "rollout_corr/rollout_rs_seq_masked_fraction",
    "kl": "sampling/kl",
}


def settings(rule: str, seed: int = 0) -> rl.TrainConfig:
    """Settings of a stored run."""
    return rl.TrainConfig(
        seed=seed,
        rollouts=ROLLOUTS,
        learning_rate=4e-4,
        sampler_delay=DELAY,
        trust_sampler=rule == TWO,
        corrections=RULES.get(rule, {}),
        eval_every=2,
        eval_problems=512,
    )


class Late(Experiment):
    """All runs of one start, then of the next."""

    name = "late"
    columns = ("step", "reward", "accuracy", "entropy", "grad_norm", *SHARES.values())

    def jobs(self):
        for start in STARTS:
            for rule in RULES:
                for method in METHODS:
                    yield {"method": method, "rule": rule, "start": start}
            yield {"method": "grpo", "rule": TWO, "start": start}

    def config(self, job):
        return settings(job["rule"], nested(job["start"], 0))

    def make(self, job):
        given = self.given(job)
        if job["rule"] == RANDOM:
            seed = nested(job["start"], 0)
            given["algorithm"] = dropping(given["algorithm"], seed)
        return trained(**given)


RUNS = Late()


def dropping(method: Algorithm, seed: int) -> Algorithm:
    """The method, each of whose bad answers is left out with probability `DROPPED`."""
    dice = seeds.generator(seed)

    def advantages(scored):
        made = method.advantages(scored)
        out = torch.rand(len(made), generator=dice, device="cpu") < DROPPED
        return made.masked_fill(out.to(made.device) & (made < 0), 0.0)

    return replace(method, advantages=advantages)


@functools.cache
def stored() -> pd.DataFrame:
    """All rows, with the method, rule and start of their runs."""
    return RUNS.table("method", "rule", "start")


def accuracy(method: str) -> dict[str, dict[int, float]]:
    """Held-out accuracy, the mean of the last five evaluations, by rule and start."""
    known = stored().query("method == @method").dropna(subset="accuracy")
    last = known.groupby(["rule", "start"]).tail(5)
    means = last.groupby(["rule", "start"])["accuracy"].mean()
    return {r: means[r].to_dict() for r in (*RULES, TWO) if r in means.index}


def against(method: str, rule: str, other: str = "none") -> Estimate:
    """What a rule adds to the accuracy under another: pairs of one start and seed."""
    every = accuracy(method)
    pairs = {s: [every[rule][s] - every[other][s]] for s in every[rule]}
    return estimate(pairs)


def verdict_word(made: Estimate) -> str:
    """The verdict on a gain, by the ledger's rule."""
    names = {"reproduced": "helps", "contradicted": "harms"}
    found = verdict(made, SMALLEST)
    return names.get(found, found)


def share(method: str, rule: str, name: str) -> float | None:
    """The mean of one of `SHARES` over starts and rollouts."""
    own = stored().query("method == @method and rule == @rule")
    mean = own.groupby("run")[SHARES[name]].mean().mean()
    return mean if mean == mean else None


Shares = tuple[float, float, float]


def outside(batch: Batch, run: Run) -> Shares:
    """Shares outside 1 ± 0.2: tokens by π_θ/π_old, tokens by π_θ/μ, and answers by
    their product of π_θ/μ."""
    with torch.no_grad():
        logp = run.read(run.model, batch.rollout).logp
    seen = batch.mask.bool()
    to_old, to_mu = ((logp - x) * seen for x in (batch.old_logp, batch.rollout.logp))
    far = [((z.exp() - 1).abs() > 0.2) for z in (to_old, to_mu, to_mu.sum(-1))]
    tokens = [(x & seen).sum().item() / seen.sum().item() for x in far[:2]]
    return tokens[0], tokens[1], far[2].float().mean().item()


def rollout_after(before: int, **given: Any) -> tuple[Run, Batch]:
    """A run of GRPO after `before` rollouts, and the batch of the next one."""
    run = rl.prepare("grpo", **given)
    for step in range(before):
        batch, _ = rl.collect(run, step)
        rl.updates(run, batch, step)
    return run, rl.collect(run, before)[0]


TOKENS = 4
"""The number of tokens of an answer after which its sampler takes newer weights."""


def in_flight(before: int = 8) -> Batch:
    """A batch whose answers were each written by up to five policies."""
    config = replace(settings("none"), sampler_delay=0)
    sampler = rl.samplers.InFlight(DELAY, tokens=TOKENS)
    # The fast decoder copies the weights, so they could not change under it.
    with mock.patch.object(sampling, "decoder_factories", []):
        return rollout_after(before, config=config, sampler=sampler)[1]


def rollout_by_update(before: int = 8) -> list[Shares]:
    """`outside` of each mini-batch before its update, after `before` late rollouts."""
    run, batch = rollout_after(before, config=settings("none"))
    seen, meter = [], Meter()
    shuffle = rl.seeds.generator(0)
    for mini in batch.minibatches(run.config.minibatches, run.config.epochs, shuffle):
        seen.append(outside(mini, run))
        update(run, mini, meter)
    return seen


def toy_gradient(T: int, weight: str, p: float = 0.55, q: float = 0.5, n: int = 64):
    """Bias and standard deviation of a policy gradient, as shares of the true one.

    An answer is T coins, heads with probability p (policy), q (sampler). It is right if
    more than p T of them are heads; the advantage is R minus the sampler's mean of R.
    Exact: all that matters is the number of heads. The deviation is that of n answers.
    """
    k = torch.arange(T + 1).double()
    at = torch.distributions.Binomial(T, torch.tensor([q, p]).double()[:, None])
    mu, pi = at.log_prob(k).exp()
    right = (k > p * T).double()
    score = k - T * p
    true = (pi * right * score).sum()
    up, down = p / q, (1 - p) / (1 - q)
    whole = (at.log_prob(k)[1] - at.log_prob(k)[0]).exp()
    token = k * up * (1 - p) - (T - k) * down * p
    mean = whole ** (1 / T)
    x = {
        "none": score,
        "token": token,
        "sequence": whole * score,
        "sequence, min(W, 3)": whole.clamp(max=3) * score,
        "sequence, 0 above 3": whole * (whole <= 3) * score,
        "geometric mean": mean * score,
    }[weight] * (right - (mu * right).sum())
    average = (mu * x).sum()
    spread = ((mu * x**2).sum() - average**2).clamp(min=0).sqrt() / n**0.5
    return ((average - true) / true).item(), (spread / true).item()


WEIGHTS = (
    "none",
    "token",
    "geometric mean",
    "sequence",
    "sequence, min(W, 3)",
    "sequence, 0 above 3",
)


def main(workers: int = 1) -> None:
    """Make the runs that are missing."""
    RUNS.fill(workers=workers)


if __name__ == "__main__":
    tyro.cli(main)
