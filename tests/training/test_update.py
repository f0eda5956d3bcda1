"""K updates on a batch: each gradient, what it is averaged over, each step."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from refimpl import moe, normalisers
from refimpl import update as updating
from refimpl.algorithms import ALGORITHMS, Objective, value_loss
from refimpl.collect import collect
from refimpl.kl import ESTIMATORS
from refimpl.models import frozen_copy
from refimpl.normalisers import NORMALISERS
from refimpl.run import Batch
from refimpl.scoring import log_probs, values
from refimpl.update import update
from tests.worlds import (
    COURSE,
    EPSILON,
    ROUNDING,
    always_one,
    disturb,
    fixed_noise,
    largest_difference,
    prepared,
    random_model,
    random_moe,
    same_weights,
    small_run,
    warm_model,
    whole_loss,
)


@pytest.fixture
def steps(monkeypatch):
    """At every optimiser step: (learning rate, gradient norm) of each model."""
    seen, step = [], torch.optim.AdamW.step

    def norm(parameters):
        return torch.stack([p.grad.norm() for p in parameters]).norm().item()

    def spy(self, *arguments, **keywords):
        seen.append([(g["lr"], norm(g["params"])) for g in self.param_groups])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    return seen


# K updates


@pytest.mark.parametrize(("minibatches", "epochs"), [(2, 1), (4, 1), (1, 3), (2, 3)])
def test_k_updates_happen_on_every_rollout(minibatches, epochs, steps):
    history = small_run(rollouts=2, minibatches=minibatches, epochs=epochs)
    assert len(steps) == 2 * minibatches * epochs
    assert min(history["ratio/max_deviation"]) > 1e-3


def test_a_batch_that_was_not_filled_still_takes_k_updates(steps):
    """Five groups in four mini-batches: 2, 1, 1, 1, and not 2, 2, 1."""
    run = prepared(prompts_per_rollout=8, minibatches=4)
    batch, _ = collect(run, 0)
    five = (batch.rollout.group < 5).nonzero()[:, 0]
    rest = {
        f.name: None if (x := getattr(batch, f.name)) is None else x[five]
        for f in fields(batch)
        if f.name != "rollout"
    }
    part = Batch(replace(batch.rollout.rows(five)), **rest)
    width = part.rollout.mask.shape[1]
    rest = {k: None if x is None else x[:, :width] for k, x in rest.items()}
    update(run, Batch(part.rollout, **rest), 0)
    assert len(steps) == 4


def test_minibatches_are_whole_groups_reshuffled_every_epoch(monkeypatch):
    """Each epoch deals out every response once; no two orders need agree."""
    dealt, one_update = [], updating._one_update

    def spy(run, batch, chosen, *rest):
        dealt.append(chosen)
        return one_update(run, batch, chosen, *rest)

    monkeypatch.setattr(updating, "_one_update", spy)
    small_run(rollouts=3, prompts_per_rollout=8, minibatches=4, epochs=2)
    epochs = [dealt[i : i + 4] for i in range(0, len(dealt), 4)]
    assert len(epochs) == 6
    orders = set()
    for minibatches in epochs:
        assert torch.cat(minibatches).sort().values.tolist() == list(range(32))
        groups = [sorted(set((rows // 4).tolist())) for rows in minibatches]
        assert [len(group) for group in groups] == [2, 2, 2, 2]
        orders.add(str(groups))
    assert len(orders) == 6
    assert str([[0, 1], [2, 3], [4, 5], [6, 7]]) not in orders


def test_a_large_run_is_measured_on_a_part_of_its_tokens(monkeypatch):
    """torch's quantile takes 2²⁴ numbers at most."""
    monkeypatch.setattr(updating, "MAX_QUANTILE_INPUT", 64)
    row = small_run(rollouts=1).rows[0]
    assert row["log_ratio/q01"] <= row["log_ratio/q50"] <= row["log_ratio/q99"]
    assert row["log_ratio/q99"] > 0


def test_ratio_metrics_are_in_order():
    for row in small_run(rollouts=2, epochs=2).rows:
        low, middle, high = (row[f"log_ratio/q{q}"] for q in ("01", "50", "99"))
        assert low < middle < high
        assert low < 0 < high
        assert row["ratio/max_deviation"] >= max(np.expm1(high), -np.expm1(low))


