"""Mixture of experts: recorded, replayed, disturbed; drift by hand, and in training."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from refimpl import UserError, collect, log_probs, moe, sample
from refimpl.rollout import FREE, Rollout
from tests.rollout.families import EXPERTS, HEADS, SPARSE, SUPPORTED, build
from tests.worlds import (
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    fixed_noise,
    measured_loss,
    prepared,
    random_moe,
    small_run,
)


def exact(model):
    """In float64, which the fused experts do not have."""
    model.set_experts_implementation("eager")
    return model.double()


SHAPE = {"group_size": 3, "max_new_tokens": 16, "seed": 3}


def recorded(model, prompts=PROMPTS, **settings) -> Rollout:
    with moe.routed(model) as routing:
        rollout = sample(model, TOKENIZER, prompts, **SHAPE | settings)
        return moe.recorded(rollout, routing)


def scored(model, rollout, experts=None):
    """Log-probs of a rollout and the routing of that pass."""
    with moe.routed(model, experts=experts) as routing:
        return log_probs(model, rollout)[0], routing


def read_positions(rollout):
    """(B, L): the tokens that the sampler read, all but each row's last."""
    columns = torch.arange(rollout.ids.shape[1])
    return columns < (rollout.end - 1)[:, None]


ONE_SPARSE = {**SPARSE, **HEADS, "mlp_only_layers": [0]}
FAMILIES = {
    "Qwen3-MoE, one sparse layer": ("Qwen3MoeConfig", ONE_SPARSE),
    **{name: SUPPORTED[name] for name in ("Mixtral", "OLMoE", "GPT-OSS")},
    "OLMoE, normalised": ("OlmoeConfig", {**EXPERTS, "norm_topk_prob": True}),
}
MODELS = {"tiny": random_moe}
MODELS |= {name: partial(build, *family) for name, family in FAMILIES.items()}
ANY_FAMILY = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


# Recording


def alone(model, rollout, i: int):
    """Experts and router log-probs of a row's tokens, read at once, by itself."""
    ids = rollout.ids[i : i + 1, : int(rollout.end[i])]
    with torch.no_grad(), moe.routed(model) as routing:
        model(ids, use_cache=False)
    experts = routing.visited(1)
    return experts[0], routing.log_probs(experts)[0]


def is_record(model, rollout) -> bool:
    """Of every token that was read, by the row alone; nothing of any other."""
    right = []
    for i in range(len(rollout)):
        experts, logp = alone(model, rollout, i)
        read = int(rollout.end[i]) - 1
        right += [
            torch.equal(rollout.experts[i, :read], experts[:read]),
            (rollout.router_logp[i, :read] - logp[:read]).abs().max().item() < 1e-6,
            (rollout.experts[i, read:] == FREE).all().item(),
            (rollout.router_logp[i, read:] == 0).all().item(),
        ]
    return all(right)


@ANY_FAMILY
def test_what_is_recorded_is_what_each_row_alone_visits(make):
    """Prompts of three lengths, rows that leave at different times; float64."""
    model = exact(make())
    rollout = recorded(model, temperature=2.0)
    assert len(set(rollout.length.tolist())) > 3 and not rollout.truncated.all()
    assert rollout.prompt_length.unique().numel() == 3
    assert is_record(model, rollout)
    assert rollout.experts[read_positions(rollout)].unique().numel() >= 4
    assert rollout.experts.dtype == torch.int16 and not rollout.experts.is_inference()


# Replay


@ANY_FAMILY
def test_replay_of_what_was_visited_is_the_pass_without_replay(make):
    """In value, and in the gradient of every weight; other experts are another pass."""
    model = exact(make())
    rollout = recorded(model, temperature=2.0)

    def passed(experts=None):
        logp, _ = scored(model, rollout, experts)
        weight = torch.linspace(-1, 2, logp.numel()).view_as(logp)
        return logp, grad((weight * logp).sum(), list(model.parameters()))

    (free, slopes), (replayed, again) = passed(), passed(rollout.experts)
    assert (replayed - free).abs().max() < 1e-5  # router weights are float32
    for (name, p), one, other in zip(model.named_parameters(), slopes, again):
        assert (one - other).abs().max() < 1e-5 * (1 + one.abs().max()), name
        if p is model.get_input_embeddings().weight or ".gate." in name:
            assert one.abs().max() > 1e-3, name
    others = torch.where(rollout.experts == FREE, FREE, rollout.experts ^ 1)
    assert (scored(model, rollout, others)[0] - free).abs().max() > 1e-3
    padding = torch.arange(rollout.ids.shape[1]) >= rollout.end[:, None]
    padded = replace(rollout, ids=rollout.ids.masked_fill(padding, 5))
    one, other = (moe.Drift(x, scored(model, x)[1]) for x in (rollout, padded))
    assert padding.any() and one.balance.item() == pytest.approx(other.balance.item())


