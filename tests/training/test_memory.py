"""The table of bytes, against what autograd keeps and what a process really takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig

from refimpl.collect import collect
from refimpl.models import checkpointed, count_parameters, lora
from refimpl.real import sharing
from refimpl.real.memory import memory, table
from refimpl.update import update
from tests.worlds import fixed_noise, llama, prepared, random_model

SHAPE = {"prompts": 4, "group_size": 4, "prompt_length": 20, "max_new_tokens": 6}


def wide_llama():
    """Layers wide enough that the odd number per token does not matter."""
    config = llama().config
    config.update({"hidden_size": 128, "intermediate_size": 256, "head_dim": 32})
    return AutoModelForCausalLM.from_config(config)


def adapted(model):
    pytest.importorskip("peft")
    return lora(model, r=8)


def kept(model, rows: int, owner=None) -> int:
    """Bytes of what autograd keeps in a pass of the body, the weights left out."""
    sizes, held = {}, []

    def pack(x):
        held.append(x)  # so that its place is not used again
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    arguments = {}
    length = 26
    if owner is not None:
        length = owner.shape[1]
        arguments = {"attention_mask": sharing.attends(owner)[:, None]}
    ids = torch.zeros(rows, length, dtype=torch.long)
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
    owner = torch.tensor([[0] * 20 + [i for i in range(1, 5) for _ in range(5)]] * 2)
    found = kept(model, 2 if share else 8, owner if share else None)
    settings = {"micro_batch_size": 8, "share_prompts": share, "r": r, **SHAPE}
    predicted = memory(model.config, **settings)["activations"]
    assert found == pytest.approx(predicted, rel=0.08)
    if r is None:
        with checkpointed(model):
            found = kept(model, 2 if share else 8, owner if share else None)
        again = memory(model.config, gradient_checkpointing=True, **settings)
        # While a layer is computed again, what it keeps is there too.
        one = predicted / model.config.num_hidden_layers
        assert found + one == pytest.approx(again["activations"], rel=0.1)


@pytest.mark.parametrize(("make", "r"), [(random_model, None), (wide_llama, None)])
def test_weights_gradients_and_adam_are_those_of_a_run(make, r):
    check_against_a_run(make(), make().config, r)


def test_a_lora_is_counted_as_it_is_made():
    model = wide_llama()
    check_against_a_run(adapted(model), model.config, 8)


def check_against_a_run(model, config, r):
    run = prepared(model=model, reward=fixed_noise)
    batch, _ = collect(run, 0)
    update(run, batch, 0)
    state = run.optimizer.state_dict()["state"].values()
    adam = sum(x.nbytes for s in state for x in s.values() if x.ndim)
    found = memory(config, r=r)
    trained = sum(p.nbytes for p in run.model.parameters() if p.requires_grad)
    assert found["Adam"] == adam == 2 * found["gradients"]
    assert found["weights, the copy that is trained"] == trained
    assert found["weights, as given"] == 4 * count_parameters(model)


SMOLLM2 = LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    tie_word_embeddings=True,
)


BESIDES_NAME = "allocator, buffers"


def test_smollm2_by_hand():
    found = memory(SMOLLM2, beta=0.1)
    weights = 4 * 134_515_008
    assert found["weights, as given"] == found["reference"] == weights
    assert found["Adam"] == 2 * weights
    # 64 rows of 58 tokens, 30 layers, a key and a value of 3 heads × 64
    assert found["KV cache"] == 64 * 58 * 30 * 2 * 192 * 4
    tensors = [n for name, n in found.items() if name not in ("peak", BESIDES_NAME)]
    assert found[BESIDES_NAME] == pytest.approx(sum(tensors) / 8, abs=1)
    assert found["peak"] == sum(tensors) + found[BESIDES_NAME]
    low = memory(SMOLLM2, beta=0.1, r=16)
    # q, o: 576 + 576; k, v: 576 + 192; gate, up, down: 576 + 1536
    adapter = 4 * 30 * 16 * (2 * 1152 + 2 * 768 + 3 * 2112)
    assert low["gradients"] == adapter
    assert low["weights, as given"] == weights + adapter
    assert low["reference"] == 0  # the adapter switched off
    assert memory(SMOLLM2, micro_batch_size=8)["activations"] == (
        memory(SMOLLM2)["activations"] / 2
    )


def test_the_table_has_a_line_for_each_part():
    found = memory(SMOLLM2)
    lines = table(found).splitlines()
    assert len(lines) == len(found)
    assert lines[0].split() == ["weights,", "as", "given", "0.538"]
    assert lines[-1].split()[0] == "peak"


def test_a_model_of_another_family_is_refused():
    with pytest.raises(ValueError, match="GPT2Config is not of Llama's family"):
        memory(GPT2Config())


FOLDER = Path(os.environ.get("REFIMPL_CACHE", "")) / "smollm2-0.1.2"


@pytest.mark.slow
@pytest.mark.parametrize("r", [None, 16])
def test_the_peak_of_a_process_is_near_the_prediction(r):
    """What an allocator keeps differs from run to run: runs took from 12 % less to 10 %
    more than predicted, and this is to hold on any machine."""
    if not (FOLDER / "config.json").exists():
        pytest.skip("needs SmolLM2: python -m refimpl fetch smollm2")
    if r is not None:
        pytest.importorskip("peft")
    settings = {"prompts_per_rollout": 8, "group_size": 8, "max_new_tokens": 12}
    settings |= {"minibatches": 2, "micro_batch_size": 16}
    found = subprocess.run(
        [sys.executable, "-c", PROCESS, str(FOLDER), json.dumps([settings, r])],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    measured, prompt = int(found[-2]), int(found[-1])
    predicted = memory(AutoConfig.from_pretrained(FOLDER), prompt_length=prompt, r=r)[
        "peak"
    ]
    assert 0.7 * predicted < measured < 1.3 * predicted
    assert measured < (4e9 if r is None else 2.5e9)


PROCESS = """
import json, resource, sys
from transformers.models.llama import modeling_llama
from refimpl import models
from refimpl.collect import collect
from refimpl.trainer import TrainConfig, prepare
from refimpl.update import update

folder, (settings, r) = sys.argv[1], json.loads(sys.argv[2])
if r:
    import peft

class Task:
    habits = ()
    def sample(self, n, seed):
        text = "State the final answer to the following arithmetic problem. " * 4
        return [{"prompt": f"{text}{i % 9} + 4 ="} for i in range(n)]
    held_out = sample
    def habit(self, text):
        return ""
    def reward(self, completions, **_):
        return [len(c) % 7 / 7 + i % 2 for i, c in enumerate(completions)]

def peak():
    try:  # Linux hands a child its parent's ru_maxrss, but not its high-water mark
        status = open("/proc/self/status").read()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used * (1 if sys.platform == "darwin" else 1024)

before = peak()
model, tokenizer = models.load(folder)
if r:
    model = models.lora(model, r)
run = prepare("grpo", TrainConfig(**settings), model, tokenizer, Task())
batch, _ = collect(run, 0)
update(run, batch, 0)
print(peak() - before, int(batch.rollout.prompt_length[0]))
"""
