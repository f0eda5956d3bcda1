"""A sampler that is not the policy: late, rounded, in another precision, trusted."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from refimpl import ALGORITHMS, UserError, collect, sampling, updates
from refimpl.corrections import factor
from refimpl.logprobs import log_probs
from refimpl.models import weights
from refimpl.samplers import Delayed, InFlight, Rounded
from refimpl.sampling import Sampler
from tests.worlds import (
    ROUNDING,
    disturb,
    fixed_noise,
    measured_loss,
    prepared,
    random_model,
    random_moe,
    warm_model,
    with_lora,
)

LATE = {"learning_rate": 2e-3, "reward": fixed_noise}
NEAR = {"rtol": 0, "atol": 2 * ROUNDING}


def rollouts(run, n):
    """(weights before, batch, metrics) of n rollouts, with updates between them."""
    found = []
    for step in range(n):
        before = weights(run.model)
        batch, metrics = collect(run, step)
        assert torch.equal(weights(run.model), before)  # sampling changed nothing
        found.append((before, batch, metrics))
        updates(run, batch, step)
    return found


@torch.no_grad()
def scored(row, rollout):
    """Log-probs under the warm model with other weights."""
    model = random_model()
    torch.nn.utils.vector_to_parameters(row, model.parameters())
    return log_probs(model, rollout)[0]


@pytest.mark.parametrize("delay", [1, 2])
def test_the_sampler_has_the_weights_of_so_many_rollouts_ago(delay):
    run, seen = prepared(sampler_delay=delay, **LATE), []
    for step, (before, batch, metrics) in enumerate(rollouts(run, 5)):
        seen.append(before)
        lagging = seen[max(0, step - delay)]
        assert_close(batch.rollout.logp, scored(lagging, batch.rollout), **NEAR)
        assert_close(batch.old_logp, scored(before, batch.rollout), **NEAR)
        gap = (batch.rollout.logp - batch.old_logp).abs().max()
        assert gap > 0.01 if step else gap < 2 * ROUNDING
        assert (metrics["sampling/kl"] > 1e-4) == (step > 0)
    assert len(run.sampler.past) == delay + 1


@torch.no_grad()
def written_by(writers, rollout, i, tokens=3):
    """Log-probs of row i where a writer follows the other, with one cache for all."""
    model, start = random_model(), int(rollout.prompt_length[i])
    given = rollout.ids[i, start : start + int(rollout.mask[i].sum())]
    load = torch.nn.utils.vector_to_parameters
    load(writers[0], model.parameters())
    reader = sampling.Decoder(model, [rollout.ids[i, :start].tolist()], len(given))
    found, logits = [], reader.prompts(1)
    for t, token in enumerate(given):
        found.append(logits.log_softmax(-1)[0, token])
        load(writers[min((t + 1) // tokens, len(writers) - 1)], model.parameters())
        if t + 1 < len(given):
            logits = reader.next(token[None, None])
    return torch.stack(found)


@pytest.fixture
def slow(monkeypatch):
    """The plain decoder, also where another test has turned on a faster one."""
    monkeypatch.setattr(sampling, "decoder_factories", [])


@pytest.mark.usefixtures("slow")
def test_weights_in_flight_change_in_the_middle_of_a_response():
    """Each token's log-prob is its own writer's; the cache remembers those before."""
    run = prepared(sampler=InFlight(rollouts=2, tokens=3), **LATE)
    seen = rollouts(run, 4)
    writers, rollout = [w for w, *_ in seen[1:]], seen[3][1].rollout
    for i in range(0, len(rollout), 3):
        right = written_by(writers, rollout, i)
        assert_close(rollout.logp[i, : len(right)], right, **NEAR)
    assert_close(seen[3][1].old_logp, scored(writers[2], rollout), **NEAR)
    late = (rollout.logp - scored(writers[0], rollout)).abs()
    assert late[:, :3].max() < 2 * ROUNDING < 0.01 < late[:, 3:6].max()


def test_a_late_sampler_shares_what_is_frozen_and_nothing_else():
    """A base of 135 million weights is there once; the policy's own are never read."""
    policy = random_model()
    policy.get_input_embeddings().weight.requires_grad_(False)
    late = Delayed(1)(Sampler(policy))
    late.sync()
    pairs = list(zip(policy.named_parameters(), late.model.parameters(), strict=True))
    for (name, p), copy in pairs:
        assert (p.data_ptr() == copy.data_ptr()) == ("embed" in name), name
    before = weights(policy)
    disturb(policy.model.layers)
    late.sync()
    kept = [copy.flatten() for (name, _), copy in pairs if "embed" not in name]
    assert torch.equal(torch.cat(kept), before)


def by_hand(w):
    """255 steps of one size to each row."""
    step = w.abs().amax(-1, keepdim=True) / 127
    return (w / step).round() * step