# Micro-batches


VARIANTS = {
    "plain": ("grpo", {}),
    "per token": ("grpo", {"normaliser": "token_mean"}),
    "per group": ("grpo", {"normaliser": "group_token_mean"}),
    "by a constant": ("dr_grpo", {}),
    "with kl and entropy": ("reinforce", {"beta": 0.5, "entropy_bonus": 0.1}),
    "with a critic": ("ppo", {"beta": 0.5, "kl_in": "reward"}),
}


def after_one_update(algorithm, micro_batch_size, dtype, **settings):
    """A run, gradients still there, after the first update of its first rollout."""
    run = prepared(
        algorithm,
        **{**COURSE, "minibatches": 1, "epochs": 2, "max_new_tokens": 12},
        **settings,
        dtype=dtype,
        micro_batch_size=micro_batch_size,
    )
    if run.reference is not None:  # as if many updates had passed
        with torch.no_grad():
            for p in run.reference.parameters():
                p.mul_(0.9)
    run.optimizer.zero_grad = lambda **_: None
    batch, _ = collect(run, 0)
    updating._one_update(run, batch, torch.arange(128), 0, [])
    return run


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_micro_batch_size_changes_memory_and_not_the_update(variant):
    """In float64, because a sum in another order rounds differently.

    Groups have 8 responses: the first two sizes cut them.
    """
    algorithm, settings = VARIANTS[variant]
    sizes = (5, 12, 128)
    runs = [after_one_update(algorithm, n, "float64", **settings) for n in sizes]
    assert largest_difference(runs[0].model, frozen_copy(warm_model()).double()) > 1e-5
    for run in runs[:2]:
        assert largest_difference(run.model, runs[2].model) < 1e-12
        if run.critic is not None:
            assert largest_difference(run.critic, runs[2].critic) < 1e-12


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_in_float32_micro_batches_agree_to_rounding(algorithm):
    """Gradients, because Adam's first step is a sign, whatever the size.

    An entry of the gradient is a sum over 128 × 12 tokens; in any order, its error is
    at most the number of terms × ε × their size. The largest entry stands for that.
    """
    runs = [after_one_update(algorithm, n, "float32") for n in (4, 16, 128)]
    largest = max(p.grad.abs().max().item() for p in runs[2].model.parameters())
    for run in runs[:2]:
        pairs = zip(run.model.parameters(), runs[2].model.parameters(), strict=True)
        gap = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
        assert gap < 128 * 12 * EPSILON * largest


# The gradient of one update

CHOSEN = torch.cat([torch.arange(4, 8), torch.arange(12, 16)])
"""Two of four groups: a mini-batch is not the rollout."""

GRADIENTS = {
    **{name: (name, {}) for name in ALGORITHMS if name != "rspo"},
    **{name: ("grpo", {"normaliser": name}) for name in NORMALISERS},
    "a longer constant": ("dr_grpo", {"max_length": 100}),
    "wide": ("sapo", {"hyperparameters": {"tau_pos": 4.0, "tau_neg": 5.0}}),
    "filtered": ("grpo", {"overlong_filtering": True, "normaliser": "token_mean"}),
}


def same_gradients(found, expected) -> bool:
    """Up to rounding: also in float64 the models' norms are computed in float32."""
    largest = max(g.abs().max().item() for g in expected)
    gaps = [(f - e).abs().max().item() for f, e in zip(found, expected, strict=True)]
    return largest > 0 and max(gaps) < 1e-5 * largest


def grads(model) -> list:
    return [p.grad for p in model.parameters()]


def one_update(run, batch, chosen=CHOSEN) -> tuple[dict, torch.Tensor]:
    """Metrics, and log-probs of the chosen rows from before; gradients stay."""
    part = batch.rollout.rows(chosen)
    logp, _ = log_probs(run.model, part)
    run.optimizer.zero_grad()
    run.optimizer.zero_grad = lambda **_: None
    run.optimizer.step = lambda: None
    return updating._one_update(run, batch, chosen, 0, []), logp


