"""Mixture of experts: recorded, replayed, disturbed; RSPO by its properties."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn, tensor
from torch.autograd import grad
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from refimpl import moe
from refimpl.algorithms import ALGORITHMS
from refimpl.importance import truncated_weight
from refimpl.normalisers import seq_mean_token_mean
from refimpl.rollout import Rollout, sample
from refimpl.scoring import log_probs
from refimpl.trainer import TrainConfig, collect, prepare
from refimpl.update import _loss, _micro_batches, _one_update, _weighed, update
from tests.worlds import (
    PROMPTS,
    ROUNDING,
    SMALL,
    TOKENIZER,
    random_model,
    random_moe,
    small_run,
)

GMPO, RSPO = ALGORITHMS["gmpo"], ALGORITHMS["rspo"]


def recorded(model, seed=3, **settings) -> Rollout:
    with moe.routed(model) as routing:
        return sample(
            model,
            TOKENIZER,
            PROMPTS,
            group_size=3,
            max_new_tokens=16,
            seed=seed,
            routing=routing,
            **settings,
        )


def scored(model, rollout, experts=None):
    """Log-probs of a rollout and the routing of that pass."""
    with moe.routed(model, experts=experts) as routing:
        logp, _ = log_probs(model, rollout)
    return logp, routing


def read_positions(rollout):
    """(B, L): the tokens that the sampler read, all but each row's last."""
    columns = torch.arange(rollout.ids.shape[1])
    return columns < (rollout.end - 1)[:, None]


@torch.no_grad()
def move_routers(model, size: float) -> None:
    """As if many updates had passed; only the routers, and always the same way."""
    generator = torch.Generator().manual_seed(0)
    for router in moe.routers(model):
        noise = torch.randn(router.weight.shape, generator=generator)
        router.weight.add_(size * noise)


# Recording


def test_the_sampler_and_teacher_forcing_visit_the_same_experts():
    model = random_moe()
    rollout = recorded(model)
    assert len(set(rollout.length.tolist())) > 2
    logp, routing = scored(model, rollout)
    experts = routing.visited(len(rollout))
    read = read_positions(rollout)
    assert torch.equal(rollout.experts[read], experts[read])
    assert (rollout.experts[~read] == moe.FREE).all()
    again = routing.log_probs(experts)
    assert (rollout.router_logp[read] - again[read]).abs().max() < ROUNDING
    assert (rollout.router_logp[~read] == 0).all()
    assert (logp - rollout.logp).abs().max() < ROUNDING


def test_recording_changes_nothing():
    model = random_moe()
    with_record, without = (
        recorded(model),
        sample(model, TOKENIZER, PROMPTS, group_size=3, max_new_tokens=16, seed=3),
    )
    assert without.experts is None
    assert torch.equal(with_record.ids, without.ids)
    assert torch.equal(with_record.logp, without.logp)
    assert not any(r._forward_hooks for r in moe.routers(model))


def test_the_recorded_probability_is_the_routers():
    """Against softmax(W x), x as it reaches each router."""
    model = random_moe()
    rollout = recorded(model)
    inputs = []
    handles = [
        router.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        for router in moe.routers(model)
    ]
    log_probs(model, rollout)
    for handle in handles:
        handle.remove()
    read = read_positions(rollout)
    assert len(inputs) == rollout.experts.shape[2] == 2
    for layer, (x, router) in enumerate(zip(inputs, moe.routers(model), strict=True)):
        probs = (x.flatten(0, -2) @ router.weight.T).softmax(-1)
        probs = probs.view(*rollout.ids.shape, -1)
        best = probs.topk(2).indices
        assert torch.equal(best[read], rollout.experts[:, :, layer][read].long())
        expected = probs.gather(-1, best).log()
        gap = (expected - rollout.router_logp[:, :, layer])[read]
        assert gap.abs().max() < ROUNDING