@pytest.mark.parametrize("make", [warm_model, random_moe])
def test_rounded_matrices_are_steps_of_a_127th_of_a_rows_largest(make):
    """Norms, embeddings, the output layer and routers are left alone, as engines do."""
    exact = make()
    sampler = Rounded()(Sampler(exact))
    sampler.sync()
    copies = dict(sampler.model.named_parameters())
    for name, w in exact.named_parameters():
        rounded = "experts" in name or "_proj" in name
        wanted = by_hand(w.detach()) if rounded else w
        assert_close(copies[name].detach(), wanted.detach(), rtol=1e-5, atol=1e-7)
        assert torch.equal(w, copies[name]) != rounded, name
    assert sum(p.ndim > 1 for p in copies.values()) > 8


def test_a_rounded_sampler_leaves_adapters_and_shared_memory_alone():
    """A base that other models read is never written to."""
    adapted = with_lora(random_model(), r=2)
    before = {n: p.detach().clone() for n, p in adapted.named_parameters()}
    sampler = Rounded()(Sampler(adapted))
    sampler.sync()
    for name, p in sampler.model.named_parameters():
        base = "_proj" in name and "lora_" not in name
        assert torch.equal(p, before[name]) != base, name
    for name, p in adapted.named_parameters():
        assert torch.equal(p, before[name])


def test_rounded_weights_follow_the_policy_or_whom_it_delays():
    run = prepared(sampler_delay=1, rollout_dtype="int8", **LATE)
    (first, *_), (late, *_), (before, batch, _) = rollouts(run, 3)
    of_rows = (scored(row, batch.rollout) for row in (late, first, before))
    near, *far = ((logp - batch.rollout.logp).abs().mean() for logp in of_rows)
    assert 0 < near < min(far) / 2
    assert_close(batch.old_logp, scored(before, batch.rollout), **NEAR)


def test_the_sampler_computes_in_the_rollouts_dtype(monkeypatch):
    """Seen by autocast: by how far its numbers differ is the processor's affair."""
    seen, sampled = [], sampling.sampled

    def spy(*arguments, **keywords):
        seen.append(torch.is_autocast_enabled("cpu"))
        return sampled(*arguments, **keywords)

    monkeypatch.setattr(sampling, "sampled", spy)
    for dtype in ("float32", "bfloat16"):
        for rollout_dtype in (None, "float32", "bfloat16", "int8"):
            collect(prepared(dtype=dtype, rollout_dtype=rollout_dtype), 0)
    assert seen == [False, False, True, False, True, False, True, True]


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("rules", [{"token_reject": (0.9, 1.1)}, {"opsm": 0.01}])
def test_the_trainer_weighs_and_counts_by_the_policy_that_is_behind(rules, two):
    """π_old's log-probs or the learner's over the sampler's, whatever the cuts; what is
    dropped is the share of all tokens, and of all responses, of the mini-batch."""
    late = {"sampler_delay": 1, "rollout_dtype": "int8", "learning_rate": 3e-3}
    found = []
    for size in (3, 64):
        how = {"corrections": rules, "trust_sampler": two, "micro_batch_size": size}
        run = prepared(**how, **late)
        updates(run, collect(run, 0)[0], 0)
        batch, metrics = collect(run, 1)
        run.zero_advantage_rows_matter = True
        loss, measured = measured_loss(run, batch)
        found.append((loss.item(), measured))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4, abs=1e-6)
    logp = run.read(run.model, batch.rollout).logp.detach()
    behind = logp if two else batch.old_logp
    given = behind, batch.rollout.logp, batch.mask, batch.advantages
    dropped = (factor(rules, *given, now=logp) == 0) & batch.mask.bool()
    assert ("sampling/kl" in metrics) is not two and dropped.any()
    for *_, measured in found:
        share = measured["rollout_corr/rollout_rs_masked_fraction"]
        assert share == pytest.approx((dropped.sum() / batch.mask.sum()).item())
        share = measured["rollout_corr/rollout_rs_seq_masked_fraction"]
        assert share == pytest.approx(dropped.any(-1).float().mean().item())


def test_a_method_against_the_sampler_has_its_log_probs_and_no_pass_of_the_old_policy():
    """By its own way as by the setting. Its ratio then is π_θ/μ before any update; that
    against π_old is 1, however late the sampler is."""
    method, found = replace(ALGORITHMS["grpo"], anchor="sampler"), []
    for algorithm, trusted in ((method, False), ("grpo", True), ("grpo", False)):
        run = prepared(algorithm, sampler_delay=1, trust_sampler=trusted, **LATE)
        updates(run, collect(run, 0)[0], 0)
        batch, metrics = collect(run, 1)
        loss, measured = measured_loss(run, batch)
        found.append((batch.old_logp, loss.item(), measured["ratio/max_deviation"]))
        assert ("sampling/kl" in metrics) == (batch.old_logp is not batch.rollout.logp)
    own, trusting, three = found
    assert torch.equal(own[0], trusting[0]) and own[1:] == trusting[1:]
    assert own[2] > 0.05 and three[2] < 1e-4
    with pytest.raises(UserError, match="use replay='R3'"):
        prepared(method, model=random_moe(), replay="R2")