@pytest.mark.parametrize("case", GRADIENTS)
def test_the_gradient_of_an_update_is_that_of_the_loss_on_its_rows(case):
    """Micro-batches of 3 cut groups; every mean is over the 8 rows, not over all 16."""
    algorithm, settings = GRADIENTS[case]
    run = prepared(
        algorithm,
        dtype="float64",
        reward=fixed_noise,
        micro_batch_size=3,
        max_grad_norm=1e9,
        **{"dynamic_sampling": False, "overlong_share": 0.0, **settings},
    )
    batch, _ = collect(run, 0)
    disturb(run.model)
    metrics, logp = one_update(run, batch)
    width = logp.shape[1]
    old_logp, advantages, mask = (
        x[CHOSEN, :width] for x in (batch.old_logp, batch.advantages, batch.mask)
    )
    named = NORMALISERS.get(settings.get("normaliser"), run.algorithm.normaliser)
    longest, group = settings.get("max_length", 24), batch.rollout.group[CHOSEN]
    weight = normalisers.apply(named, mask.double(), group=group, max_length=longest)
    loss, _ = run.algorithm.policy_loss(
        logp, old_logp, advantages, mask, weight, **run.config.hyperparameters
    )
    expected = torch.autograd.grad(loss, list(run.model.parameters()))
    assert same_gradients(grads(run.model), expected)
    if run.critic is None:
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-9)
    assert metrics["grad_norm"] == pytest.approx(
        torch.stack([g.norm() for g in expected]).norm().item()
    )


def test_the_critics_gradient_is_that_of_the_value_loss_on_its_rows():
    """Each token of the mini-batch counts the same, as in PPO's policy loss."""
    settings = {"dtype": "float64", "reward": fixed_noise, "max_grad_norm": 1e9}
    run = prepared("ppo", micro_batch_size=3, value_clip=0.05, **settings)
    batch, _ = collect(run, 0)
    disturb(run.critic)
    metrics, _ = one_update(run, batch)
    predicted = values(run.critic, batch.rollout.rows(CHOSEN))
    width = predicted.shape[1]
    old, targets, mask = (
        x[CHOSEN, :width] for x in (batch.old_values, batch.targets, batch.mask)
    )
    loss = value_loss(predicted, old, targets, mask, epsilon=0.05)
    expected = torch.autograd.grad(loss, list(run.critic.parameters()))
    assert same_gradients(grads(run.critic), expected)
    assert metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-9)


@pytest.mark.parametrize("detach", [True, False])
def test_the_router_shift_has_a_gradient_only_if_asked_for(detach):
    run = prepared(
        "rspo",
        model=random_moe(),
        dtype="float64",
        reward=fixed_noise,
        router_aux_loss=0.0,
        router_shift_floor=0.1,
        detach_shift=detach,
    )
    batch, _ = collect(run, 0)
    disturb(run.model)
    own = list(run.model.parameters())
    found = torch.autograd.grad(whole_loss(run, batch), own)
    rollout = batch.rollout
    with moe.routed(run.model) as routing:
        logp, _ = log_probs(run.model, rollout)
    drift = routing.log_probs(rollout.experts) - rollout.router_logp
    shift = -drift.abs().mean((-1, -2)).clamp(max=-np.log(0.1))
    shift = shift.gather(1, rollout.positions - 1) * batch.mask
    assert shift.min() < -0.01

    def expected(shift):
        return torch.autograd.grad(
            run.algorithm.policy_loss(
                logp + shift, batch.old_logp, batch.advantages, batch.mask
            ).loss,
            own,
            retain_graph=True,
        )

    right, wrong = expected(shift.detach()), expected(shift)
    if not detach:
        right, wrong = wrong, right
    assert same_gradients(found, right)
    assert not same_gradients(found, wrong)


def test_padding_is_not_counted_in_the_load_of_the_experts():
    """Each row alone has no padding."""
    run = prepared(model=random_moe(), reward=fixed_noise, router_aux_loss=0.5)
    batch, _ = collect(run, 0)
    assert batch.rollout.end.unique().numel() > 3
    batch, tokens = updating._weighed(run, batch, torch.arange(16))
    _, metrics, _ = updating._loss(run, batch, tokens)
    passes = []
    with torch.no_grad(), moe.routed(run.model) as routing:
        for i in range(16):
            log_probs(run.model, batch.rollout.rows(torch.tensor([i])))
            passes.append(routing.copy())
    alone = moe.load_balance(moe.Routing.join(passes)).item()
    assert metrics["router/load_balance"] == pytest.approx(alone, rel=1e-4)


