"""Prompts shared by a group's responses, and logits made by slices."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig

from refimpl import TrainConfig, scoring, train
from refimpl.models import build
from refimpl.real import sharing
from refimpl.rollout import Rollout
from refimpl.scoring import log_probs
from refimpl.tasks import make_tokenizer
from refimpl.trainer import collect, prepare
from refimpl.update import _micro_batches, _weighed
from tests.worlds import gpt2

TOKENIZER = make_tokenizer()


def model():
    return build("tiny", TOKENIZER).double().eval()


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
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    return logp.detach(), entropy.detach(), gradient


def gaps(one, other):
    return [float((a - b).abs().max()) for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_give_the_same_numbers_and_gradient(attention):
    """GPT-2, because Qwen's norms round to float32 whatever the weights are."""
    policy = gpt2().double()
    policy.set_attn_implementation(attention)
    apart, shared = (passed(policy, ragged(), share_prompts=s) for s in (False, True))
    assert max(gaps(apart, shared)) < 1e-10
    assert apart[2].norm() > 1  # of something


def test_in_float32_they_differ_by_rounding():
    policy = model().float()
    batch = ragged()
    batch = replace(batch, logp=batch.logp.float(), entropy=batch.entropy.float())
    apart, shared = (passed(policy, batch, share_prompts=s) for s in (False, True))
    assert max(gaps(apart[:2], shared[:2])) < 1e-5
    assert (apart[2] - shared[2]).norm() < 1e-5 * apart[2].norm()


def test_every_row_of_a_micro_batch_alone_gives_the_same():
    policy, batch = model(), ragged()
    whole = log_probs(policy, batch, 1.0, True)[0]
    for i in range(len(batch)):
        row = batch.rows(torch.tensor([i]))
        alone = log_probs(policy, row, 1.0, True)[0]
        assert torch.allclose(alone[0], whole[i, : alone.shape[1]], atol=1e-12)


def test_who_attends_to_whom():
    owner = torch.tensor([[0, 0, 1, 1, 2, -1]])
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert sharing.attends(owner)[0].int().tolist() == expected


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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ids, at, owner: (ids, at * 0 + torch.arange(at.shape[1]), owner),
        lambda ids, at, owner: (ids, at, owner.clamp(max=1)),  # answers see each other
        lambda ids, at, owner: (ids, at, owner + 2 * (owner == 0)),  # no prompt
    ],
)
def test_wrong_packing_is_seen(wrong, monkeypatch):
    policy, right = model(), sharing.pack
    apart = log_probs(policy, ragged(), 1.0)[0]

    def pack(batch):
        *parts, source = right(batch)
        return *wrong(*parts), source

    monkeypatch.setattr(sharing, "pack", pack)
    shared = log_probs(policy, ragged(), 1.0, True)[0]
    assert (shared - apart).abs().max() > 1e-4


@pytest.mark.parametrize("share", [False, True])
def test_logits_by_slices_give_the_same(share, monkeypatch):
    """Also where a slice ends inside a response, and for rows without padding."""
    policy = gpt2().double()
    whole = passed(policy, ragged())
    monkeypatch.setattr(scoring, "SLICE", 18 * 4)  # four tokens
    assert max(gaps(whole, passed(policy, ragged(), share_prompts=share))) < 1e-10


def test_no_more_logits_than_a_slice_stand_in_memory(monkeypatch):
    policy, seen = model(), []
    monkeypatch.setattr(scoring, "SLICE", 18 * 4)
    policy.lm_head.register_forward_hook(lambda _, __, out: seen.append(out.numel()))
    sharing.has_plain_head(policy)
    seen.clear()
    passed(policy, ragged())
    # 22 tokens in slices of four, each made twice: forward and backward
    assert len(seen) == 12 and max(seen) == 18 * 4


def small(kind, **settings):
    config = kind(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        **settings,
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("policy", "head", "possible"),
    [
        (lambda: small(LlamaConfig), True, True),
        (lambda: small(MistralConfig, sliding_window=4), True, False),
        (lambda: small(Gemma2Config, final_logit_softcapping=0.1), False, False),
        (lambda: build("tiny-moe", TOKENIZER), False, False),
    ],
)
def test_what_can_share(policy, head, possible):
    policy = policy()
    assert sharing.has_plain_head(policy) is head
    assert sharing.possible(policy) is possible
    if possible:
        assert sharing.agrees(policy)


def test_a_mask_that_a_model_ignores_is_found_out(monkeypatch):
    policy = small(LlamaConfig)
    monkeypatch.setattr(
        sharing, "attends", lambda o: torch.ones(1, 1).expand(*o.shape, o.shape[1]) > 0
    )
    assert not sharing.agrees(policy)


QUICK = TrainConfig(rollouts=2, eval_every=2, eval_problems=8, dtype="float64")


def test_a_run_is_the_same_either_way():
    apart, shared = (
        train("grpo", config=replace(QUICK, share_prompts=s), progress=False)
        for s in (False, True)
    )
    assert apart["reward"] == shared["reward"]
    for name in ("loss", "entropy", "grad_norm", "log_ratio/q99"):
        assert torch.allclose(
            torch.tensor(apart[name]), torch.tensor(shared[name]), rtol=1e-5, atol=1e-7
        ), name


def test_small_models_share_only_if_they_are_told_to():
    assert not prepare("grpo", TrainConfig()).share_prompts
    assert prepare("grpo", TrainConfig(share_prompts=True)).share_prompts


def test_groups_stay_together_in_a_micro_batch():
    """Cut in two, a group would have its prompt read twice."""
    config = TrainConfig(share_prompts=True, micro_batch_size=8, group_size=8)
    run = prepare("grpo", config)
    batch, _ = collect(run, 0)
    batch, _ = _weighed(run, batch, torch.arange(len(batch.rollout)))
    rows = torch.arange(len(batch.rollout)).flip(0)
    parts = list(_micro_batches(run, batch, rows))
    assert [len(p.rollout.group.unique()) for p in parts] == [1] * 16
    longest = [int(p.rollout.end.max()) for p in parts]
    assert longest == sorted(longest)


def test_what_cannot_share_is_refused():
    moe = build("tiny-moe", TOKENIZER)
    with pytest.raises(ValueError, match="share_prompts=True: Qwen3Moe"):
        prepare("grpo", TrainConfig(share_prompts=True), moe, TOKENIZER)
