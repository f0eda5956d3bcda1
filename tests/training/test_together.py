"""A rollout and its loss by hand: a late sampler, a KL, replay and corrections, in
whatever combination."""

import random
import zlib
from dataclasses import dataclass

import pytest
import torch

from refimpl import Scored, collect, log_probs, moe, normalisers, updates
from refimpl.kl import ESTIMATORS, k1, k3
from refimpl.loss_terms import KL, RouterShift, SamplerMismatch
from refimpl.moe import BALANCE, load_balance, routed
from refimpl.rollout import Batch
from refimpl.run import Run
from tests.worlds import (
    TOKENIZER,
    disturb,
    measured_loss,
    prepared,
    prompts_of,
    random_moe,
)


def same_gradients(found, expected) -> bool:
    """Up to rounding: also in float64 the models' norms are computed in float32."""
    return bool((found - expected).abs().max() < 1e-5 * expected.abs().max())


def slopes(loss, model) -> torch.Tensor:
    given = {"retain_graph": True, "materialize_grads": True, "allow_unused": True}
    found = torch.autograd.grad(loss, list(model.parameters()), **given)
    return torch.cat([g.flatten() for g in found])


def by_text(prompts, completions, **_):
    """The same wherever a text stands; equal in groups of an even number of terms."""
    pairs = zip(prompts, completions, strict=True)
    paid = lambda text: zlib.crc32(text.encode()) % 7 / 7  # noqa: E731
    return [paid(c) if p.count("+") % 2 else 1.0 for p, c in pairs]


BETA = 0.3
KLS = {name: {"loss_terms": [KL(BETA, name)]} for name in ESTIMATORS}
KLS["reward"] = {"kl_in": "reward", "beta": BETA}
CHOICES = {
    "algorithm": "grpo dr_grpo gspo cispo gmpo".split(),
    "top_p": [None, 0.8],
    "router_noise": [0.0, 0.5],
    "replay": [None, "R2", "R3"],
    "rules": [{}, {"token_truncate": 1.0}, {"mean_mask": (0.8, 1.1)}],
    "shift": [
        None,
        RouterShift(),
        RouterShift("after_clip"),
        RouterShift(detach=False),
    ],
}


@dataclass
class Drawn:
    """A rollout of settings that were drawn, after a first one and its updates."""

    kl: str
    chosen: dict
    run: Run
    batch: Batch
    metrics: dict

    @property
    def mask(self):
        return self.batch.rollout.mask

    def mean(self, x):
        total = (x * self.mask).sum() / self.mask.sum()
        return pytest.approx(total.item(), abs=1e-5)


@pytest.fixture(scope="module", params=[(kl, seed) for kl in KLS for seed in range(4)])
def drawn(request):
    kl, seed = request.param
    dice = random.Random(f"{kl} {seed}")
    chosen = {name: dice.choice(values) for name, values in CHOICES.items()}
    rules, shift = (settings := chosen.copy()).pop("rules"), settings.pop("shift")
    objects = [SamplerMismatch(rules)] if rules else []
    objects += [shift] if shift else []
    late = {"sampler_delay": 1, "dtype": "float64", "reward": by_text}
    given = late | settings | KLS[kl] | {"corrections": objects}
    run = prepared(model=random_moe(), **given)
    disturb(run.reference, 0.1)
    updates(run, collect(run, 0)[0], 0)
    return Drawn(kl, chosen, run, *collect(run, 1))


def test_how_far_the_sampler_is_from_the_policy(drawn):
    """It lags, and may leave tokens out."""
    rollout, c = drawn.batch.rollout, drawn.run.config
    assert drawn.run.sampler.noise == c.router_noise  # however late it is
    old_logp, metrics = drawn.batch.old_logp, drawn.metrics
    kl = (k1 if c.top_p else k3)(rollout.logp, old_logp)
    assert c.mismatch and metrics["sampling/kl"] == drawn.mean(kl)
    gap = (rollout.logp - old_logp).abs()
    assert gap.max() > 0.01
    far = "sampling/sampling_logp_difference"
    assert metrics[f"{far}/mean"] == drawn.mean(gap)
    assert metrics[f"{far}/max"] == pytest.approx((gap * drawn.mask).max().item())


def test_the_distance_from_the_reference_and_what_is_paid(drawn):
    """Less the KL of all its tokens, if it is in the reward."""
    batch, rollout = drawn.batch, drawn.batch.rollout
    with torch.no_grad():
        reference, _ = log_probs(drawn.run.reference, rollout)
    assert torch.allclose(batch.ref_logp, reference, atol=1e-5)
    moved = (batch.old_logp - batch.ref_logp) * drawn.mask
    assert drawn.metrics["kl"] == drawn.mean(moved)
    paid = torch.tensor(by_text(prompts_of(rollout), rollout.texts(TOKENIZER)))
    if drawn.kl == "reward":
        paid = paid - BETA * moved.sum(-1)
    wanted = drawn.run.algorithm.advantages(Scored(paid, rollout.group))
    wanted = wanted[:, None].expand_as(drawn.mask).to(batch.advantages)
    assert torch.allclose(batch.advantages, wanted, atol=1e-4)


