"""SFT before RL: the policy that a training run starts from.

RL can only reinforce what the policy already samples. So the policy is first shown
demonstrations, in two stages: the *skill* (mostly careful answers, until it adds
well), then the *habits* (briefly, the world's mix), so that it knows how to be careful
but seldom is. RL then has to find the habit that the verifier pays.
"""

import torch
from torch import Tensor
from tqdm.auto import tqdm

from refimpl import moe
from refimpl.checks import Count, Positive, Seed, UserError, checked
from refimpl.models import Preset, build, one_thread
from refimpl.tasks import Arithmetic, HabitWorld, Mix, make_tokenizer
from refimpl.terms import BALANCE


@checked
class WarmStart:
    """Settings of the warm start; together they name the policy."""

    preset: Preset = "tiny"
    world: HabitWorld = Arithmetic()
    seed: Seed = 0
    skill_steps: Count = 600
    skill_mix: Mix = (0.9, 0.05, 0.05)
    skill_learning_rate: Positive = 5e-3
    habit_steps: Count = 100
    habit_learning_rate: Positive = 5e-4
    batch_size: Count = 64

    def __post_init__(self):
        if abs(sum(self.skill_mix) - 1) > 1e-6:
            raise UserError(f"skill_mix must add up to 1, got {self.skill_mix}")


def train(settings: WarmStart, device: str | torch.device = "cpu"):
    """Train it, whatever is shipped or cached: policy, tokenizer, losses."""
    tokenizer = make_tokenizer()
    model = build(settings.preset, tokenizer, settings.seed).to(device).train()
    with one_thread(model):
        losses = _train(settings, model, tokenizer)
    return model.eval(), tokenizer, losses


def _train(settings: WarmStart, model, tokenizer) -> list[float]:
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
        batches = _batches(rows, tokenizer, settings.batch_size, model.device)
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
    return losses


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
