"""Prompts shared by a group's responses, and logits made by slices."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from refimpl import collect
from refimpl.models import build
from refimpl.pretrained import logprobs, sharing
from refimpl.pretrained.logprobs import log_probs
from refimpl.rollout import Rollout
from tests.rollout import families
from tests.worlds import (
    TOKENIZER,
    disturb,
    fixed_noise,
    gpt2,
    llama,
    prepared,
    random_model,
    with_lora,
)


def ragged() -> Rollout:
    """Seven responses in three groups, out of order, of one to five tokens."""
    generator = torch.Generator().manual_seed(0)
    prompts = {0: [3, 4, 5, 6, 7, 8], 1: [9, 3], 2: [5]}
    group = torch.tensor([0, 1, 0, 2, 1, 0, 1])
    length = torch.tensor([3, 5, 1, 2, 4, 5, 2])
    total = max(len(prompts[int(g)]) + n for g, n in zip(group, length))
    ids = torch.zeros(7, total, dtype=torch.long)
    for i, (g, n) in enumerate(zip(group.tolist(), length.tolist())):
        answer = torch.randint(3, 18, (n,), generator=generator).tolist()
        ids[i, : len(prompts[g]) + n] = torch.tensor([*prompts[g], *answer])
    mask = (torch.arange(5) < length[:, None]).float()
    mask[1, 2] = 0.0  # a token that the policy did not write
    empty = torch.zeros_like(mask, dtype=torch.float64)
    ends = torch.tensor([len(prompts[int(g)]) for g in group])
    return Rollout(ids, ends, mask, empty, empty, torch.zeros(7).bool(), group)


def passed(policy, batch, **how):
    """Log-probs, entropies, and the gradient of a sum of both that tells all apart."""
    policy.zero_grad()
    logp, entropy = log_probs(policy, batch, 0.7, **how)
    weight = torch.linspace(-1, 2, logp.numel(), dtype=logp.dtype).view_as(logp)
    (weight * logp + weight.flip(0) * entropy).sum().backward()
    trained = (p for p in policy.parameters() if p.requires_grad)
    gradient = torch.cat([p.grad.flatten() for p in trained])
    return logp.detach(), entropy.detach(), gradient


def gaps(one, other):
    return [float((a - b).abs().max()) for a, b in zip(one, other, strict=True)]


def adapted():
    """With a LoRA that has learned something."""
    policy = with_lora(gpt2(), r=2)
    disturb(policy)
    return policy


@pytest.mark.parametrize("make", [gpt2, adapted])
def test_packed_rows_give_the_same_numbers_and_gradient(make, monkeypatch):
    """GPT-2, because Qwen's norms round to float32 whatever the weights are."""
    policy = make().double()
    monkeypatch.setattr(sharing, "PAYS", 0.0)
    apart = passed(policy, ragged())
    monkeypatch.setattr(sharing, "PAYS", torch.inf)
    shared = passed(policy, ragged())
    assert max(gaps(apart, shared)) < 1e-10
    assert apart[2].norm() > 1  # of something


def test_a_packed_row_by_hand():
    """Prompt 7 8, responses 4 5 6 and 9 3: what predicts 6 and 3 is left out."""
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    none = torch.zeros(2, 3)
    ids = torch.tensor([[7, 8, 4, 5, 6], [7, 8, 9, 3, 0]])
    two = torch.tensor([2, 2])
    batch = Rollout(ids, two, mask, none, none, two.bool(), torch.tensor([4, 4]))
    packed, position, owner, source = sharing.pack(batch)
    assert packed.tolist() == [[7, 8, 4, 5, 9]]
    assert position.tolist() == [[0, 1, 2, 3, 2]]
    assert owner.tolist() == [[0, 0, 1, 1, 2]]
    assert source[0].tolist() == [1, 2, 3] and source[1, :2].tolist() == [1, 4]
    # one row of 5 for two of 5, and two of 9 if the prompts differ
    assert sharing.pays(batch)
    assert not sharing.pays(replace(batch, group=torch.tensor([0, 1])))