def test_rows_and_join_carry_the_experts():
    model = random_moe()
    one, other = recorded(model, 1), recorded(model, 2).rows(tensor([1, 0, 2]))
    assert one.ids.shape[1] > other.ids.shape[1]
    part = one.rows(tensor([4, 0]))
    width = part.ids.shape[1]
    assert torch.equal(part.experts, one.experts[[4, 0], :width])
    assert torch.equal(part.router_logp, one.router_logp[[4, 0], :width])
    joined = Rollout.join([one, other])
    for name, fill in (("experts", moe.FREE), ("router_logp", 0)):
        for rows, source in ((slice(12), one), (slice(12, None), other)):  # in order
            whole, piece = getattr(joined, name)[rows], getattr(source, name)
            assert torch.equal(whole[:, : piece.shape[1]], piece)
            assert (whole[:, piece.shape[1] :] == fill).all()


def test_a_recorded_rollout_costs_six_bytes_per_token_layer_and_expert():
    rollout = recorded(random_moe())
    entries = rollout.ids.numel() * 2 * 2  # layers × k
    assert rollout.experts.nbytes == 2 * entries
    assert rollout.router_logp.nbytes == 4 * entries


# Replay


def test_replay_of_its_own_experts_gives_the_old_policy_exactly():
    model = random_moe()
    rollout = recorded(model)
    free, _ = scored(model, rollout)
    replayed, _ = scored(model, rollout, rollout.experts)
    assert (replayed - free).abs().max() < ROUNDING
    result = ALGORITHMS["grpo"].policy_loss(
        replayed, free, torch.ones(12), rollout.mask
    )
    assert result.metrics["ratio/max_deviation"] == 0


def test_replay_visits_the_given_experts_with_live_router_weights():
    """Against a block computed by hand: Σ_e g_e · expert_e(x)."""
    model = random_moe()
    rollout = recorded(model)
    other = (rollout.experts + 1) % 8
    other = torch.where(rollout.experts == moe.FREE, moe.FREE, other)
    seen = {}
    block = model.model.layers[0].mlp
    handle = block.register_forward_hook(
        lambda _m, inputs, output: seen.update(x=inputs[0], y=output)
    )
    _, routing = scored(model, rollout, other)
    handle.remove()
    assert torch.equal(
        routing.visited(12)[read_positions(rollout)], other[read_positions(rollout)]
    )
    x, (row, column) = seen["x"], (2, 3)
    experts, bank = other[row, column, 0].tolist(), block.experts
    logits = block.gate.weight @ x[row, column]
    weights = logits[experts].softmax(-1)
    expected = 0
    for e, weight in zip(experts, weights, strict=True):
        gate, up = (bank.gate_up_proj[e] @ x[row, column]).chunk(2)
        expected = expected + weight * (bank.down_proj[e] @ (bank.act_fn(gate) * up))
    assert (seen["y"][row, column] - expected).abs().max() < ROUNDING


def test_replay_freezes_the_choice_and_not_the_router():
    model = random_moe()
    rollout = recorded(model)
    before, _ = scored(model, rollout, rollout.experts)
    gradients = grad(before.sum(), [r.weight for r in moe.routers(model)])
    assert all(g.abs().max() > 1e-4 for g in gradients)
    move_routers(model, 0.5)
    after, routing = scored(model, rollout, rollout.experts)
    read = read_positions(rollout)
    assert torch.equal(routing.visited(12)[read], rollout.experts[read])
    assert not torch.equal(routing.chosen(12)[read], rollout.experts[read])
    assert (after - before).abs().max() > 1e-3  # live weights


def test_where_nothing_was_recorded_the_router_chooses():
    model = random_moe()
    rollout = recorded(model)
    free = torch.full_like(rollout.experts, moe.FREE)
    assert (scored(model, rollout)[1].log_probs(free) == 0).all()
    assert torch.equal(scored(model, rollout, free)[0], scored(model, rollout)[0])


# Noise


