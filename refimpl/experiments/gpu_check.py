"""`python -m refimpl gpu-check`: what can only be seen on a GPU, as text and JSON.

Two precisions, two samplers, two frameworks and two ways of scoring are compared on
one untrained model; SmolLM2 trains with a LoRA; every algorithm trains two rollouts.
It takes less than ten minutes and no network.
"""

import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from refimpl.algorithms import ALGORITHMS, get
from refimpl.arguments import guarded
from refimpl.config import TrainConfig
from refimpl.experiments import real
from refimpl.experiments.bench import _in_turn, _show, sampler
from refimpl.experiments.store import provenance
from refimpl.files import writable_file
from refimpl.history import History
from refimpl.models import build, load, lora, pick_device, trainable_copy
from refimpl.pretrained import fetched
from refimpl.rollout import log_probs, sample
from refimpl.run import score_with
from refimpl.tasks import Arithmetic, Chat, make_tokenizer
from refimpl.trainer import collect, prepare, train

LIMIT = 540  # seconds; a part that would begin later is left out


class Size(NamedTuple):
    """Presets, prompts per rollout, responses to each, tokens, mini-batches, timings"""

    dense: str = "small"
    moe: str = "small-moe"
    prompts: int = 16
    group: int = 8
    tokens: int = 48
    minibatches: int = 4
    repeats: int = 5


TINY = Size("tiny", "tiny-moe", 4, 4, 8, 2, 1)


class Here(NamedTuple):
    """Where and at what size a part is measured."""

    device: torch.device
    size: Size

    def policy(self, preset: str) -> tuple[Any, Any]:
        tokenizer = make_tokenizer()
        return build(preset, tokenizer).to(self.device).eval(), tokenizer

    def config(self, **settings) -> TrainConfig:
        return TrainConfig(
            **{
                "prompts_per_rollout": self.size.prompts,
                "group_size": self.size.group,
                "max_new_tokens": self.size.tokens,
                "minibatches": self.size.minibatches,
                "rollouts": 2,
                "eval_problems": 8,
                "device": str(self.device),
                **settings,
            }
        )


Part: TypeAlias = Callable[[Here], dict[str, Any]]


def odd_characters(prompts, completions, **columns) -> list[float]:
    """The share of odd character codes: an untrained model's answers differ in it."""
    return [sum(ord(c) % 2 for c in text) / max(1, len(text)) for text in completions]


def precision(here: Here) -> dict:
    """One rollout scored in float32 and in bfloat16, and the gradient of its loss."""
    model, tokenizer = here.policy(here.size.dense)
    run = prepare("grpo", here.config(), model, tokenizer, reward=odd_characters)
    batch, _ = collect(run, 0)
    scored, gradients = [], []
    for dtype in ("float32", "bfloat16"):
        run.config = replace(run.config, dtype=dtype)
        logp, _ = score_with(run, run.model, batch.rollout)
        objective = run.algorithm.policy_loss(
            logp, logp.detach(), batch.advantages, batch.mask
        )
        scored.append(logp.detach())
        gradients.append(_gradient(objective.loss, run.model))
    gap = (scored[0] - scored[1]).abs()[batch.mask.bool()]
    return {
        "|Δ log-prob|, mean, nats": gap.mean().item(),
        "|Δ log-prob|, largest, nats": gap.max().item(),
        "cosine of the gradients": F.cosine_similarity(*gradients, dim=0).item(),
    }


def against_generate(here: Here) -> dict:
    """Our sampler: tokens per second, and whether it draws what it should."""
    size = here.size
    model, tokenizer = here.policy(size.dense)
    prompts = [row["prompt"] for row in Arithmetic().sample(size.prompts, seed=0)]
    figures = sampler(model, tokenizer, size.repeats, prompts, size.group, size.tokens)
    with torch.no_grad():
        rollout = sample(model, tokenizer, prompts, max_new_tokens=size.tokens)
        again, _ = log_probs(model, rollout)
        # So cold that the most likely token is drawn.
        cold = sample(
            model, tokenizer, prompts, max_new_tokens=size.tokens, temperature=1e-5
        )
        encoded = tokenizer(
            prompts, padding=True, padding_side="left", return_tensors="pt"
        ).to(here.device)
        greedy = model.generate(**encoded, do_sample=False, max_new_tokens=size.tokens)[
            :, encoded["input_ids"].shape[1] :
        ]
    width, mask = min(greedy.shape[1], cold.mask.shape[1]), cold.mask.bool()
    same = (greedy[:, :width] == cold.tokens[:, :width])[mask[:, :width]]
    return figures | {
        "sampled and teacher-forced, largest |Δ log-prob|, nats": (
            (again - rollout.logp).abs().max().item()
        ),
        "most likely tokens that generate takes too, share": same.double()
        .mean()
        .item(),
    }


