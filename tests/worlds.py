"""Small models and runs that several test files share."""

import math
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel

from refimpl import TrainConfig, UserError, collect, loop, prepare, train, warm_start
from refimpl.cli import pairs
from refimpl.corrections import RULES
from refimpl.history import Meter
from refimpl.models import Model, build
from refimpl.moe import routers
from refimpl.pretrained.extras import needed
from refimpl.pretrained.lora import lora
from refimpl.rollout import Batch, Rollout
from refimpl.run import Run
from refimpl.tasks import Arithmetic, make_tokenizer

TOKENIZER = make_tokenizer()
EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id

PROMPTS = ["3+9=", "1+2+3+4=", "0+0=", "9+8+7+6+5="]
"""Four prompts of three lengths."""

SMALL = TrainConfig(
    rollouts=3,
    prompts_per_rollout=4,
    group_size=4,
    max_new_tokens=24,
    minibatches=2,
    eval_every=100,
    eval_problems=8,
)
"""A rollout of 16 responses and 2 updates: about 0.1 s."""

ROUNDING = 1e-4
"""How far two float32 passes of a tiny model may differ, in nats (or values).

The longest path from a token to its log-prob adds some 1,500 numbers: two layers of
(64 + 50 + 64 + 192 + 64 products), norms, the output layer, the log-softmax. Roundings
of numbers up to 10 (a logit) are independent enough to add up as a random walk does:
√1500 · 2⁻²⁴ · 10 = 2.3e-5 as a standard deviation at worst; four of them are allowed.
Processors add in different orders, so what is seen on one of them is no limit.
"""


@cache
def warm_model() -> PreTrainedModel:
    """The warm-started policy. Shared: no test may change it."""
    return warm_start()[0]


def random_model(seed: int = 0) -> PreTrainedModel:
    """A fresh tiny policy: near uniform, so responses of every length occur."""
    return build("tiny", TOKENIZER, seed).eval()


def random_moe(seed: int = 0) -> PreTrainedModel:
    """A fresh tiny mixture of experts, its routers with clear preferences."""
    model = build("tiny-moe", TOKENIZER, seed).eval()
    with torch.no_grad():
        for router in routers(model):
            router.weight.mul_(20)
    return model


def gpt2() -> PreTrainedModel:
    """Learned positions, no grouped heads, and dropout as it comes."""
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    clear = {"initializer_range": 0.2}  # clear preferences without training
    return _from_config(GPT2Config, bos_token_id=EOS, **sizes, **clear)


@torch.no_grad()
def redrawn(model: PreTrainedModel, size: float = 0.15) -> PreTrainedModel:
    """The model with matrices of our own: each version of transformers draws others."""
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        if p.dim() > 1:
            p.copy_(size * torch.randn(p.shape, generator=generator))
    return model


def llama() -> PreTrainedModel:
    """Rotary positions, two query heads to one key, an output layer of its own."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"max_position_embeddings": 64, "initializer_range": 0.3}
    return _from_config(LlamaConfig, bos_token_id=None, **sizes, **heads)


def _from_config(kind, **settings) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = kind(vocab_size=len(TOKENIZER), eos_token_id=EOS, **settings)
        return AutoModelForCausalLM.from_config(config).eval()


def under_small(model=None, **arguments) -> dict:
    """What `train` is handed: the warm model (or `model`), and `SMALL` with changes.

    Keywords that `TrainConfig` knows go there, the rest to `train`. Of `corrections`
    the rules are a dictionary, and the objects a list.
    """
    known = TrainConfig.__dataclass_fields__.keys() & arguments.keys()
    if isinstance(arguments.get("corrections"), list):
        known.remove("corrections")
    config = replace(SMALL, **{name: arguments.pop(name) for name in known})
    model = warm_model() if model is None else model
    return {"config": config, "model": model, "tokenizer": TOKENIZER} | arguments


def prepared(algorithm="grpo", **arguments) -> Run:
    """A run of `under_small`, before its first rollout."""
    return prepare(algorithm, **under_small(**arguments))


def settings(words) -> dict:
    """Arguments of `TrainConfig` from words NAME=VALUE, a correction by its name."""
    given = pairs(words)
    rules = {name: given.pop(name) for name in RULES if name in given}
    return given | ({"corrections": rules} if rules else {})


def rolled_out(algorithm="grpo", **arguments) -> tuple[Run, Batch, dict]:
    """A run that is `prepared`, its first rollout, and what was measured of it."""
    run = prepared(algorithm, **arguments)
    return run, *collect(run, 0)


def small_run(algorithm="grpo", **arguments):
    """Train as `under_small` says."""
    return train(algorithm, **{"progress": False} | under_small(**arguments))


def measured_loss(run: Run, batch: Batch) -> tuple[Tensor, dict[str, float]]:
    """The loss that `train.update` sends backward, with its graph, and its metrics.

    The whole rollout is one mini-batch; no gradient is taken and no weight moves.
    """
    losses, meter = [], Meter()
    tokens = batch.mask.sum().clamp(min=1)
    counts = {"token_count": tokens, "response_count": tokens.new_tensor(len(batch))}
    mini = replace(batch, **counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "backward", lambda loss: losses.append(loss))
        patch.setattr(loop, "optimizer_step", lambda run: torch.zeros(()))
        loop.update(run, mini, meter)
    return torch.stack(losses).sum(), meter.read()


@torch.no_grad()
def disturb(model, size: float = 0.02, seed: int = 0) -> None:
    """Noise on every weight, as if many updates had passed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.add_(size * noise.to(p.dtype))