def test_noise_changes_experts_and_only_its_generator_decides_how():
    model = random_moe()
    rollout = recorded(model)

    def noisy(seed, noise=0.5):
        generator = torch.Generator().manual_seed(seed)
        with moe.routed(model, noise=noise, generator=generator) as routing:
            logp, _ = log_probs(model, rollout)
        return logp, routing

    plain, routing = scored(model, rollout)
    (one, its), (again, _), (other, _) = noisy(1), noisy(1), noisy(2)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, plain)
    first = its.logits[0] - routing.logits[0]  # layer 0 reads undisturbed input
    assert first.std().item() == pytest.approx(0.5, rel=0.1)
    assert torch.equal(its.visited(12), its.chosen(12))
    assert torch.equal(noisy(1, noise=0.0)[0], plain)


# Other models


SMALLEST = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": TOKENIZER.eos_token_id,
}


def by_length(completions, **_):
    return [float(len(text)) for text in completions]


def family(kind, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(kind(**SMALLEST, **settings)).eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: family(MixtralConfig, num_local_experts=4),
        lambda: family(OlmoeConfig, num_experts=4, norm_topk_prob=False),
        lambda: family(OlmoeConfig, num_experts=4, norm_topk_prob=True),
        lambda: family(GptOssConfig, num_local_experts=4, head_dim=16),
        lambda: family(
            Qwen3MoeConfig,
            num_experts=4,
            moe_intermediate_size=32,
            head_dim=16,
            mlp_only_layers=[0],
        ),
    ],
    ids=["mixtral", "olmoe", "olmoe, normalised", "gpt-oss", "one sparse layer"],
)
def test_other_families_replay_exactly(make):
    model = make()
    rollout = recorded(model)
    free, routing = scored(model, rollout)
    replayed, _ = scored(model, rollout, routing.visited(len(rollout)))
    assert (replayed - free).abs().max() < ROUNDING
    others = (routing.visited(len(rollout)) + 1) % 4
    assert (scored(model, rollout, others)[0] - free).abs().max() > 1e-5


def test_a_dense_model_is_refused_in_words():
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM has no router.*'tiny-moe'"):
        moe.routers(random_model())
    assert not moe.is_moe(random_model())
    assert moe.is_moe(random_moe())