@pytest.mark.parametrize("share", [False, True])
def test_logits_by_slices_give_the_same(share, monkeypatch):
    """Also where a slice ends inside a response, and for rows without padding."""
    policy = gpt2().double()
    whole = passed(policy, ragged())
    monkeypatch.setattr(logprobs, "SLICE", 18 * 4)  # four tokens
    monkeypatch.setattr(sharing, "PAYS", torch.inf if share else 0.0)
    assert max(gaps(whole, passed(policy, ragged()))) < 1e-10


def test_no_more_logits_than_a_slice_stand_in_memory(monkeypatch):
    policy, seen = random_model().double(), []
    monkeypatch.setattr(logprobs, "SLICE", 18 * 4)
    monkeypatch.setattr(sharing, "PAYS", 0.0)
    policy.lm_head.register_forward_hook(lambda _, __, out: seen.append(out.numel()))
    # Nothing is drawn in a slice: a GPU would be asked for its generator's state.
    monkeypatch.setattr(torch, "get_rng_state", Mock(side_effect=AssertionError))
    sharing.has_plain_head(policy)
    seen.clear()
    passed(policy, ragged())
    # 22 tokens in slices of four, each made twice: forward and backward
    assert len(seen) == 12 and max(seen) == 18 * 4


@pytest.mark.parametrize(
    ("family", "changed", "head", "possible"),
    [
        ("Llama", {}, True, True),
        ("Mistral", {"sliding_window": 4}, True, False),
        ("Gemma 2", {"final_logit_softcapping": 0.1}, False, False),
        ("Qwen3-MoE", {}, False, False),
    ],
)
def test_what_can_share(family, changed, head, possible):
    kind, settings = families.SUPPORTED[family]
    policy = families.build(kind, settings | changed)
    assert sharing.has_plain_head(policy) is head
    assert sharing.possible(policy) is possible
    if possible:
        assert sharing.agrees(policy)


def test_a_mask_that_a_model_ignores_is_found_out(monkeypatch):
    everywhere = lambda owner: torch.ones(*owner.shape, owner.shape[1]) > 0  # noqa: E731
    monkeypatch.setattr(sharing, "attends", everywhere)
    assert not sharing.agrees(llama())


def test_prompts_are_shared_where_it_pays(monkeypatch):
    """Long prompts and short answers, and a model that takes packed rows."""
    monkeypatch.setattr(sharing, "states", spy := Mock(wraps=sharing.states))
    batch = ragged()
    ids = torch.cat([torch.full((7, 30), 4), batch.ids], 1)
    long = replace(batch, ids=ids, prompt_length=batch.prompt_length + 30)
    for policy, rollout, shared in (
        (random_model(), long, True),
        (random_model(), batch.rows(torch.tensor([0, 1, 3])), False),  # a response each
        (build("tiny-moe", TOKENIZER), long, False),
    ):
        spy.reset_mock()
        log_probs(policy, rollout)
        assert spy.called is shared


def test_groups_stay_together_in_a_micro_batch():
    """Cut in two, a group would have its prompt read twice."""
    shape = {"prompts_per_rollout": 8, "group_size": 8, "micro_batch_size": 8}
    run = prepared(log_probs=log_probs, reward=fixed_noise, **shape)
    batch, _ = collect(run, 0)
    rows = torch.arange(len(batch)).flip(0)
    parts = [p.rollout for p, _ in batch.micro_batches(batch.mask, rows, 8, True)]
    assert [len(part.group.unique()) for part in parts] == [1] * 8
    longest = [int(part.end.max()) for part in parts]
    assert longest == sorted(longest)
    one = batch.rows(torch.tensor([0] * 4))  # four rows of one length
    one = replace(one, rollout=replace(one.rollout, group=torch.tensor([0, 1, 0, 1])))
    parts = one.micro_batches(one.mask, torch.arange(4), 2, by_group=True)
    assert [p.rollout.group.tolist() for p, _ in parts] == [[0, 0], [1, 1]]