def shared_prompts(here: Here) -> dict:
    """Prompts of 50 tokens read once for all their answers, or once for each."""
    model, losses = _long_prompts(here)
    found, seconds = _in_turn(
        [partial(losses, model, share) for share in (False, True)], here.size.repeats
    )
    (_, repeated, one), (_, shared, other) = found
    return {
        "loss and gradient, prompts repeated, seconds": seconds[0],
        "loss and gradient, prompts shared, seconds": seconds[1],
        "repeated / shared": seconds[0] / seconds[1],
        "largest |Δ log-prob|, nats": (repeated - shared).abs().max().item(),
        "largest |Δ gradient| / largest gradient": (
            ((one - other).abs().max() / one.abs().max()).item()
        ),
    }


def against_trl(here: Here) -> dict:
    """GRPO's loss and gradient on one batch, by TRL's trainer and by us."""
    if importlib.util.find_spec("trl") is None:
        return {"not measured": "trl is not installed"}
    from trl import GRPOConfig, GRPOTrainer

    model, losses = _long_prompts(here)
    rollout, advantages = losses.keywords["rollout"], losses.keywords["advantages"]
    start = int(rollout.prompt_length[0])  # of all: nothing is padded
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=trainable_copy(model),
            reward_funcs=odd_characters,
            processing_class=make_tokenizer(),
            train_dataset=[{"prompt": "1+1="}] * len(rollout),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=here.size.group,
                num_generations=here.size.group,
                beta=0.0,
                loss_type="grpo",
                use_cpu=here.device.type == "cpu",
                bf16=False,
                report_to="none",
            ),
        )
    trainer.model.eval()
    inputs = {
        "prompt_ids": rollout.ids[:, :start],
        "prompt_mask": torch.ones_like(rollout.ids[:, :start]),
        "completion_ids": rollout.ids[:, start:],
        "completion_mask": rollout.mask.long(),
        "advantages": advantages,
        "old_per_token_logps": rollout.logp,
        "num_items_in_batch": rollout.mask.sum(),
    }

    def theirs() -> tuple[float, None, Tensor]:
        loss = trainer._compute_loss(trainer.model, inputs)
        gradient = _gradient(loss, trainer.model)
        return loss.item(), None, gradient

    works = [partial(losses, model, share) for share in (False, True)]
    found, seconds = _in_turn([*works, theirs], here.size.repeats)
    (ours, _, one), _, (other, _, two) = found
    return {
        "ours, prompts repeated, seconds": seconds[0],
        "ours, prompts shared, seconds": seconds[1],
        "TRL, seconds": seconds[2],
        "TRL / ours, shared": seconds[2] / seconds[1],
        "|Δ loss|": abs(ours - other),
        "cosine of the gradients": F.cosine_similarity(one, two, dim=0).item(),
    }


def _long_prompts(here: Here) -> tuple[Any, partial]:
    """A model and `losses(model, share)`: loss, log-probs, flat gradient of a batch."""
    model, tokenizer = here.policy(here.size.dense)
    dice = torch.Generator().manual_seed(0)
    digits = torch.randint(10, (here.size.prompts, 25), generator=dice)
    prompts = ["+".join(map(str, row)) + "=" for row in digits.tolist()]
    rollout = sample(
        model, tokenizer, prompts, group_size=here.size.group, max_new_tokens=12
    )
    scores = odd_characters(None, rollout.texts(tokenizer))
    advantages = get("grpo").advantages(
        torch.tensor(scores, device=here.device), rollout.group
    )
    return model, partial(_losses, rollout=rollout, advantages=advantages)


def _losses(model, share: bool, *, rollout, advantages) -> tuple[float, Tensor, Tensor]:
    logp, _ = log_probs(model, rollout, share_prompts=share)
    loss = get("grpo").policy_loss(logp, rollout.logp, advantages, rollout.mask).loss
    gradient = _gradient(loss, model)
    return loss.item(), logp.detach(), gradient  # .item() waits for the device


