"""Presets, copies, frozen weights, critics, and causal models from elsewhere."""

import pytest
import torch

from refimpl import UserError, sample
from refimpl.logprobs import values
from refimpl.models import (
    frozen_copy,
    make_critic,
    trainable_copy,
)
from tests.worlds import (
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    disturb,
    fixed_noise,
    gpt2,
    llama,
    needs,
    random_model,
    same_weights,
    small_run,
)

IDS = torch.tensor(TOKENIZER(["1+2+3+4=", "?8+2=10;"])["input_ids"])


def test_copies_share_nothing_that_is_trained_and_have_no_dropout():
    model = gpt2().train()
    copied, frozen = trainable_copy(model), frozen_copy(model)
    assert not copied.training and not frozen.training and model.training
    assert not any(p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for m in (model, copied) for p in m.parameters())
    for changed, others in ((copied, (model, frozen)), (model, (frozen,))):
        with torch.no_grad():
            changed.get_input_embeddings().weight.add_(1)
        assert all(same_weights(other, gpt2()) for other in others)


def frozen_below(model):
    """Only the last layer and the final norm learn; the embedding is tied."""
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    model.model.norm.requires_grad_(True)
    return model


def trained(model) -> dict:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_training_leaves_frozen_layers_alone(algorithm):
    model = frozen_below(random_model())
    assert 0 < len(trained(model)) < len(list(model.parameters()))
    given = {"model": model, "reward": fixed_noise, "beta": 0.1, "eval_problems": 1}
    history = small_run(algorithm, **given)
    before, after = random_model().state_dict(), history.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == trained(model).keys() == trained(history.model).keys()
    assert same_weights(model, random_model()) and not history.model.training
    assert all(p.grad is None for p in model.parameters())


def test_the_critic_of_a_lora_starts_from_the_merged_body():
    """How a LoRA is trained: tests/pretrained/test_lora.py."""
    peft = needs("peft")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    policy = peft.get_peft_model(random_model(), settings)
    with torch.no_grad():
        for p in trained(policy).values():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    start = {name: x.clone() for name, x in policy.state_dict().items()}
    critic = make_critic(policy)
    assert (critic(IDS).logits == 0).all()
    assert all(p.requires_grad for p in critic.parameters())
    hidden = policy(IDS, output_hidden_states=True).hidden_states[-1]
    states = critic.base_model(IDS).last_hidden_state
    assert (states - hidden).abs().max() < ROUNDING
    plain = random_model().base_model(IDS).last_hidden_state
    assert (states - plain).abs().max() > 0.01
    # The policy is still a LoRA, not merged.
    assert all(torch.equal(start[n], x) for n, x in policy.state_dict().items())


@pytest.mark.parametrize("make", [random_model, gpt2, llama])
def test_a_critic_starts_at_zero_and_has_a_body_of_its_own(make):
    policy = make()
    critic = make_critic(policy.train())
    assert torch.equal(critic(IDS).logits, torch.zeros(*IDS.shape, 1))
    assert same_weights(critic.base_model, policy.base_model)
    assert all(p.requires_grad for p in critic.parameters())
    assert not critic.training  # no dropout
    disturb(critic)
    assert same_weights(policy, make())


def test_values_come_from_before_each_response_token():
    critic = make_critic(random_model())
    disturb(critic, 0.1)  # it begins with V = 0
    rollout = sample(random_model(), TOKENIZER, PROMPTS, max_new_tokens=9)
    every = values(critic, rollout)
    for i, length in enumerate(rollout.length.int().tolist()):
        alone = critic(rollout.ids[i : i + 1, : rollout.end[i]]).logits[0, :, 0]
        expected = alone[-length - 1 : -1]  # the state that each token was chosen in
        assert torch.allclose(every[i, :length], expected, atol=ROUNDING)
        assert (every[i, length:] == 0).all()
    with pytest.raises(UserError, match="one number per token"):
        values(random_model(), rollout)