def test_where_nothing_is_recorded_the_router_is_free():
    model = random_moe()
    rollout = recorded(model)
    free = torch.full_like(rollout.experts, FREE)
    plain, routing = scored(model, rollout)
    assert (routing.log_probs(free) == 0).all()
    assert torch.equal(scored(model, rollout, free)[0], plain)


# Noise


def test_noise_changes_experts_and_only_its_generator_decides_how():
    model = random_moe()
    rollout = recorded(model)

    def noisy(seed, noise=0.5):
        generator = torch.Generator().manual_seed(seed)
        with moe.routed(model, noise=noise, generator=generator) as routing:
            return log_probs(model, rollout)[0], routing

    plain, routing = scored(model, rollout)
    (one, its), (again, _), (other, _) = noisy(1), noisy(1), noisy(2)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, plain)
    first = its.logits[0] - routing.logits[0]  # layer 0 reads undisturbed input
    assert first.std().item() == pytest.approx(0.5, rel=0.1)
    assert torch.equal(its.visited(12), its.favoured(12))
    assert torch.equal(noisy(1, noise=0.0)[0], plain)
    slight, its = noisy(1, noise=1e-4)  # no other choice, but other weights
    assert torch.equal(its.visited(12), routing.visited(12))
    assert not torch.equal(slight, plain)


# Routers of another kind


def test_a_model_of_another_kind_trains_as_a_dense_one_and_is_refused_by_name():
    model = build(*SUPPORTED["DeepSeek-V3"])
    with pytest.raises(UserError, match=r"cannot be recorded|has no router"):
        scored(model, recorded(random_moe()))
    arguments = {"model": model, "rollouts": 1, "reward": fixed_noise, "epochs": 2}
    assert "router/shift" not in small_run(**arguments).columns
    with pytest.raises(UserError, match=r"cannot be recorded|has no router"):
        prepared(model=model, replay="R2")


# Metrics


def test_overlap_by_hand():
    """That of probabilities, the router shift, is in tests/losses/test_shift.py."""
    old, new = tensor([[0, 1], [0, 1], [0, 1]]), tensor([[1, 0], [1, 7], [6, 7]])
    assert moe.overlap(old, new).tolist() == [1.0, 0.5, 0.0]


# Training


def moe_run(algorithm="grpo", **settings):
    return prepared(algorithm, model=random_moe(), reward=fixed_noise, **settings)


def test_r2_replays_the_training_pass_and_r3_the_sampler():
    r2, r3 = (moe_run(replay=kind, router_noise=1.0) for kind in ("R2", "R3"))
    (of_r2, m2), (of_r3, m3) = collect(r2, 0), collect(r3, 0)
    assert torch.equal(of_r2.rollout.ids, of_r3.rollout.ids)
    change = 1 - moe.overlap(of_r3.rollout.experts, of_r2.rollout.experts).mean(-1)
    change = change.gather(1, of_r2.rollout.positions - 1)[of_r2.rollout.mask.bool()]
    assert m2["sampling/expert_change"] == pytest.approx(change.mean().item())
    assert change.mean() > 0.05
    assert m3["sampling/expert_change"] == 0
    read = read_positions(of_r2.rollout)
    _, routing = scored(r2.model, of_r2.rollout)
    assert torch.equal(of_r2.rollout.experts[read], routing.visited(16)[read])
    assert not torch.equal(of_r2.rollout.experts, of_r3.rollout.experts)
    for run, batch in ((r2, of_r2), (r3, of_r3)):
        logp, its = scored(run.model, batch.rollout, batch.rollout.experts)
        assert (logp - batch.old_logp).abs().max() < ROUNDING
        gap = its.log_probs(batch.rollout.experts) - batch.rollout.router_logp
        assert gap.abs().max() < ROUNDING  # π_old's router, not the noisy one
        assert measured_loss(run, batch)[1]["ratio/max_deviation"] < 1e-4
