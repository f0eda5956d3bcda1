"""A rollout and its loss by hand, whatever is set together: a test for each part."""

import random
import zlib
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch

from refimpl import Scored, collect, log_probs, moe, normalisers, updates
from refimpl.advantages import CRITIC_FREE, whiten
from refimpl.algorithms import value_loss
from refimpl.kl import ESTIMATORS, k1, k3
from refimpl.logprobs import values
from refimpl.moe import BALANCE, load_balance, routed
from refimpl.normalisers import NORMALISERS
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


def at_the_end(scores, mask):
    """(B, T): what a response is paid, at its last token."""
    rewards = torch.zeros_like(mask)
    for i, n in enumerate(mask.sum(-1).long()):
        rewards[i, n - 1] = scores[i]
    return rewards


def by_text(prompts, completions, **_):
    """The same wherever a text stands; equal in groups of an even number of terms."""
    pairs = zip(prompts, completions, strict=True)
    paid = lambda text: zlib.crc32(text.encode()) % 7 / 7  # noqa: E731
    return [paid(c) if p.count("+") % 2 else 1.0 for p, c in pairs]


CHOICES = {
    "algorithm": "grpo dr_grpo gspo cispo gmpo ppo ppo".split(),
    "normaliser": [None, *NORMALISERS],
    "dynamic_sampling": [False, True],
    "overlong_share": [0.0, 0.5, 1.0],
    "overlong_filtering": [False, True],
    "sampler_delay": [1],
    "top_p": [None, 0.8],
    "router_noise": [0.0, 0.5],
    "replay": [None, "R2", "R3"],
    "router_shift": [False, True],
    "placement": moe.PLACEMENTS,
    "corrections": [{}, {"token_truncate": 1.0}, {"mean_mask": (0.8, 1.1)}],
    "advantage": [None, "batch_std"],
    "beta": [0.3],
    "entropy_bonus": [0.0, 0.2],
    "gamma": [1.0, 0.8],
    "lam": [0.95, 0.7],
    "detach_shift": [True, False],
}
KL = {name: {"kl_estimator": name} for name in ESTIMATORS}
KL["reward"] = {"kl_in": "reward"}
KL["reward, a critic"] = KL["reward"] | {"algorithm": "ppo"}


def settings(kl: str, seed: int) -> dict:
    """Drawn; without what would have no effect, which is refused."""
    dice = random.Random(f"{kl} {seed}")
    drawn = {name: dice.choice(values) for name, values in CHOICES.items()} | KL[kl]
    if not drawn["router_shift"]:
        del drawn["placement"]
    if drawn.get("placement") != "before_clip":
        del drawn["detach_shift"]
    without = ("gamma", "lam", "value_clip")
    if drawn["algorithm"] == "ppo":
        without = ("advantage",)
    return {name: x for name, x in drawn.items() if name not in without}


@dataclass
class Drawn:
    """A rollout of settings that were drawn, after a first one and its updates."""

    run: Run
    batch: Batch
    metrics: dict

    @property
    def mask(self):
        return self.batch.rollout.mask

    @cached_property
    def written(self):
        """Prompts and answers as text."""
        rollout = self.batch.rollout
        return prompts_of(rollout), rollout.texts(TOKENIZER)

    def mean(self, x):
        total = (x * self.mask).sum() / self.mask.sum()
        return pytest.approx(total.item(), abs=1e-5)


@pytest.fixture(scope="module", params=[(kl, seed) for kl in KL for seed in range(4)])
def drawn(request):
    kl, seed = request.param
    given = {"reward": by_text, "dtype": "float64", **settings(kl, seed)}
    run = prepared(model=random_moe(), **given)
    for model in (run.reference, run.critic):
        if model is not None:
            disturb(model, 0.1)
    updates(run, collect(run, 0)[0], 0)
    return Drawn(run, *collect(run, 1))


def test_old_log_probs_are_the_policys(drawn):
    rollout, replay = drawn.batch.rollout, drawn.run.config.replay
    sampled = rollout.experts if replay == "R3" else None
    with torch.no_grad(), routed(drawn.run.model, experts=sampled):
        logp, _ = log_probs(drawn.run.model, rollout)
    assert torch.allclose(drawn.batch.old_logp, logp, atol=1e-5)


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


def test_the_distance_from_the_reference(drawn):
    with torch.no_grad():
        reference, _ = log_probs(drawn.run.reference, drawn.batch.rollout)
    assert torch.allclose(drawn.batch.ref_logp, reference, atol=1e-5)
    moved = drawn.batch.old_logp - drawn.batch.ref_logp
    assert drawn.metrics["kl"] == drawn.mean(moved)


def test_a_critics_values(drawn):
    if drawn.run.critic is not None:
        own = values(drawn.run.critic, drawn.batch.rollout)
        assert torch.allclose(drawn.batch.old_values, own, atol=1e-5)