def always_one(completions, **_):
    return [1.0] * len(completions)


def fixed_noise(completions, **_):
    """Rewards that never tie, whatever the policy writes."""
    return [zlib.crc32(f"{i}{c}".encode()) % 97 / 97 for i, c in enumerate(completions)]


class Interrupting:
    """A reward that presses Ctrl-C `times` times when it is called the `when`-th time.

    By default it then pays as the arithmetic world does.
    """

    def __init__(self, when: int, times: int = 1, reward=Arithmetic.reward):
        self.when, self.times, self.calls = when, times, 0
        self.reward = reward

    def __call__(self, prompts, completions, **columns):
        self.calls += 1
        if self.calls == self.when:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        return self.reward(prompts=prompts, completions=completions, **columns)


class Drying:
    """Rewards that differ until the `when`-th call, and are equal from then on."""

    def __init__(self, when: int):
        self.when, self.calls = when, 0

    def __call__(self, completions, **_):
        self.calls += 1
        reward = fixed_noise if self.calls < self.when else always_one
        return reward(completions)


def diverging(monkeypatch, when: int, model="model"):
    """The gradient of `model` is infinite at the `when`-th backward pass."""
    calls = []

    def hook(gradient):
        calls.append(None)
        return gradient * math.inf if len(calls) == when else gradient

    def spoil(*arguments, **keywords):
        run = prepare(*arguments, **keywords)
        [*getattr(run, model).parameters()][-1].register_hook(hook)
        return run

    monkeypatch.setattr(loop, "prepare", spoil)


def unwritable(monkeypatch, when: int):
    """The disk is full at the `when`-th file that is written, in the midst of it."""
    written, sync = [], os.fsync

    def full(file):
        written.append(file)
        if len(written) == when:
            raise OSError(28, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)


def needs(module: str):
    """`module`; where it is not installed, a skip with the sentence for users."""
    try:
        return needed(module)
    except UserError as error:
        pytest.skip(str(error), allow_module_level=True)


def with_lora(model: PreTrainedModel, **settings) -> Model:
    """A fresh LoRA on `model`; skipped without peft."""
    needs("peft")
    return lora(model, **settings)


def rollout_of(mask: Tensor, **given) -> Rollout:
    """Responses with this mask, each of its own prompt; what is not given is 0."""
    rows = torch.arange(len(mask))
    ids = torch.zeros(len(mask), 1 + mask.shape[1], dtype=torch.long)
    plain = {"ids": ids, "prompt_length": 1 + 0 * rows, "group": rows}
    plain |= {"logp": 0 * mask, "entropy": 0 * mask, "truncated": rows < 0}
    return Rollout(mask=mask, **plain | given)


def prompts_of(rollout: Rollout) -> list[str]:
    """The prompt of each response, as text."""
    rows = zip(rollout.ids, rollout.prompt_length, strict=True)
    return TOKENIZER.batch_decode([ids[:n] for ids, n in rows])


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Equal bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    same = (torch.equal(x, second[name]) for name, x in first.items())
    return first.keys() == second.keys() and all(same)


def renamed(file: Path) -> None:
    """Give all weights in a file other names, as another library would."""
    other = {f"net.{name}": x for name, x in load_file(file).items()}
    save_file(other, file, {"format": "pt"})


def largest_difference(one: PreTrainedModel, other: PreTrainedModel) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def own_process(code: str, *words, cwd=None, **environment):
    """`python -c code words…`, done, with this tree on its path."""
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=cwd or root,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
