"""The table of bytes, against what autograd keeps and what a run holds."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from course.kit.memory import memory
from refimpl import collect, updates
from refimpl.models import count_parameters
from refimpl.pretrained import sharing
from refimpl.pretrained.logprobs import checkpointed
from tests.worlds import fixed_noise, llama, prepared, random_model, with_lora

SHAPE = {"prompts": 4, "group_size": 4, "prompt_length": 20, "max_new_tokens": 6}


def wide_llama():
    """Layers wide enough that the odd number per token does not matter."""
    config = llama().config
    config.update({"hidden_size": 128, "intermediate_size": 256, "head_dim": 32})
    return AutoModelForCausalLM.from_config(config)


def adapted(model):
    return with_lora(model, r=8)


def kept(model, rows: int, owner=None) -> int:
    """Bytes of what autograd keeps in a pass of the body, the weights left out."""
    sizes, held = {}, []

    def pack(x):
        held.append(x)  # so that its place is not used again
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    arguments, ids = {}, torch.zeros(rows, 26, dtype=torch.long)
    if owner is not None:
        arguments = {"attention_mask": sharing.attends(owner)[:, None]}
        ids = torch.zeros_like(owner)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        states = model.get_decoder()(ids, use_cache=False, **arguments)
    assert states.last_hidden_state.requires_grad
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(n for where, n in sizes.items() if where not in weights)


@pytest.mark.parametrize("r", [None, 8])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("make", [random_model, wide_llama])
def test_activations_are_what_autograd_keeps(make, share, r):
    model = make() if r is None else adapted(make())
    packed = torch.tensor([[0] * 20 + [i for i in range(1, 5) for _ in range(5)]] * 2)
    given = model, 8, packed if share else None
    found = kept(*given)
    settings = {"micro_batch_size": 8, "share_prompts": share, "r": r, **SHAPE}
    predicted = memory(model.config, **settings)["activations"]
    assert found == pytest.approx(predicted, rel=0.08)
    if r is None:
        with checkpointed(model):
            found = kept(*given)
        again = memory(model.config, gradient_checkpointing=True, **settings)
        # While a layer is computed again, what it keeps is there too.
        one = predicted / model.config.num_hidden_layers
        assert found + one == pytest.approx(again["activations"], rel=0.1)


@pytest.mark.parametrize(("make", "r"), [(random_model, None), (wide_llama, 8)])
def test_weights_gradients_and_adam_are_those_of_a_run(make, r):
    config = make().config
    model = make() if r is None else adapted(make())
    run = prepared(model=model, reward=fixed_noise)
    batch, _ = collect(run, 0)
    updates(run, batch, 0)
    state = run.optimizer.state_dict()["state"].values()
    adam = sum(x.nbytes for s in state for x in s.values() if x.ndim)
    found = memory(config, r=r)
    trained = sum(p.nbytes for p in run.model.parameters() if p.requires_grad)
    assert found["Adam"] == adam == 2 * found["gradients"]
    assert found["weights, the copy that is trained"] == trained
    assert found["weights, as given"] == 4 * count_parameters(model)


WIDTHS = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152}
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}
SMOLLM2 = LlamaConfig(**WIDTHS, **HEADS, num_hidden_layers=30, tie_word_embeddings=True)


def test_smollm2_by_hand():
    found = memory(SMOLLM2, beta=0.1)
    weights = 4 * 134_515_008
    assert found["weights, as given"] == found["reference"] == weights
    assert found["Adam"] == 2 * weights
    # 64 rows of 58 tokens, 30 layers, a key and a value of 3 heads × 64
    assert found["KV cache"] == 64 * 58 * 30 * 2 * 192 * 4
    *tensors, besides, peak = found.values()
    assert besides == pytest.approx(sum(tensors) / 8, abs=1)
    assert peak == found["peak"] == sum(tensors) + besides
    low = memory(SMOLLM2, beta=0.1, r=16)
    # q, o: 576 + 576; k, v: 576 + 192; gate, up, down: 576 + 1536
    adapter = 4 * 30 * 16 * (2 * 1152 + 2 * 768 + 3 * 2112)
    assert low["gradients"] == low["reference"] == adapter
    assert low["weights, as given"] == weights + adapter
    halves = memory(SMOLLM2, micro_batch_size=8)["activations"]
    assert 2 * halves == memory(SMOLLM2)["activations"]