def test_routers_of_another_kind_are_refused_in_words():
    model = family(
        DeepseekV3Config,
        moe_intermediate_size=32,
        n_routed_experts=4,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=0,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    with pytest.raises(ValueError, match=r"cannot be|has no router"):
        scored(model, recorded(random_moe()))
    arguments = {"model": model, "rollouts": 1, "reward": by_length, "epochs": 2}
    assert "router/shift" not in small_run(**arguments).columns
    with pytest.raises(ValueError, match=r"cannot be|has no router"):
        small_run(replay="R2", **arguments)


def test_scores_that_are_no_softmax_are_refused_in_words():
    class OddRouter(nn.Module):
        def forward(self, x):
            best = x.topk(2)
            return x, best.values.sigmoid(), best.indices

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = OddRouter()

    model = Model()
    with (
        pytest.raises(ValueError, match="scores of OddRouter are not a softmax"),
        moe.routed(model),
    ):
        model.gate(torch.arange(20.0).view(5, 4))


def test_experts_of_another_model_are_refused_in_words():
    model = random_moe()
    rollout = recorded(model)
    with (
        pytest.raises(ValueError, match="experts of 1 layers were recorded"),
        moe.routed(model, experts=rollout.experts[:, :, :1]),
    ):
        pass


# Metrics


def test_overlap_by_hand():
    old = tensor([[0, 1], [0, 1], [0, 1], [5, 2]])
    new = tensor([[1, 0], [1, 7], [6, 7], [5, 2]])
    assert moe.overlap(old, new).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_router_kl_by_hand():
    old, new = tensor([[0.6, 0.4]]).log(), tensor([[0.5, 0.5]]).log()
    expected = 0.6 * math.log(1.2) + 0.4 * math.log(0.8)
    assert moe.router_kl(old + 3, new).item() == pytest.approx(expected, abs=1e-6)
    assert moe.router_kl(old, old + 1).abs().max() < 1e-5


def test_router_shift_by_hand():
    """Two layers, two experts: drifts 0.1, 0.3 and 0, 0.2 have the mean 0.15."""
    old = tensor([[[-1.0, -2.0], [-0.5, -1.5]]])
    new = tensor([[[-1.1, -1.7], [-0.5, -1.3]]])
    assert moe.router_shift(new, old).item() == pytest.approx(math.exp(-0.15))
    assert moe.router_shift(old, new).item() == pytest.approx(math.exp(-0.15))
    assert moe.router_shift(old, old).item() == 1
    assert moe.router_shift(new - 3, old, floor=0.4).item() == pytest.approx(0.4)
    new.requires_grad_()
    slope = grad(moe.router_shift(new, old).sum(), new)[0]
    gamma = math.exp(-0.15)
    expected = gamma / 4 * tensor([[[1.0, -1.0], [0.0, -1.0]]])
    assert torch.allclose(slope, expected)
    floored = grad(moe.router_shift(new - 3, old, floor=0.9).sum(), new)[0]
    assert (floored == 0).all()


def test_load_balance_is_that_of_transformers():
    model = random_moe()
    rollout = recorded(model)
    _, routing = scored(model, rollout)
    real = read_positions(rollout)
    for mask in (None, real):
        ours = moe.load_balance(routing, mask)
        theirs = load_balancing_loss_func(
            tuple(routing.logits), 8, 2, None if mask is None else mask.long()
        )
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    even = moe.Routing([torch.zeros(8, 4)], [tensor([[0, 1], [2, 3]] * 4)])
    assert moe.load_balance(even).item() == pytest.approx(2.0)


# Training


def moe_run(algorithm="grpo", **settings):
    return prepare(
        algorithm, replace(SMALL, **settings), random_moe(), TOKENIZER, None, ties_not
    )


def whole_loss(run, batch):
    """(loss, metrics, log-ratios) of a rollout that is one mini-batch."""
    weighed, tokens = _weighed(run, batch, torch.arange(len(batch.rollout)))
    return _loss(run, weighed, tokens)


def ties_not(completions, **_):
    return [float(len(c) % 7) + 0.1 * i for i, c in enumerate(completions)]


def test_without_mismatch_r2_and_r3_are_the_same_run():
    runs = [
        small_run(model=random_moe(), reward=ties_not, replay=kind, dtype="float64")
        for kind in ("R2", "R3")
    ]
    plain = small_run(model=random_moe(), reward=ties_not, dtype="float64")
    for name in ("reward", "log_ratio/q99", "grad_norm"):
        assert runs[0][name] == pytest.approx(runs[1][name], rel=1e-8, abs=1e-8)
    assert runs[0]["sampling/expert_change"] == [0.0] * 3
    assert "sampling/expert_change" not in plain.rows[0]
    assert plain["router/expert_change"][-1] > 0


def test_r2_replays_the_training_pass_and_r3_the_sampler():
    r2, r3 = (moe_run(replay=kind, router_noise=1.0) for kind in ("R2", "R3"))
    (of_r2, m2), (of_r3, m3) = collect(r2, 0), collect(r3, 0)
    assert torch.equal(of_r2.rollout.ids, of_r3.rollout.ids)
    assert m2["sampling/expert_change"] > 0.05
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
        assert whole_loss(run, batch)[1]["ratio/max_deviation"] < 1e-4


def test_three_policies_are_kept_apart():
    """The sampler's, π_old's and π_θ's log-probs, and who is compared with whom."""
    run = moe_run(router_noise=1.0, max_rollout_weight=2.0)
    batch, metrics = collect(run, 0)
    old, _ = scored(run.model, batch.rollout)
    assert (batch.old_logp - old).abs().max() < ROUNDING
    gap = (batch.rollout.logp - old) * batch.rollout.mask
    assert gap.abs().max() > 0.01
    tokens = batch.rollout.mask.sum()
    assert metrics["sampling/kl"] == pytest.approx(
        (((-gap).exp() - 1 + gap).sum() / tokens).item(), abs=1e-4
    )
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(
        gap.abs().max().item(), abs=1e-4
    )
    loss, found, z = whole_loss(run, batch)
    assert z.abs().max() < 1e-4  # π_θ against π_old, not against the sampler
    weight = (old - batch.rollout.logp).exp().clamp(max=2.0)
    library = truncated_weight(old, batch.rollout.logp, batch.mask, 2.0)
    assert torch.allclose(weight * batch.mask, library * batch.mask)
    aux = run.config.router_aux_loss * found["router/load_balance"]
    per_row = (-weight * batch.advantages * batch.rollout.mask).sum(-1)
    expected = (per_row / batch.rollout.length).mean() + aux
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)


