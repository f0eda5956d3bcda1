"""The same work done in two ways: how far the results are apart, and which is faster.

The pairs are two precisions, two samplers, prompts shared or repeated, TRL's update or
ours, and a run against its repetition or against one that was interrupted. Each
function takes any model with its tokenizer and the sizes of a rollout in a
`TrainConfig`, and returns figures by name, units included.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.bench import _in_turn, sampler
from refimpl.advantages import Scored
from refimpl.algorithms import get
from refimpl.config import TrainConfig
from refimpl.loop import collect, train
from refimpl.models import trainable_copy
from refimpl.options import prepare
from refimpl.pretrained.logprobs import log_probs
from refimpl.sampling import sample
from refimpl.tasks import Arithmetic


def odd_characters(prompts, completions, **columns) -> list[float]:
    """The share of odd character codes, which differs even among untrained answers."""
    return [sum(ord(c) % 2 for c in text) / max(1, len(text)) for text in completions]


def precisions(model, tokenizer, config: TrainConfig) -> dict:
    """Compare log-probs and gradients of one rollout in float32 and in bfloat16."""
    run = prepare("grpo", config, model, tokenizer, reward=odd_characters)
    (batch, _), results = collect(run, 0), []
    for dtype in ("float32", "bfloat16"):
        run.config = replace(run.config, dtype=dtype)
        logp = run.read(run.model, batch.rollout).logp
        t = (logp, logp.detach(), batch.advantages, batch.mask)
        results.append((t[1], _gradient(run.algorithm.policy_loss(*t).loss, run.model)))
    (wide, one), (narrow, other) = results
    gap = (wide - narrow).abs()[batch.mask.bool()]
    return {
        "mean |Δ log-prob|, nats": gap.mean().item(),
        "largest |Δ log-prob|, nats": gap.max().item(),
        "1 − cosine of the gradients": _angle(one, other),
    }


def samplers(model, tokenizer, config: TrainConfig, repeats: int) -> dict:
    """Measure our sampler's speed, and compare its log-probs and tokens with others."""
    rows = Arithmetic().sample(config.prompts_per_rollout, seed=0)
    prompts, limit = [row["prompt"] for row in rows], config.max_new_tokens
    settings: dict = {"group_size": config.group_size, "max_new_tokens": limit}
    figures = sampler(model, tokenizer, repeats, prompts, **settings)
    rollout = sample(model, tokenizer, prompts, **settings)
    with torch.no_grad():
        gap = (log_probs(model, rollout)[0] - rollout.logp).abs().max().item()
    # At this temperature only the most likely token is drawn.
    cold = sample(model, tokenizer, prompts, max_new_tokens=limit, temperature=1e-5)
    encoded = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    greedy = model.generate(
        **encoded.to(model.device), do_sample=False, max_new_tokens=limit
    )[:, encoded["input_ids"].shape[1] :]
    width = min(greedy.shape[1], cold.mask.shape[1])
    same = (greedy[:, :width] == cold.tokens[:, :width])[cold.mask[:, :width].bool()]
    return figures | {
        "sampled against teacher-forced, largest |Δ log-prob|, nats": gap,
        "greedy tokens that are generate's, share": same.double().mean().item(),
    }