# The step


def test_adam_remembers_a_tenth_and_a_twentieth():
    """β₁ = 0.9 and β₂ = 0.95, of policy and critic alike."""
    run = prepared("ppo", reward=fixed_noise, micro_batch_size=16, max_grad_norm=1e9)
    batch, _ = collect(run, 0)
    run.optimizer.zero_grad = lambda **_: None
    updating._one_update(run, batch, CHOSEN, 0, [])
    for model in (run.model, run.critic):
        for p in model.parameters():
            state = run.optimizer.state[p]
            assert torch.allclose(state["exp_avg"], 0.1 * p.grad)
            assert torch.allclose(state["exp_avg_sq"], 0.05 * p.grad**2)


def test_the_learning_rates_rise_linearly_over_the_warm_up(steps):
    rates = {"learning_rate": 4e-4, "critic_learning_rate": 8e-4}
    history = small_run("ppo", rollouts=3, warmup_updates=4, **rates)
    shares = [0.25, 0.5, 0.75, 1, 1, 1]
    assert [s[0][0] for s in steps] == pytest.approx([4e-4 * s for s in shares])
    assert [s[1][0] for s in steps] == pytest.approx([8e-4 * s for s in shares])
    assert history["learning_rate"] == pytest.approx([1.5e-4, 3.5e-4, 4e-4])


def test_the_warm_up_counts_the_updates_of_all_epochs(steps):
    small_run(rollouts=2, minibatches=1, epochs=2, warmup_updates=4, learning_rate=4e-4)
    assert [s[0][0] for s in steps] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])


def test_without_warm_up_the_first_step_is_a_full_one(steps):
    small_run(rollouts=1, learning_rate=5e-4)
    assert [s[0][0] for s in steps] == [5e-4, 5e-4]


def test_no_gradient_is_longer_than_the_bound(steps):
    """Policy and critic are clipped each by itself; the norm before is recorded."""
    history = small_run("ppo", rollouts=2, max_grad_norm=0.01)
    assert min(history["grad_norm"]) > 0.02
    for policy, critic in steps:
        assert policy[1] == pytest.approx(0.01, rel=1e-3)
        assert critic[1] == pytest.approx(0.01, rel=1e-3)


def test_a_short_gradient_is_left_alone(steps):
    history = small_run(rollouts=1, max_grad_norm=1e6)
    norms = [policy[1] for (policy,) in steps]
    assert history["grad_norm"][0] == pytest.approx(sum(norms) / len(norms))


def test_sgd_steps_by_the_gradient_itself():
    """θ ← θ − η g, with g the accumulated gradient, and no memory of the last one."""
    run = prepared(reward=fixed_noise, optimizer="sgd", learning_rate=0.1)
    batch, _ = collect(run, 0)
    rows, seen = torch.arange(len(batch.rollout)), []
    step = run.optimizer.step

    def watched():
        seen.extend(p.grad.clone() for p in run.model.parameters())
        step()

    run.optimizer.step = watched
    for done in range(2):
        before = [p.detach().clone() for p in run.model.parameters()]
        updating._one_update(run, batch, rows, done, [])
        for was, g, p in zip(before, seen, run.model.parameters(), strict=True):
            torch.testing.assert_close(p.detach(), was - 0.1 * g)
        assert max(g.abs().max() for g in seen) > 1e-3
        seen.clear()


def test_weight_decay_shrinks_the_weights_and_is_off_by_default():
    run, decayed = (
        prepared(reward=always_one),
        prepared(reward=always_one, weight_decay=0.5, learning_rate=0.1),
    )
    for r in (run, decayed):
        update(r, collect(r, 0)[0], 0)
    assert same_weights(run.model, warm_model())  # equal rewards teach nothing
    before, after = warm_model().parameters(), decayed.model.parameters()
    for p, q in zip(before, after, strict=True):
        assert torch.allclose(q, p * (1 - 0.1 * 0.5) ** 2, rtol=1e-5)


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step():
    run = prepared()
    batch, _ = collect(run, 0)
    before = [p.clone() for p in run.model.parameters()]
    for p in run.model.parameters():
        p.register_hook(lambda g: g * float("inf"))
    with pytest.raises(FloatingPointError, match=r"update 1: .* has diverged"):
        update(run, batch, 0)
    assert all(map(torch.equal, before, run.model.parameters()))