def test_what_is_paid_becomes_advantages(drawn):
    """Scores, less what is too long, at the last token; less the KL, if it is there."""
    c, batch, rollout = drawn.run.config, drawn.batch, drawn.batch.rollout
    scores = torch.tensor(by_text(*drawn.written))
    if cache := 24 * c.overlong_share:
        scores += ((24 - cache - rollout.length) / cache).clamp(-1, 0)
    rewards = at_the_end(scores, drawn.mask.double())
    if c.kl_in == "reward":
        rewards -= c.beta * (batch.old_logp - batch.ref_logp) * drawn.mask
    paid = Scored(rewards, rollout.group, drawn.mask, batch.old_values, c.gamma, c.lam)
    wanted = CRITIC_FREE.get(c.advantage, drawn.run.algorithm.advantages)(paid)
    if drawn.run.critic is not None:
        targets, wanted = wanted + batch.old_values, whiten(wanted, drawn.mask)
        assert torch.allclose(batch.targets, targets, atol=1e-5)
    wanted = wanted.view(len(rollout), -1).expand_as(drawn.mask)
    assert torch.allclose(batch.advantages, wanted.to(batch.advantages), atol=1e-4)


def test_what_was_cut_off_has_no_loss_under_filtering(drawn):
    cut = drawn.batch.rollout.truncated & drawn.run.config.overlong_filtering
    assert torch.equal(drawn.batch.mask, drawn.mask * ~cut[:, None])


class Passed(Drawn):
    """The policy has moved on since, and all rows are passed."""

    def __init__(self, drawn):
        super().__init__(drawn.run, drawn.batch, {})
        run, rollout = self.run, self.batch.rollout
        disturb(run.model, 0.002)
        run.zero_advantage_rows_matter = True
        self.loss, self.metrics = measured_loss(run, self.batch)
        replayed = rollout.experts if run.config.replay else None
        with routed(run.model, experts=replayed) as self.now:
            self.logp, self.entropy = log_probs(run.model, rollout)
        known = {"group": rollout.group, "max_length": 24}
        named = NORMALISERS.get(run.config.normaliser, run.algorithm.normaliser)
        self.weight = normalisers.apply(named, self.batch.mask.double(), **known)
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
    c = p.run.config
    each = ESTIMATORS[c.kl_estimator](p.logp, p.batch.ref_logp, p.batch.old_logp)
    return c.beta * (each * p.weight).sum()


def bonus(p):
    return -p.run.config.entropy_bonus * (p.entropy * p.weight).sum()


def critics(p):
    """Its mean is over tokens that are left, whatever the policy's normaliser is."""
    v = values(p.run.critic, p.batch.rollout), p.batch.old_values, p.batch.targets
    return value_loss(*v, p.batch.mask)


TERMS = {"LoadBalance": balance, "KL": kl, "Entropy": bonus, "Value": critics}


def test_each_term_adds_what_it_says(passed):
    """Neither γ nor a cap on weights acts on it."""
    c, wanted = passed.run.config, ["LoadBalance"]
    wanted += ["KL"] * (c.kl_in == "loss") + ["Entropy"] * (c.entropy_bonus > 0)
    names = [type(term).__name__ for term in passed.run.loss_terms]
    assert names == [*wanted, *["Value"] * (passed.run.critic is not None)]
    for name, term in zip(names, passed.run.loss_terms):
        found, by_hand = passed.added_by(term), TERMS[name](passed)
        assert found.item() == pytest.approx(by_hand.item(), rel=1e-5, abs=1e-7)
        if name != "Value":  # a critic's own; else to the whole gradient's rounding
            apart = slopes(found - by_hand, passed.run.model)
            whole = slopes(passed.loss, passed.run.model)
            assert same_gradients(whole + apart, whole)


def test_the_methods_loss_and_what_corrects_its_ratio(passed, monkeypatch):
    """γ and the cap act on the method's loss alone."""
    batch, c, method = passed.batch, passed.run.config, passed.run.algorithm
    left, old_logp, weight = batch.mask, batch.old_logp, passed.weight
    log_w = (old_logp - batch.rollout.logp) * left
    if "token_truncate" in c.corrections:
        weight = weight * log_w.exp().clamp(max=1.0)
    if "mean_mask" in c.corrections:
        length = left.sum(-1, keepdim=True).clamp(min=1)
        w = (log_w.sum(-1, keepdim=True) / length).exp()
        weight = weight * w * ((w >= 0.8) & (w <= 1.1))
    gamma, logp = passed.gamma, passed.logp
    if c.router_shift:
        how = c.placement, method.one_ratio
        old_logp, weight = moe.shifted(old_logp, weight, left, gamma, *how)
    if not c.detach_shift:
        logp = logp + (gamma / gamma.detach()).log() * left  # no value
    given = logp, old_logp, batch.advantages, left, weight
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
