"""SFT before RL: the policy that a training run starts from.

RL can only reinforce what the policy already samples. So the policy is first shown
demonstrations, in two stages: the *skill* (mostly careful answers, until it adds
well), then the *habits* (briefly, the world's mix), so that it knows how to be careful
but seldom is. RL then has to find the habit that the verifier pays.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from refimpl.loss_terms import BALANCE
from refimpl.models import Preset, build, one_thread
from refimpl.moe import is_moe, load_balance, routed
from refimpl.tasks import Arithmetic, HabitWorld, Mix, make_tokenizer
from refimpl.validation import Count, Positive, Seed, checked


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


@torch.inference_mode(False)  # with gradients, wherever it is called
def train(settings: WarmStart, device: str | torch.device = "cpu"):
    """Train it, whatever is shipped or cached: the policy, and the loss of every step
    in nats."""
    tokenizer, world, size = make_tokenizer(), settings.world, settings.batch_size
    model = build(settings.preset, tokenizer, settings.seed).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    stages = (
        (settings.skill_steps, settings.skill_learning_rate, settings.skill_mix),
        (settings.habit_steps, settings.habit_learning_rate, world.habit_mix),
    )
    losses: list[float] = []
    total = settings.skill_steps + settings.habit_steps
    with one_thread(model), tqdm(total=total, desc="warm start (SFT)") as bar:
        for stage, (steps, peak, mix) in enumerate(stages):
            rows = world.demonstrations(steps * size, settings.seed * 10 + stage, mix)
            rise = 0.1 if steps > 10 else 0.15  # of 10, torch would divide by 0
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, peak, total_steps=steps, pct_start=rise, cycle_momentum=False
            )
            for ids, labels in _batches(rows, tokenizer, size):
                loss = _loss(model, ids.to(device), labels.to(device), tokenizer)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
                bar.update()
    return model.eval(), losses


def _loss(model, ids: Tensor, labels: Tensor, tokenizer) -> Tensor:
    """Cross-entropy; a mixture of experts also pays for unbalanced visits."""
    if not is_moe(model):
        return model(ids, labels=labels, use_cache=False).loss
    with routed(model) as routing:
        loss = model(ids, labels=labels, use_cache=False).loss
    return loss + BALANCE * load_balance(routing, ids != tokenizer.pad_token_id)


def _batches(rows, tokenizer, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, labels), right-padded; the loss falls on the response, EOS included."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    for first in range(0, len(rows), size):
        ids, labels = [], []
        for row in rows[first : first + size]:
            prompt = tokenizer(row["prompt"])["input_ids"]
            response = [*tokenizer(row["completion"])["input_ids"], end]
            ids.append(torch.tensor(prompt + response))
            labels.append(torch.tensor([-100] * len(prompt) + response))
        yield pad_sequence(ids, True, pad), pad_sequence(labels, True, -100)