def test_a_dense_model_may_sample_in_bfloat16():
    config = replace(SMALL, rollout_dtype="bfloat16", max_rollout_weight=2.0)
    run = prepare("grpo", config, random_model(), TOKENIZER, None, ties_not)
    batch, metrics = collect(run, 0)
    old, _ = log_probs(run.model, batch.rollout)
    assert torch.allclose(batch.old_logp, old, atol=ROUNDING)
    assert metrics["sampling/sampling_logp_difference/mean"] < 0.1
    assert "sampling/expert_change" not in metrics
    assert torch.isfinite(tensor(update(run, batch, 0)["loss"]))


def test_without_mismatch_the_sampler_is_the_old_policy():
    run = moe_run()
    batch, metrics = collect(run, 0)
    assert batch.old_logp is batch.rollout.logp
    assert not any(name.startswith("sampling/sampling") for name in metrics)


@pytest.mark.parametrize("placement", moe.PLACEMENTS)
def test_router_shift_reaches_the_loss(placement):
    narrow = {"epsilon": 0.01}  # it clips, so that the placement matters
    run = moe_run("rspo", placement=placement, hyperparameters=narrow)
    batch, _ = collect(run, 0)
    # Shifted, or what γ takes from good and from bad responses would nearly cancel.
    batch = replace(batch, advantages=batch.advantages + 1)
    move_routers(run.model, 0.03)
    with torch.no_grad():  # the ratios leave 1 to both sides
        run.model.get_output_embeddings().weight.mul_(1.2)
    loss, found, _ = whole_loss(run, batch)
    logp, routing = scored(run.model, batch.rollout)
    here = batch.rollout.positions - 1  # where the token's log-prob arises
    drift = routing.log_probs(batch.rollout.experts) - batch.rollout.router_logp
    gamma = (-drift.abs().mean((-1, -2))).exp().clamp(min=0.7).gather(1, here)
    gamma = gamma.clamp(max=1)
    tensors = logp, batch.old_logp, batch.advantages, batch.mask
    by_hand = {
        name: shifted_loss(RSPO, (*tensors, gamma), name, **narrow).item()
        for name in moe.PLACEMENTS
    }
    aux = run.config.router_aux_loss * found["router/load_balance"]
    assert loss.item() == pytest.approx(by_hand[placement] + aux, abs=ROUNDING)
    assert abs(by_hand["before_clip"] - by_hand["after_clip"]) > 10 * ROUNDING
    plain = GMPO.policy_loss(*tensors, **narrow).loss
    assert abs(loss.item() - plain.item() - aux) > 100 * ROUNDING
    mean = (gamma * batch.mask).sum() / batch.mask.sum()
    assert found["router/shift"] == pytest.approx(mean.item(), abs=1e-5)
    change = 1 - moe.overlap(batch.rollout.experts, routing.chosen(16)).mean(-1)
    at_tokens = (change.gather(1, here) * batch.mask).sum() / batch.mask.sum()
    assert found["router/expert_change"] == pytest.approx(at_tokens.item(), abs=1e-5)