class Passed(Drawn):
    """The policy has moved on since, and all rows are passed."""

    def __init__(self, drawn):
        super().__init__(drawn.kl, drawn.chosen, drawn.run, drawn.batch, {})
        run, rollout = self.run, self.batch.rollout
        disturb(run.model, 0.002)
        run.zero_advantage_rows_matter = True
        self.loss, self.metrics = measured_loss(run, self.batch)
        replayed = rollout.experts if run.config.replay else None
        with routed(run.model, experts=replayed) as self.now:
            self.logp, self.entropy = log_probs(run.model, rollout)
        known = {"group": rollout.group, "max_length": 24}
        own = run.algorithm.normaliser
        self.weight = normalisers.apply(own, self.mask.double(), **known)
        drift = self.now.log_probs(rollout.experts) - rollout.router_logp
        gamma = (-drift.abs().mean((-1, -2))).exp().clamp(min=0.7)
        self.gamma = gamma.gather(1, rollout.positions - 1)  # where a log-prob arises

    def added_by(self, term):
        """To the loss that an update sends backward."""
        with pytest.MonkeyPatch.context() as patch:
            kept = [t for t in self.run.loss_terms if t != term]
            patch.setattr(self.run, "loss_terms", kept)
            return self.loss - measured_loss(self.run, self.batch)[0]


@pytest.fixture(scope="module")
def passed(drawn):
    return Passed(drawn)


def balance(p):
    rollout = p.batch.rollout
    real = torch.arange(rollout.ids.shape[1]) < rollout.end[:, None]
    return BALANCE * load_balance(p.now, real)


def kl(p):
    each = ESTIMATORS[p.kl](p.logp, p.batch.ref_logp, p.batch.old_logp)
    return BETA * (each * p.weight).sum()


def test_each_term_adds_what_it_says(passed):
    """Neither γ nor a cap on weights acts on it."""
    terms = [balance] if passed.kl == "reward" else [balance, kl]
    for term, by_hand in zip(passed.run.loss_terms, terms, strict=True):
        found, wanted = passed.added_by(term), by_hand(passed)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-7)
        apart = slopes(found - wanted, passed.run.model)
        whole = slopes(passed.loss, passed.run.model)
        assert same_gradients(whole + apart, whole)


def test_the_methods_loss_and_what_corrects_its_ratio(passed, monkeypatch):
    """γ and the cap act on the method's loss alone."""
    batch, method, shift = passed.batch, passed.run.algorithm, passed.chosen["shift"]
    logp, old_logp, weight = passed.logp, batch.old_logp, passed.weight
    log_w = (old_logp - batch.rollout.logp) * batch.mask
    if "token_truncate" in passed.chosen["rules"]:
        weight = weight * log_w.exp().clamp(max=1.0)
    if "mean_mask" in passed.chosen["rules"]:
        w = (log_w.sum(-1, keepdim=True) / batch.mask.sum(-1, keepdim=True)).exp()
        weight = weight * w * ((w >= 0.8) & (w <= 1.1))
    if shift is not None:
        how = batch.mask, passed.gamma, shift.placement, method.one_ratio
        old_logp, weight = moe.shifted(old_logp, weight, *how)
        if not shift.detach:
            change = passed.gamma / passed.gamma.detach()
            logp = logp + change.log() * batch.mask  # no value
    given = logp, old_logp, batch.advantages, batch.mask, weight
    wanted, measured = method.policy_loss(*given)
    monkeypatch.setattr(passed.run, "loss_terms", [])
    found, _ = measured_loss(passed.run, batch)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-7)
    pair = (slopes(x, passed.run.model) for x in (found, wanted))
    assert same_gradients(*pair)
    for name in measured.keys() - {"ratio/max_deviation"}:
        near = pytest.approx(measured[name], rel=1e-4, abs=1e-6)
        assert passed.metrics[name] == near, name


def test_the_routers_in_numbers(passed):
    """Means over the tokens that were passed."""
    rollout = passed.batch.rollout
    assert passed.metrics["router/shift"] == passed.mean(passed.gamma)
    favoured = passed.now.favoured(len(rollout))
    changed = 1 - moe.overlap(rollout.experts, favoured).mean(-1)
    changed = changed.gather(1, rollout.positions - 1)
    assert passed.metrics["router/expert_change"] == passed.mean(changed)