def updates(
    model, tokenizer, config: TrainConfig, repeats: int, trl: bool = False
) -> dict:
    """Compare GRPO's update on shared prompts with repeated prompts or with TRL."""
    if trl and importlib.util.find_spec("trl") is None:
        return {"not measured": "trl is not installed"}
    digits = torch.arange(25 * config.prompts_per_rollout).view(-1, 25) ** 2 % 10
    prompts = ["+".join(map(str, row)) + "=" for row in digits.tolist()]
    settings: dict = {"group_size": config.group_size, "max_new_tokens": 12}
    rollout = sample(model, tokenizer, prompts, **settings)
    scores = torch.tensor(odd_characters(prompts, rollout.texts(tokenizer)))
    scored = Scored(scores.to(model.device), rollout.group)
    advantages = get("grpo").advantages(scored)

    def ours(share: bool) -> tuple:
        logp, _ = log_probs(model, rollout, share_prompts=share)
        t = (logp, rollout.logp, advantages, rollout.mask)
        loss = get("grpo").policy_loss(*t).loss
        gradient = _gradient(loss, model)
        return loss.item(), gradient, logp.detach()  # .item() waits for the device

    works: dict[str, Callable] = {"shared prompts": partial(ours, True)}
    if trl:
        works["TRL"] = _trl(trainable_copy(model), tokenizer, rollout, advantages)
    else:
        works["repeated prompts"] = partial(ours, False)
    results, seconds = _in_turn(list(works.values()), repeats)
    (loss, one, logp), (other_loss, other, other_logp) = results
    figures: dict = {f"{name}, seconds": s for name, s in zip(works, seconds)}
    figures[f"{list(works)[1]} / shared prompts"] = seconds[1] / seconds[0]
    if trl:
        figures["version of TRL"] = metadata.version("trl")
    else:
        figures["largest |Δ log-prob|, nats"] = (logp - other_logp).abs().max().item()
    return figures | {
        "|Δ loss|": abs(loss - other_loss),
        "1 − cosine of the gradients": _angle(one, other),
    }


def repeated(model, tokenizer, config: TrainConfig) -> dict:
    """Compare a run with its repetition, and with one that was interrupted and resumed.

    On a GPU a sum may depend on the order of threads.
    """
    fixed: dict = {"model": model, "tokenizer": tokenizer, "progress": False}
    fixed |= {"task": Arithmetic(), "reward": odd_characters}
    half = replace(config, rollouts=1)
    with tempfile.TemporaryDirectory() as folder:
        whole, again = (train("grpo", config=config, **fixed) for _ in range(2))
        fixed["checkpoint_dir"] = folder
        train("grpo", config=half, **fixed)
        cut = train("grpo", config=config, resume=True, **fixed)
    exact = config.device == "cpu"
    promised = "the same bits" if exact else "the same dice; sums may round apart"
    figures: dict = {"promised": promised}
    for name, other in (("same seed", again), ("resumed", cut)):
        weights = zip(whole.model.parameters(), other.model.parameters())
        gaps = [(a - b).abs().max().item() for a, b in weights]
        figures[f"{name}, same history"] = other == whole
        figures[f"{name}, largest |Δ weight|"] = max(gaps)
    return figures


def _trl(model, tokenizer, rollout, advantages) -> Callable:
    """The same loss and gradient by TRL's trainer, which changes `model`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            folder,
            beta=0.0,
            loss_type="grpo",
            bf16=False,
            report_to="none",
            use_cpu=model.device.type == "cpu",
        )
        rows = Dataset.from_list([{"prompt": "1+1="}] * 8)  # never used
        trainer = GRPOTrainer(
            model, odd_characters, arguments, rows, processing_class=tokenizer
        )
    trainer.model.eval()  # as for ours; this also avoids gradient accumulation
    start = int(rollout.prompt_length[0])  # equal for all prompts, so nothing is padded
    inputs = {
        "prompt_ids": rollout.ids[:, :start],
        "prompt_mask": torch.ones_like(rollout.ids[:, :start]),
        "completion_ids": rollout.ids[:, start:],
        "completion_mask": rollout.mask.long(),
        "advantages": advantages,
        "old_per_token_logps": rollout.logp,
    }

    def theirs() -> tuple:
        loss = trainer._compute_loss(trainer.model, inputs)
        gradient = _gradient(loss, trainer.model)
        return loss.item(), gradient, None

    return theirs


def _gradient(loss: Tensor, model) -> Tensor:
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in parts])


def _angle(one: Tensor, other: Tensor) -> float:
    return 1 - F.cosine_similarity(one.double(), other.double(), dim=0).item()
