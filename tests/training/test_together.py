"""A rollout and its loss by hand: a late sampler, a KL, replay and corrections, in
combinations that `test_page.py` has not."""

from collections import namedtuple

import pytest
import torch

from refimpl import Scored, collect, log_probs, moe, normalisers, updates
from refimpl.kl import ESTIMATORS, k1, k3
from refimpl.loss_terms import KL, RouterShift, SamplerMismatch
from refimpl.moe import BALANCE, load_balance, routed
from tests.worlds import (
    TOKENIZER,
    disturb,
    fixed_noise,
    measured_loss,
    prepared,
    random_moe,
)

BETA = 0.3
CUT, BAND = {"token_truncate": 1.0}, {"mean_mask": (0.8, 1.1)}
AFTER, MOVING = RouterShift("after_clip"), RouterShift(detach=False)


Case = namedtuple("Case", "algorithm kl replay rules shift top_p router_noise")
CASES = [
    Case("dr_grpo", "k1", None, {}, None, None, 0.0),
    Case("grpo", "k2", "R2", CUT, RouterShift(), None, 0.5),
    Case("gspo", "k3", "R3", BAND, AFTER, 0.8, 0.5),
    Case("cispo", "k3+", "R3", CUT, MOVING, None, 0.5),
    Case("gmpo", "unbiased_k3", None, BAND, MOVING, 0.8, 0.0),
    Case("grpo", "reward", "R2", BAND, MOVING, 0.8, 0.5),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c.algorithm} {c.kl}")
def drawn(request):
    """A case, its run, and the second rollout with what was measured of it."""
    case = request.param
    settings = {"top_p": case.top_p, "router_noise": case.router_noise}
    settings |= {"replay": case.replay, "sampler_delay": 1, "dtype": "float64"}
    in_reward = case.kl == "reward"
    settings |= {"kl_in": "reward", "beta": BETA} if in_reward else {}
    objects = [SamplerMismatch(case.rules)] if case.rules else []
    objects += [case.shift] if case.shift else []
    terms = [] if in_reward else [KL(BETA, case.kl)]
    given = {"corrections": objects, "loss_terms": terms, "reward": fixed_noise}
    run = prepared(case.algorithm, model=random_moe(), **settings, **given)
    disturb(run.reference, 0.1)
    updates(run, collect(run, 0)[0], 0)
    return case, run, *collect(run, 1)


def near_mean(x, mask):
    return pytest.approx(((x * mask).sum() / mask.sum()).item(), abs=1e-5)


def test_the_distances_of_a_rollout_and_what_is_paid(drawn):
    """The sampler lags, and may leave tokens out. A KL in the reward is that of all
    tokens of a response."""
    case, run, batch, metrics = drawn
    rollout, old_logp, mask = batch.rollout, batch.old_logp, batch.rollout.mask
    assert run.sampler.noise == case.router_noise  # however late it is
    kl = (k1 if case.top_p else k3)(rollout.logp, old_logp)
    assert run.config.mismatch and metrics["sampling/kl"] == near_mean(kl, mask)
    gap = (rollout.logp - old_logp).abs()
    assert gap.max() > 0.01
    far = "sampling/sampling_logp_difference"
    assert metrics[f"{far}/mean"] == near_mean(gap, mask)
    assert metrics[f"{far}/max"] == pytest.approx((gap * mask).max().item())
    with torch.no_grad():
        reference, _ = log_probs(run.reference, rollout)
    assert torch.allclose(batch.ref_logp, reference, atol=1e-5)
    moved = (old_logp - reference) * mask
    assert moved.abs().max() > 0.01  # the reference is a model of its own
    assert metrics["kl"] == near_mean(moved, mask)
    paid = torch.tensor(fixed_noise(rollout.texts(TOKENIZER)))
    if case.kl == "reward":
        paid = paid - BETA * moved.sum(-1)
    wanted = run.algorithm.advantages(Scored(paid, rollout.group))
    wanted = wanted[:, None].expand_as(mask).to(batch.advantages)
    assert torch.allclose(batch.advantages, wanted, atol=1e-4)


def test_the_loss_of_an_update_and_its_gradient(drawn):
    """γ and the cap act on the method's loss alone, and on no added term."""
    case, run, batch, _ = drawn
    rollout, old_logp, mask = batch.rollout, batch.old_logp, batch.mask
    disturb(run.model, 0.002)  # the policy has moved on since
    run.zero_advantage_rows_matter = True
    found, metrics = measured_loss(run, batch)
    with routed(run.model, experts=rollout.experts if case.replay else None) as now:
        logp, _ = log_probs(run.model, rollout)
    known = {"group": rollout.group, "max_length": 24}
    plain = normalisers.apply(run.algorithm.normaliser, mask.double(), **known)
    log_w, weight = (old_logp - rollout.logp) * mask, plain
    if case.rules == CUT:
        weight = weight * log_w.exp().clamp(max=1.0)
    if case.rules == BAND:
        w = (log_w.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
        weight = weight * w * ((w >= 0.8) & (w <= 1.1))
    drift = now.log_probs(rollout.experts) - rollout.router_logp
    gamma = (-drift.abs().mean((-1, -2))).exp().clamp(min=0.7)
    gamma = gamma.gather(1, rollout.positions - 1)  # where a log-prob arises
    shifted, old = logp, old_logp
    if case.shift is not None:
        how = mask, gamma, case.shift.placement, run.algorithm.one_ratio
        old, weight = moe.shifted(old_logp, weight, *how)
        if not case.shift.detach:
            shifted = logp + (gamma / gamma.detach()).log() * mask  # no value
    given = shifted, old, batch.advantages, mask, weight
    wanted, measured = run.algorithm.policy_loss(*given)
    real = torch.arange(rollout.ids.shape[1]) < rollout.end[:, None]
    wanted = wanted + BALANCE * load_balance(now, real)
    if case.kl != "reward":
        each = ESTIMATORS[case.kl](logp, batch.ref_logp, old_logp)
        wanted = wanted + BETA * (each * plain).sum()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-7)
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    how = {"materialize_grads": True, "allow_unused": True, "retain_graph": True}
    slopes = (torch.autograd.grad(x, parameters, **how) for x in (found, wanted))
    ours, right = (torch.cat([g.flatten() for g in each]) for each in slopes)
    # Up to rounding: also in float64 the models' norms are computed in float32.
    assert (ours - right).abs().max() < 1e-5 * right.abs().max()
    for name in measured.keys() - {"ratio/max_deviation"}:
        assert metrics[name] == pytest.approx(measured[name], rel=1e-4, abs=1e-6), name
    assert metrics["router/shift"] == near_mean(gamma, rollout.mask)
    favoured = now.favoured(len(rollout))
    changed = 1 - moe.overlap(rollout.experts, favoured).mean(-1)
    changed = changed.gather(1, rollout.positions - 1)
    assert metrics["router/expert_change"] == near_mean(changed, rollout.mask)