def _gradient(loss: Tensor, model) -> Tensor:
    return torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, model.parameters())]
    )


def smollm2(here: Here) -> dict:
    """Three rollouts of SmolLM2 with a LoRA, on the task of chapter 13."""
    if not fetched(real.MODEL):
        return {"not measured": "the model is missing: python -m refimpl fetch smollm2"}
    model, tokenizer = load(real.MODEL)
    config = replace(real.GENTLE, rollouts=3, device=str(here.device))
    if here.size.repeats == 1:
        few = {"prompts_per_rollout": 2, "group_size": 2, "max_new_tokens": 4}
        config = replace(config, **few, eval_problems=1, eval_samples=1)
    history = train(
        "grpo",
        config=config,
        model=lora(model, r=16),
        tokenizer=tokenizer,
        task=Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM),
        reward=odd_characters,
        progress=False,
    )
    return _described(history)


def algorithm(here: Here, preset: str, name: str) -> dict:
    """Two rollouts and their updates, on an untrained model."""
    model, tokenizer = here.policy(preset)
    history = train(
        name,
        config=here.config(),
        model=model,
        tokenizer=tokenizer,
        reward=odd_characters,
        progress=False,
    )
    return _described(history)


def _described(history: History) -> dict:
    """`train` has raised already if no ratio left 1."""
    if history.ended is not None:
        raise history.ended
    return {
        "loss, last rollout": history["loss"][-1],
        "largest |ratio − 1|": max(history["ratio/max_deviation"]),
        "seconds, last rollout with its updates": history["step_time"][-1],
    }


def parts(size: Size) -> dict[str, Part]:
    """What is measured, by name."""
    found: dict[str, Part] = {
        "bfloat16 against float32": precision,
        "sampler against model.generate": against_generate,
        "shared prompts": shared_prompts,
        "update against TRL": against_trl,
        "SmolLM2 with a LoRA": smollm2,
    }
    for preset in (size.dense, size.moe):
        for name in ALGORITHMS:
            if preset == size.moe or name != "rspo":  # which needs routers
                found[f"{name}, {preset}"] = partial(
                    algorithm, preset=preset, name=name
                )
    return found


def _measured(part: Part, here: Here) -> dict:
    """The figures of a part; its error if it raises or a figure is not finite."""
    cuda = here.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(here.device)
    try:
        found = part(here)
        for name, value in found.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value}")
    except Exception as error:  # the other parts are measured all the same
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    if cuda:
        peak = torch.cuda.max_memory_allocated(here.device)
        found["peak memory, MiB"] = round(peak / 2**20)
    return {
        k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()
    }


@guarded
def gpu_check(
    device: str = "cuda", out: Path = Path("gpu_check.json"), tiny: bool = False
) -> dict:
    """Print each figure as it is measured, then write machine and figures to `out`.

    A part that raises is recorded as its error. `tiny`: the same with the tiny presets.
    Raises `ValueError` before any work if there is no such device, if the CPU is asked
    for without `tiny`, or if `out` cannot be written.
    """
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            "gpu-check measures a GPU, and torch sees no CUDA device on this machine: "
            "run it where there is one, or try its parts with --device cpu --tiny"
        )
    where = pick_device(device)
    if where.type == "cpu" and not tiny:
        raise ValueError(
            "gpu-check on a CPU would take hours and say nothing about a GPU: give "
            "--tiny too, which tries its parts with the tiny presets"
        )
    writable_file(out, "the measurements")
    here = Here(where, TINY if tiny else Size())
    start = time.perf_counter()
    found: dict[str, dict] = {"machine": _show(machine(where))}
    for name, part in parts(here.size).items():
        print(f"\n{name}")
        if time.perf_counter() - start > LIMIT:
            found[name] = _show({"not measured": f"{LIMIT} s were over"})
        else:
            found[name] = _show(_measured(part, here))
    found["machine"] |= _show({"seconds in all": round(time.perf_counter() - start, 1)})
    out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(f"wrote {out}")
    return found


def machine(device: torch.device) -> dict:
    """The device, and the versions of what computes on it."""
    found: dict[str, Any] = {"device": str(device), **provenance()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "GPU": properties.name,
            "GPU memory, MiB": round(properties.total_memory / 2**20),
            "CUDA": torch.version.cuda,
        }
    for package in ("trl", "peft"):
        if importlib.util.find_spec(package):
            found[package] = metadata.version(package)
    return found
