"""top_k, top_p and min_p: what may be drawn, and what its log-probs are."""

import math

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from refimpl import evaluation
from refimpl.importance import truncated_weight
from refimpl.rollout import Truncation, sample, truncated
from refimpl.scoring import log_probs
from refimpl.trainer import TrainConfig, collect, evaluate
from tests.worlds import (
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    llama,
    prepared,
    random_model,
    small_run,
    warm_model,
    whole_loss,
)

FOUR = [0.5, 0.25, 0.15, 0.1]

BY_HAND = {
    "top_k 2": ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
    "top_k 1": ({"top_k": 1}, [1, 0, 0, 0]),
    "more than there are": ({"top_k": 9}, FOUR),
    "top_p 0.7": ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
    "top_p 0.8: 0.75 is too little": ({"top_p": 0.8}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
    "top_p 0.01: one is always left": ({"top_p": 0.01}, [1, 0, 0, 0]),
    "min_p 0.4: from 0.2 on": ({"min_p": 0.4}, [2 / 3, 1 / 3, 0, 0]),
    "min_p 0.25: from 0.125 on": ({"min_p": 0.25}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
    "min_p 1": ({"min_p": 1.0}, [1, 0, 0, 0]),
    # Of the three that top_k leaves two hold 0.83; of the four, 0.75.
    "top_p after top_k": ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),
    "all of them": ({"top_k": 3, "top_p": 0.8, "min_p": 0.6}, [1, 0, 0, 0]),
    "none": ({"top_p": 1.0, "min_p": 0.0}, FOUR),
}


@pytest.mark.parametrize(("keep", "wanted"), BY_HAND.values(), ids=BY_HAND)
def test_four_tokens_by_hand(keep, wanted):
    """Whatever their order, in two rows at once."""
    logits = torch.tensor(FOUR).log() + 3.0
    order = torch.tensor([[0, 1, 2, 3], [2, 0, 3, 1]])
    found = truncated(logits[order], Truncation(**keep)).exp()
    assert torch.allclose(found, torch.tensor(wanted, dtype=found.dtype)[order])


def test_tokens_that_tie_with_the_kth_stay():
    logits = torch.tensor([1.0, 2.0, 1.0, 0.0])
    kept = truncated(logits, Truncation(top_k=2)).isfinite()
    assert kept.tolist() == [True, True, True, False]


KEEP = [
    Truncation(top_k=3),
    Truncation(top_p=0.9),
    Truncation(top_p=0.3),
    Truncation(min_p=0.1),
    Truncation(top_k=7, top_p=0.8),
    Truncation(top_k=12, top_p=0.95, min_p=0.2),
]
BY_KEEP = pytest.mark.parametrize("keep", KEEP, ids=str)


def by_transformers(logits, keep):
    """Its processors, in the order in which `generate` applies them."""
    steps = [
        (TopKLogitsWarper, keep.top_k),
        (TopPLogitsWarper, keep.top_p),
        (MinPLogitsWarper, keep.min_p),
    ]
    for warper, value in steps:
        if value is not None:
            logits = warper(value)(None, logits)
    return logits.log_softmax(-1)


def agrees(function, keep) -> bool:
    """With transformers, on 500 random distributions, flat and sharp."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 40, generator=generator, dtype=torch.float64)
    logits = logits * torch.linspace(0.1, 8, 500, dtype=torch.float64)[:, None]
    found, wanted = function(logits, keep).exp(), by_transformers(logits, keep).exp()
    same = torch.equal(found > 0, wanted > 0)
    return same and bool((found - wanted).abs().max() < 1e-12)


@BY_KEEP
def test_transformers_keeps_the_same_tokens(keep):
    assert agrees(truncated, keep)


def not_renormalised(logits, keep):
    kept = truncated(logits, keep).isfinite()
    return logits.log_softmax(-1).masked_fill(~kept, -math.inf)


def minimum_of_the_whole(logits, keep):
    """min_p as a bound on p itself, not on its share of the largest."""
    found = truncated(logits, keep._replace(min_p=None))
    if keep.min_p is not None:
        found = found.masked_fill(found < math.log(keep.min_p), -math.inf)
    return found.log_softmax(-1)


def nucleus_first(logits, keep):
    found = truncated(logits, keep._replace(top_k=None, min_p=None))
    return truncated(found, keep._replace(top_p=None))


def without_the_last_of_the_nucleus(logits, keep):
    prob, order = logits.softmax(-1).sort(dim=-1, descending=True)
    out = prob.cumsum(-1) > (keep.top_p or 2)
    out[..., 0] = False
    logits = logits.masked_fill(out.scatter(-1, order, out), -math.inf)
    return truncated(logits, keep._replace(top_p=None))


@pytest.mark.parametrize(
    ("wrong", "keep"),
    [
        (not_renormalised, Truncation(top_k=3)),
        (not_renormalised, Truncation(top_p=0.9)),
        (not_renormalised, Truncation(min_p=0.1)),
        (minimum_of_the_whole, Truncation(min_p=0.1)),
        (nucleus_first, Truncation(top_k=7, top_p=0.8)),
        (without_the_last_of_the_nucleus, Truncation(top_p=0.9)),
    ],
)
def test_a_wrong_version_is_told_apart(wrong, keep):
    assert not agrees(wrong, keep)


# In the sampler


def drawn(keep, temperature=1.3, model=None, **settings):
    model = llama().double() if model is None else model  # it has clear preferences
    settings = {"group_size": 12, "max_new_tokens": 20, "seed": 3, **settings}
    settings |= {**keep._asdict(), "temperature": temperature}
    return model, sample(model, TOKENIZER, PROMPTS, **settings)


def whole(model, rollout, temperature):
    """The policy's log-probs of every token of the vocabulary, by a plain pass."""
    with torch.no_grad():
        logits = model(rollout.ids, use_cache=False).logits
    rows = torch.arange(len(rollout))[:, None]
    return (logits[rows, rollout.positions - 1] / temperature).log_softmax(-1)


@BY_KEEP
def test_what_is_drawn_and_its_log_prob_and_entropy(keep):
    """From a plain pass and the processors of transformers; float64."""
    model, rollout = drawn(keep)
    real = rollout.mask.bool()
    assert real.sum() > 300
    policy = whole(model, rollout, 1.3)[real]
    left = by_transformers(policy, keep)
    assert (left.exp().sum(-1) - 1).abs().max() < 1e-12
    chosen = rollout.tokens[real][:, None]
    assert left.gather(1, chosen).isfinite().all()  # no removed token was drawn
    assert (left.gather(1, chosen)[:, 0] - rollout.logp[real]).abs().max() < 1e-9
    entropy = torch.distributions.Categorical(left.exp()).entropy()
    assert (entropy - rollout.entropy[real]).abs().max() < 1e-6
    # Something was removed, and would have been drawn.
    removed = policy.exp()[left.isneginf()].sum() / len(policy)
    assert removed > 0.02
    assert rollout.entropy[real].mean() < 0.98 * -(policy.exp() * policy).sum(-1).mean()


def test_tokens_are_drawn_as_often_as_they_should_be():
    """Two are left, 4000 first tokens of one prompt: five standard errors."""
    model = random_model()
    settings = {"group_size": 4000, "max_new_tokens": 1, "seed": 5}
    rollout = sample(model, TOKENIZER, PROMPTS[:1], top_k=2, **settings)
    tokens, counts = rollout.tokens[:, 0].unique(return_counts=True)
    assert len(tokens) == 2
    policy = whole(model, rollout.rows(torch.tensor([0])), 1.0)[0, 0]
    expected = truncated(policy, Truncation(top_k=2)).exp()[tokens]
    spread = (expected * (1 - expected) / 4000).sqrt()
    assert ((counts / 4000 - expected).abs() < 5 * spread).all()


@pytest.mark.parametrize("off", [{}, {"top_p": 1.0}, {"top_p": 1, "min_p": 0.0}])
def test_what_removes_nothing_changes_no_bit(off):
    plain = drawn(Truncation(), model=random_model())[1]
    other = drawn(Truncation(**off), model=random_model())[1]
    assert torch.equal(plain.ids, other.ids)
    assert torch.equal(plain.logp, other.logp)
    assert torch.equal(plain.entropy, other.entropy)
    assert not TrainConfig(**off).mismatch


def test_of_one_token_nothing_is_left_to_chance():
    """Greedy, although the policy is not: log-prob 0, entropy 0."""
    _, one = drawn(Truncation(top_k=1), seed=0)
    _, other = drawn(Truncation(min_p=1.0), seed=1)
    assert torch.equal(one.ids, other.ids)
    for rollout in (one, other):
        assert rollout.logp.abs().max() == 0 and rollout.entropy.abs().max() == 0


# In training


@BY_KEEP
def test_the_old_policy_is_the_whole_one(keep):
    """π_old by teacher forcing; π_old / q is what was kept of it, never above 1."""
    settings = {k: v for k, v in keep._asdict().items() if v is not None}
    assert TrainConfig(**settings).mismatch
    run = prepared(model=llama(), temperature=1.2, **settings)
    batch, metrics = collect(run, 0)
    rollout, real = batch.rollout, batch.rollout.mask.bool()
    assert (log_probs(run.model, rollout, 1.2)[0] - batch.old_logp).abs().max() < (
        ROUNDING
    )
    policy = whole(run.model, rollout, 1.2)
    kept = policy.exp().masked_fill(truncated(policy, keep).isneginf(), 0).sum(-1)
    ratio = truncated_weight(batch.old_logp, rollout.logp, rollout.mask)
    assert ((ratio - kept)[real].abs() < ROUNDING).float().mean() > 0.99
    assert ratio[real].max() < 1 + ROUNDING
    assert ratio[real].min() < 0.95
    assert metrics["sampling/kl"] > 0.01
    entropy = (rollout.entropy * rollout.mask).sum() / rollout.mask.sum()
    assert metrics["entropy"] == pytest.approx(entropy.item())


def test_a_cap_of_1_corrects_for_what_was_left_out():
    """Each token's weight is the kept share; without it, 1."""
    losses = []
    for cap in (None, 1.0):
        run = prepared(
            top_p=0.7, max_rollout_weight=cap, minibatches=1, allow_on_policy=True
        )
        batch, _ = collect(run, 0)
        losses.append(whole_loss(run, batch))
    share = (batch.old_logp - batch.rollout.logp).exp().clamp(max=1)
    weight = batch.mask / batch.mask.sum(-1, keepdim=True) / len(batch.mask)
    assert batch.advantages.abs().max() > 0
    for loss, factor in zip(losses, (1.0, share)):  # the ratio is 1
        wanted = -(weight * factor * batch.advantages).sum()
        assert loss.item() == pytest.approx(wanted.item(), abs=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-3


def test_the_check_of_the_sampler_is_of_the_whole_distribution():
    """A run that draws from one token is no broken sampler."""
    history = small_run(top_k=3, rollouts=2)
    assert len(history) == 2
    prepared(top_k=1)


def test_evaluation_draws_as_training_does(monkeypatch):
    """From one token: whatever the dice, the answers are the same."""
    found = [
        evaluate(warm_model(), TOKENIZER, problems=64, samples=4, top_k=1, batch=64)
        for _ in range(2)
    ]
    scores = evaluation.scores(warm_model(), TOKENIZER, samples=4, top_k=1)
    assert found[0] == found[1]
    assert (scores == scores[:, :1]).all() and scores.mean() not in (0, 1)
    seen, sampler = [], evaluation.sample

    def spy(*arguments, **given):
        seen.append({k: given[k] for k in ("top_k", "top_p", "min_p", "temperature")})
        return sampler(*arguments, **given)

    monkeypatch.setattr(evaluation, "sample", spy)
    settings = {"top_k": 9, "top_p": 0.9, "min_p": 0.01, "temperature": 0.8}
    small_run(rollouts=1, **settings)
    assert seen == [settings]
