"""A rollout and its loss by hand, whatever is set together."""

import random
import zlib

import pytest
import torch

from refimpl import Scored, collect, log_probs, moe, normalisers, updates
from refimpl.advantages import CRITIC_FREE, whiten
from refimpl.algorithms import value_loss
from refimpl.kl import ESTIMATORS, k1, k3
from refimpl.normalisers import NORMALISERS
from refimpl.scoring import values
from refimpl.tasks.world import correctness
from refimpl.terms import BALANCE
from tests.training.test_update import same_gradients, slopes
from tests.worlds import TOKENIZER, disturb, measured_loss, prepared, random_moe


def at_the_end(scores, mask):
    """(B, T): what a response is paid, at its last token."""
    rewards = torch.zeros_like(mask)
    for i, n in enumerate(mask.sum(-1).long()):
        rewards[i, n - 1] = scores[i]
    return rewards


def by_text(prompts, completions, **_):
    """The same wherever a text stands; equal in groups of an even number of terms."""
    pairs = zip(prompts, completions, strict=True)
    return [
        zlib.crc32(c.encode()) % 7 / 7 if p.count("+") % 2 else 1.0 for p, c in pairs
    ]


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
    "corrections": [{}, {"token_truncate": 0.9}, {"mean_mask": (0.8, 1.1)}],
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
    if drawn["algorithm"] == "ppo":
        del drawn["advantage"]
    return drawn


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kl", KL)
def test_a_rollout_and_its_loss_are_the_sum_of_their_parts(kl, seed):
    """Scores, shaping and KL make the advantages; γ and the cap act on the method's
    loss alone; means are over tokens that are left, the routers' over those passed."""
    given = {"reward": by_text, "dtype": "float64", **settings(kl, seed)}
    run = prepared(model=random_moe(), **given)
    c, method = run.config, run.algorithm
    for model in (run.reference, run.critic):
        if model is not None:
            disturb(model, 0.1)
    updates(run, collect(run, 0)[0], 0)
    batch, metrics = collect(run, 1)
    rollout, mask, old_logp = batch.rollout, batch.rollout.mask, batch.old_logp

    def mean(x):
        return pytest.approx(((x * mask).sum() / mask.sum()).item(), abs=1e-5)

    sampled = rollout.experts if c.replay == "R3" else None
    with torch.no_grad(), moe.routed(run.model, experts=sampled):
        assert torch.allclose(old_logp, log_probs(run.model, rollout)[0], atol=1e-5)
    ids = [ids[:n] for ids, n in zip(rollout.ids, rollout.prompt_length)]
    prompts, texts = TOKENIZER.batch_decode(ids), rollout.texts(TOKENIZER)
    scores = torch.tensor(by_text(prompts, texts))
    if cache := 24 * c.overlong_share:
        scores += ((24 - cache - rollout.length) / cache).clamp(-1, 0)
    rewards = at_the_end(scores, mask.double())
    if c.beta:
        with torch.no_grad():
            reference = log_probs(run.reference, rollout)[0]
        assert torch.allclose(batch.ref_logp, reference, atol=1e-5)
        gap = (old_logp - batch.ref_logp) * mask
        assert metrics["kl"] == mean(gap)
        rewards -= c.beta * gap * (c.kl_in == "reward")
    paid = Scored(rewards, rollout.group, mask, batch.old_values, c.gamma, c.lam)
    advantages = CRITIC_FREE.get(c.advantage, method.advantages)(paid)
    if run.critic is not None:
        own = values(run.critic, rollout)
        assert torch.allclose(batch.old_values, own, atol=1e-5)
        targets, advantages = advantages + batch.old_values, whiten(advantages, mask)
        assert torch.allclose(batch.targets, targets, atol=1e-5)
    advantages = advantages.view(len(mask), -1).expand_as(mask)
    assert torch.allclose(batch.advantages, advantages.to(batch.advantages), atol=1e-4)
    left = mask * ~(rollout.truncated & c.overlong_filtering)[:, None]
    assert torch.equal(batch.mask, left)
    assert run.sampler.noise == c.router_noise  # however late it is
    if not c.dynamic_sampling:  # else of all that were drawn
        answers = [sum(map(int, prompt[:-1].split("+"))) for prompt in prompts]
        right = sum(correctness(prompts, texts, answer=answers))
        assert (metrics["length/correct"] is None) == (right == 0)
    if c.mismatch:
        kl = (k1 if c.top_p else k3)(rollout.logp, old_logp)
        assert metrics["sampling/kl"] == mean(kl)
        gap = (rollout.logp - old_logp).abs()
        assert gap.max() > 0.01  # the sampler lags, and may leave tokens out
        far = "sampling/sampling_logp_difference"
        assert metrics[f"{far}/mean"] == mean(gap)
        assert metrics[f"{far}/max"] == pytest.approx((gap * mask).max().item())
    disturb(run.model, 0.002)
    run.acts_everywhere = True  # all rows are passed
    found, metrics = measured_loss(run, batch)
    with moe.routed(run.model, experts=rollout.experts if c.replay else None) as now:
        logp, entropy = log_probs(run.model, rollout)
    named = NORMALISERS.get(c.normaliser, method.normaliser)
    known = {"group": rollout.group, "max_length": 24}
    weight = weighed = normalisers.apply(named, left.double(), **known)
    log_w, length = (old_logp - rollout.logp) * left, left.sum(-1, keepdim=True)
    if "token_truncate" in c.corrections:
        weighed = weight * log_w.exp().clamp(max=0.9)
    if "mean_mask" in c.corrections:
        w = (log_w.sum(-1, keepdim=True) / length.clamp(min=1)).exp()
        weighed = weight * w * ((w >= 0.8) & (w <= 1.1))
    drift = (now.log_probs(rollout.experts) - rollout.router_logp).abs().mean((-1, -2))
    gamma, before = (-drift).exp().clamp(min=0.7), old_logp
    gamma = gamma.gather(1, rollout.positions - 1)  # where a log-prob arises
    if c.router_shift:
        how = c.placement, method.one_ratio
        before, weighed = moe.shifted(before, weighed, left, gamma, *how)
    own = 0 if c.detach_shift else (gamma / gamma.detach()).log() * left  # no value
    batched = logp + own, before, batch.advantages, left, weighed
    loss, measured = method.policy_loss(*batched)
    real = torch.arange(rollout.ids.shape[1]) < rollout.end[:, None]
    loss = loss + BALANCE * moe.load_balance(now, real)
    loss = loss - c.entropy_bonus * (entropy * weight).sum()
    if c.beta and c.kl_in == "loss":
        kl = ESTIMATORS[c.kl_estimator](logp, batch.ref_logp, old_logp)
        loss = loss + c.beta * (kl * weight).sum()
    if run.critic is not None:
        v = values(run.critic, rollout), batch.old_values, batch.targets
        loss = loss + value_loss(*v, left)
    assert found.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
    assert same_gradients(slopes(found, run.model), slopes(loss, run.model))
    assert metrics["router/shift"] == mean(gamma)
    changed = 1 - moe.overlap(rollout.experts, now.favoured(len(rollout))).mean(-1)
    assert metrics["router/expert_change"] == mean(
        changed.gather(1, rollout.positions - 1)
    )
    for name in measured.keys() - {"ratio/max_deviation"}:
        assert metrics[name] == pytest.approx(measured[name], rel=1e-4, abs=1e-6), name
