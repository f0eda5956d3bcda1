"""SFT before RL: the policy that every training run starts from.

RL can only reinforce what the policy already samples. So the policy is first shown
demonstrations, in two stages: the *skill* (mostly careful answers, until it adds
well), then the *habits* (briefly, the world's mix), so that it knows how to be careful
but seldom is. RL then has to find the habit that the verifier pays.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import moe
from refimpl.models import PRESETS, build, load, pick_device
from refimpl.tasks import Arithmetic, make_tokenizer

BALANCE = 1e-3  # weight of the load-balancing loss; Qwen3-MoE's
RECIPE = 1  # raise it when the same settings would give another model


@dataclass(frozen=True)
class WarmStart:
    """Settings of the warm start; together they name its place in the cache."""

    preset: str = "tiny"
    world: Arithmetic = Arithmetic()
    seed: int = 0
    skill_steps: int = 600
    skill_mix: tuple[float, float, float] = (0.9, 0.05, 0.05)
    skill_learning_rate: float = 5e-3
    habit_steps: int = 100
    habit_learning_rate: float = 5e-4
    batch_size: int = 64

    def folder(self) -> Path:
        settings = json.dumps([RECIPE, torch.__version__, asdict(self)], sort_keys=True)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        return cache_folder() / f"warm-start-{self.preset}-{digest}"


def cache_folder() -> Path:
    """`$REFIMPL_CACHE`, else `refimpl` under the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REFIMPL_CACHE") or Path(home) / "refimpl")


def warm_start(
    settings: WarmStart = WarmStart(),
    *,
    device: str = "cpu",
    fresh: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[float]]:
    """The warm-started policy, its tokenizer, and the SFT loss of every step.

    Trained on first use (`tiny`: well under a minute on 2 cores), then read from the
    cache; `fresh` trains again. An interrupted run leaves nothing in the cache.
    """
    device = pick_device(device)
    folder = settings.folder()
    if fresh or not (folder / "losses.json").exists():
        _train_into(folder, settings, device)
    model, tokenizer = load(folder)
    losses = json.loads((folder / "losses.json").read_text())
    return model.to(device), tokenizer, losses


def _train_into(folder: Path, settings: WarmStart, device: torch.device) -> None:
    """Train in a temporary folder beside `folder`, then move it there in one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        model, tokenizer, losses = _train(settings, device)
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        (Path(scratch) / "losses.json").write_text(json.dumps(losses))
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process got there first
            Path(scratch).rename(folder)
            os.mkdir(scratch)  # for TemporaryDirectory to clean up


def _train(settings: WarmStart, device: torch.device):
    tokenizer = make_tokenizer()
    model = build(settings.preset, tokenizer, settings.seed).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    stages = (
        (settings.skill_steps, settings.skill_learning_rate, settings.skill_mix),
        (settings.habit_steps, settings.habit_learning_rate, settings.world.habit_mix),
    )
    losses = []
    bar = tqdm(total=sum(steps for steps, _, _ in stages), desc="warm start (SFT)")
    for stage, (steps, peak, mix) in enumerate(stages):
        rows = settings.world.demonstrations(
            steps * settings.batch_size, settings.seed * 10 + stage, mix
        )
        batches = _batches(rows, tokenizer, settings.batch_size, device)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, peak, total_steps=steps, pct_start=0.1, cycle_momentum=False
        )
        for ids, labels in batches:
            loss = _loss(model, ids, labels, tokenizer.pad_token_id)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    bar.close()
    return model.eval(), tokenizer, losses


def _loss(model, ids: Tensor, labels: Tensor, pad: int) -> Tensor:
    """Cross-entropy; a mixture of experts also pays for unbalanced visits."""
    if not moe.is_moe(model):
        return model(ids, labels=labels, use_cache=False).loss
    with moe.routed(model) as routing:
        loss = model(ids, labels=labels, use_cache=False).loss
    return loss + BALANCE * moe.load_balance(routing, ids != pad)


def _batches(rows, tokenizer, size: int, device) -> list[tuple[Tensor, Tensor]]:
    """(ids, labels), right-padded; the loss falls on the response, EOS included."""
    batches = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        prompts = tokenizer([r["prompt"] for r in part])["input_ids"]
        texts = tokenizer([r["completion"] for r in part])["input_ids"]
        width = max(len(p) + len(c) + 1 for p, c in zip(prompts, texts, strict=True))
        ids = torch.full((len(part), width), tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            text = [*text, tokenizer.eos_token_id]
            ids[i, : len(prompt) + len(text)] = torch.tensor(prompt + text)
            labels[i, len(prompt) : len(prompt) + len(text)] = torch.tensor(text)
        batches.append((ids.to(device), labels.to(device)))
    return batches


__all__ = ["PRESETS", "WarmStart", "cache_folder", "warm_start"]