def test_a_critic_whose_gradient_is_not_finite_stops_the_run_before_the_step():
    run = prepared("ppo", reward=fixed_noise)
    batch, _ = collect(run, 0)
    before = [p.clone() for m in (run.model, run.critic) for p in m.parameters()]
    run.critic.score.weight.register_hook(lambda g: g * float("nan"))
    with pytest.raises(FloatingPointError, match=r"update 1: .* the critic's gradient"):
        update(run, batch, 0)
    after = [p for m in (run.model, run.critic) for p in m.parameters()]
    assert all(map(torch.equal, before, after))


# KL, entropy


@pytest.mark.parametrize("normaliser", [None, "token_mean"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_in_the_loss_adds_beta_times_the_estimate(estimator, normaliser):
    """In value and gradient, after the policy has moved away from π_old."""
    settings = {"kl_estimator": estimator, "normaliser": normaliser, "beta": 0.3}
    run = prepared(dtype="float64", **settings)
    run.reference.load_state_dict(random_model().double().state_dict())
    batch, metrics = collect(run, 0)
    mask = batch.rollout.mask
    per_token = ((batch.old_logp - batch.ref_logp) * mask).sum() / mask.sum()
    assert metrics["kl"] == pytest.approx(per_token.item(), rel=1e-4)
    assert metrics["kl"] > 0.5
    disturb(run.model)
    logp, ref_logp = (
        log_probs(model, batch.rollout)[0] for model in (run.model, run.reference)
    )
    weight = NORMALISERS[normaliser or "seq_mean_token_mean"](mask.double())
    kl = 0.3 * (ESTIMATORS[estimator](logp, ref_logp, batch.old_logp) * weight).sum()
    found = whole_loss(run, batch)
    run.config = replace(run.config, beta=0.0)
    found = found - whole_loss(run, batch)
    assert found.item() == pytest.approx(kl.item(), rel=1e-6)
    own = list(run.model.parameters())
    found, expected = (torch.autograd.grad(x, own) for x in (found, kl))
    assert same_gradients(found, expected)


def test_beta_holds_the_policy_near_where_it_started():
    settings = {**COURSE, "prompts_per_rollout": 8, "rollouts": 7}
    loose = small_run(beta=1e-6, **settings)["kl"]
    assert loose[0] == pytest.approx(0, abs=ROUNDING)
    for kl_in in ("loss", "reward"):
        tight = small_run(beta=3.0, kl_in=kl_in, **settings)["kl"]
        assert tight[0] == pytest.approx(0, abs=ROUNDING)
        assert 0 < sum(tight) < 0.5 * sum(loose)


def test_without_beta_there_is_no_reference_and_no_kl_column():
    assert prepared().reference is None
    assert "kl" not in small_run(rollouts=1).columns


def test_the_reference_never_moves():
    run = prepared(beta=0.1, epochs=3)
    update(run, collect(run, 0)[0], 0)
    assert same_weights(run.reference, warm_model())
    assert not same_weights(run.model, warm_model())
    assert not any(p.requires_grad for p in run.reference.parameters())


def test_the_entropy_bonus_raises_entropy():
    """With equal rewards nothing else acts."""
    run = prepared(reward=always_one, entropy_bonus=0.5, epochs=3)
    batch, _ = collect(run, 0)
    update(run, batch, 0)
    mask = batch.rollout.mask
    before, after = (
        (log_probs(model, batch.rollout)[1].sum() / mask.sum()).item()
        for model in (warm_model(), run.model)
    )
    assert after > before + 0.02


@pytest.mark.parametrize("normaliser", ["seq_mean_token_mean", "token_mean"])
def test_the_loss_is_less_the_entropy_bonus(normaliser):
    plain, bonus = (
        prepared(dtype="float64", entropy_bonus=c, normaliser=normaliser)
        for c in (0.0, 0.2)
    )
    batch, _ = collect(plain, 0)
    difference = whole_loss(bonus, batch) - whole_loss(plain, batch)
    entropy = log_probs(plain.model, batch.rollout)[1]
    mean = (entropy * NORMALISERS[normaliser](batch.rollout.mask)).sum()
    assert difference.item() == pytest.approx(-0.2 * mean.item(), rel=1e-4)


# The critic


def test_ppo_trains_its_critic():
    """On one batch seen again and again, the value loss falls to a fraction."""
    run = prepared("ppo", value_clip=None, epochs=4, **COURSE)
    batch, _ = collect(run, 0)
    assert (batch.old_values == 0).all()
    losses = [update(run, batch, step)["value_loss"] for step in range(3)]
    assert losses[-1] < 0.6 * losses[0]
    right = batch.targets > 0.5
    found = values(run.critic, batch.rollout)
    assert found[right & batch.rollout.mask.bool()].mean() > 0.3
    assert found[~right & batch.rollout.mask.bool()].mean() < 0.3


def test_the_value_loss_moves_the_critic_alone():
    frozen = prepared("ppo", reward=fixed_noise)
    moving = prepared("ppo", reward=fixed_noise, critic_learning_rate=1e-2)
    for run in (frozen, moving):
        update(run, collect(run, 0)[0], 0)
    assert same_weights(frozen.model, moving.model)
    assert largest_difference(frozen.critic, moving.critic) > 1e-3


def test_methods_without_a_critic_have_none():
    assert prepared().critic is None
    assert "value_loss" not in small_run(rollouts=1).columns
    assert "value_loss" in small_run("ppo", rollouts=1).columns


# Groups without a gradient


def close_weights(one, other) -> bool:
    """Up to the order of a sum."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-8) for a, b in pairs)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_groups_of_equal_rewards_are_not_computed_and_change_nothing(
    normaliser, monkeypatch
):
    """Nor do rows at exactly the mean: a group is kept or left out as a whole."""

    def rewards(prompts, completions, **columns):
        third = [0.0, 0.5, 1.0, 0.5]  # two rows at the mean
        return [third[i % 4] if i < 8 else 1.0 for i in range(len(prompts))]

    settings = {
        "reward": rewards,
        "micro_batch_size": 4,
        "normaliser": normaliser,
        "dtype": "float64",  # six updates amplify what a sum's order changes
    }
    computed, every = [], updating._loss

    def counted(run, part, tokens):
        computed.append(len(part.rollout))
        return every(run, part, tokens)

    monkeypatch.setattr(updating, "_loss", counted)
    quick = small_run(**settings)
    rows = sum(computed)
    monkeypatch.setattr(updating, "_with_gradient", lambda run, batch, chosen: chosen)
    full = small_run(**settings)
    assert rows < 0.7 * (sum(computed) - rows)
    assert close_weights(quick.model, full.model)
    assert quick.accuracy == full.accuracy
    for name in ("loss", "grad_norm", "clip_ratio/region_mean"):
        assert quick[name] == pytest.approx(full[name], abs=1e-8), name


@pytest.mark.parametrize(
    "settings", [{"beta": 0.1}, {"entropy_bonus": 0.1}, {"algorithm": "ppo"}]
)
def test_no_group_is_left_out_when_every_token_has_a_gradient(settings):
    run = prepared(reward=always_one, **settings)
    batch, _ = collect(run, 0)
    chosen = torch.arange(8)
    assert updating._with_gradient(run, batch, chosen) is chosen


def pulled_back(t) -> Objective:
    """GRPO's surrogate without a clip, and a leash that does not ask for Â."""
    return Objective(t.z.exp() * t.advantages - 0.5 * t.z**2)


def test_an_objective_that_acts_without_an_advantage_acts_on_every_group():
    mine = replace(ALGORITHMS["grpo"], name="mine", objective=pulled_back)
    assert mine.acts_without_advantage()
    run = prepared(mine, dtype="float64", reward=always_one, max_grad_norm=1e9)
    batch, _ = collect(run, 0)
    assert (batch.advantages == 0).all()
    disturb(run.model)
    metrics, logp = one_update(run, batch)
    width, mask = logp.shape[1], batch.mask[CHOSEN]
    loss, _ = mine.policy_loss(
        logp, batch.old_logp[CHOSEN, :width], torch.zeros(8), mask[:, :width]
    )
    expected = torch.autograd.grad(loss, list(run.model.parameters()))
    assert same_gradients(grads(run.model), expected)
    assert metrics["grad_norm"] > 0.1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_published_objective_acts_without_an_advantage(name):
    assert not ALGORITHMS[name].acts_without_advantage()