def shifted_loss(algorithm, batch, placement="before_clip", **hyper):
    """The loss of (logp, old_logp, advantages, mask, γ) under the router shift."""
    logp, old_logp, a, mask, gamma = batch
    old_logp, weight = moe.shifted(
        old_logp,
        seq_mean_token_mean(mask),
        mask,
        gamma,
        placement,
        algorithm.one_ratio,
    )
    return algorithm.policy_loss(logp, old_logp, a, mask, weight, **hyper).loss


@pytest.mark.parametrize("kind", ["R2", "R3"])
def test_under_replay_the_experts_that_would_have_been_chosen_are_compared(kind):
    """Replay fixes those that are visited, so these would never show a change."""
    run = moe_run(replay=kind)
    batch, _ = collect(run, 0)
    assert whole_loss(run, batch)[1]["router/expert_change"] < 1e-3
    move_routers(run.model, 1.0)
    assert whole_loss(run, batch)[1]["router/expert_change"] > 0.05


def test_the_load_balancing_loss_is_in_the_gradient():
    found = {}
    for weight in (0.0, 1.0):
        run = moe_run(router_aux_loss=weight)
        batch, _ = collect(run, 0)
        loss, metrics, _ = whole_loss(run, batch)
        router = moe.routers(run.model)[0].weight
        found[weight] = (loss.item(), grad(loss, router)[0], metrics)
    gap = found[1.0][0] - found[0.0][0]
    assert gap == pytest.approx(found[1.0][2]["router/load_balance"], rel=1e-4)
    assert (found[1.0][1] - found[0.0][1]).abs().max() > 1e-4


def test_micro_batches_do_not_change_the_metrics_of_the_routers():
    found = []
    for size in (4, 16):
        run = moe_run(micro_batch_size=size, router_aux_loss=0.0)
        batch, _ = collect(run, 0)
        found.append(update(run, batch, 0))
    for name in ("router/expert_change", "router/shift", "grad_norm"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3, abs=1e-4)


def test_the_load_balancing_loss_is_shared_among_micro_batches():
    """Two identical halves: each pays half of what the whole pays."""
    run = moe_run(router_aux_loss=1.0)
    batch, _ = collect(run, 0)
    weighed, _ = _weighed(run, batch, torch.arange(16))
    half = next(_micro_batches(run, weighed, torch.arange(8)))
    tokens = half.mask.sum().item()
    part, metrics, _ = _loss(run, half, 2 * tokens)
    without = moe_run(router_aux_loss=0.0)
    plain, _, _ = _loss(without, half, 2 * tokens)
    paid = (part - plain).item()
    assert paid == pytest.approx(metrics["router/load_balance"] / 2, rel=1e-4)


def test_rows_left_out_do_not_thin_the_metrics_of_the_routers():
    """Three groups of four are dead: γ is the mean over what was passed."""

    def one_group_lives(prompts, completions, **_):
        return [
            float(len(c)) if p == prompts[0] else 1.0
            for p, c in zip(prompts, completions, strict=True)
        ]

    run = prepare("grpo", SMALL, random_moe(), TOKENIZER, None, one_group_lives)
    batch, metrics = collect(run, 0)
    assert metrics["frac_reward_zero_std"] == 0.75
    found = _one_update(run, batch, torch.arange(16), 0, [])
    assert found["router/shift"] > 0.99
    assert found["router/load_balance"] > 1


def test_float64_trains_with_the_plain_experts():
    history = small_run("rspo", model=random_moe(), reward=ties_not, dtype="float64")
    assert history.model.dtype == torch.float64
    assert max(history["ratio/max_deviation"]) > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "settings", "named"),
    [
        ("rspo", {}, "router_shift"),
        ("grpo", {"replay": "R3"}, "replay"),
        ("grpo", {"router_noise": 0.1}, "router_noise"),
        ("gspo", {"router_shift": True, "replay": "R2"}, "replay, router_shift"),
    ],
)
def test_a_dense_model_is_refused_before_any_work(
    algorithm, settings, named, monkeypatch
):
    monkeypatch.setattr("refimpl.collect.sample", None)
    with pytest.raises(ValueError, match=rf"^{named}: .*no router.*tiny-moe"):
        small_run(algorithm, model=random_model(), **settings)


# RSPO


@pytest.fixture
def batch():
    """(logp, old, advantages, mask, γ): a clipped token on each side, padding."""
    generator = torch.Generator().manual_seed(5)
    shape = (4, 6)
    old = -torch.rand(shape, generator=generator, dtype=torch.float64) - 0.1
    z = 0.35 * torch.randn(shape, generator=generator, dtype=torch.float64)
    z[0, 1], z[1, 2] = 0.9, -0.8
    mask = torch.ones(shape, dtype=torch.float64)
    mask[0, 4:], mask[2, 1:] = 0, 0
    a = tensor([1.2, -0.7, 0.5, -1.0], dtype=torch.float64)
    gamma = 0.7 + 0.3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return (old + z), old, a, mask, gamma


@pytest.mark.parametrize("placement", moe.PLACEMENTS)
def test_drift_never_weighs_a_response_up(batch, placement):
    """For either sign, more drift means no larger a weight on any of its tokens."""
    logp, old, a, mask, gamma = batch
    logp.requires_grad_()

    def weights(shift):
        loss = shifted_loss(RSPO, (logp, old, a, mask, shift), placement)
        return grad(loss, logp)[0].abs().sum(-1)

    bad = a < 0
    assert (weights(gamma) <= weights(torch.ones_like(gamma)) + 1e-12)[bad].all()
    value = [
        shifted_loss(RSPO, [x[bad] for x in (logp, old, a, mask, shift)], placement)
        for shift in (torch.ones_like(gamma), gamma)
    ]
    assert value[1] < value[0]  # a bad response counts for less


def test_rspo_switches_router_shift_on_and_others_do_not():
    for name, algorithm in ALGORITHMS.items():
        completed = TrainConfig().completed(algorithm)
        assert completed.router_shift is (name == "rspo")


@pytest.mark.parametrize("placement", moe.PLACEMENTS)
def test_one_token_of_rspo_follows_the_shift(placement):
    """γ r below the bound, and above it e^0.4, or γ e^0.4."""
    ratios, cap = [0.5, 1.0, 1.3, 1.6, 2.5], math.exp(0.4)
    one = torch.ones(1, 1, dtype=torch.float64)
    for r in ratios:
        logp = (r * one).log().requires_grad_()
        token = (logp, 0 * one, one[0], one, 0.8 * one)
        loss = shifted_loss(RSPO, token, placement)
        slope = grad(loss, logp)[0].item()
        if placement == "before_clip":
            value, free = min(0.8 * r, cap), 0.8 * r < cap
        else:
            value, free = 0.8 * min(r, cap), r < cap
        assert -loss.item() == pytest.approx(value, abs=1e-12)
        assert -slope == pytest.approx(value if free else 0.0, abs=1e-12)


def test_routers_may_learn_at_a_rate_of_their_own():
    """AdamW's first step is the rate, whatever the gradient."""
    moved = {}
    for times in (1.0, 30.0):
        run = moe_run(router_rate=times, learning_rate=1e-4)
        before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
        batch, _ = collect(run, 0)
        _one_update(run, batch, torch.arange(len(batch.rollout)), 0, [])
        moved[times] = {
            name: (p - before[name]).abs().max().item()
            for name, p in run.model.named_parameters()
        }
    for name, step in moved[1.0].items():
        assert step == pytest.approx(1e-4, rel=0.05), name
        times = 30 if ".gate." in name else 1
        assert moved[30.0][name] == pytest.approx(times * 1e-4, rel=0.05), name


def test_a_dense_model_has_no_routers_to_learn_faster():
    settings = replace(SMALL, router_rate=2.0)
    with pytest.raises(ValueError, match="router_rate: grpo with this needs a mixture"):
        prepare("grpo", settings, random_model(), TOKENIZER)
