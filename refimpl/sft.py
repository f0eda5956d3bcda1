"""SFT before RL: the policy that every training run starts from.

RL can only reinforce what the policy already samples. So the policy is first shown
demonstrations, in two stages: the *skill* (mostly careful answers, until it adds
well), then the *habits* (briefly, the world's mix), so that it knows how to be careful
but seldom is. RL then has to find the habit that the verifier pays.

The three policies that the chapters start from are part of the package, so that every
machine starts from the same bits. Others are trained on first use and cached.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from refimpl import dice, moe
from refimpl.arguments import guarded
from refimpl.files import cache_folder, digest
from refimpl.models import (
    Preset,
    build,
    load,
    no_progress_bar,
    one_thread,
    pick_device,
)
from refimpl.settings import Count, Positive, Seed, checked
from refimpl.tasks import Arithmetic, HabitWorld, Mix, make_tokenizer

BALANCE = 1e-3  # weight of the load-balancing loss; Qwen3-MoE's
RECIPE = 1  # raise it when the same settings would give another model
SHIPPED = Path(__file__).parent / "starts"


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
            raise ValueError(f"skill_mix must add up to 1, got {self.skill_mix}")

    def folder(self) -> Path:
        """Its place in the cache."""
        settings = [RECIPE, torch.__version__, asdict(self)]
        if dice.salt():
            settings.append(dice.salt())
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cache_folder() / f"warm-start-{self.preset}-{digest}"

    def shipped(self) -> Path | None:
        """The folder in the package that holds this policy, if one does.

        With `REFIMPL_OWN_STARTS=1` none does.
        """
        if os.environ.get("REFIMPL_OWN_STARTS", "0") not in ("", "0"):
            return None
        own = json.loads(json.dumps(asdict(self)))
        for folder in sorted(SHIPPED.glob("*")):
            if json.loads((folder / "start.json").read_text())["settings"] == own:
                return folder
        return None

    def digest(self) -> str:
        """SHA-256 of its weights, as shipped or else cached; "" if they are nowhere."""
        record = (self.shipped() or self.folder()) / "start.json"
        return json.loads(record.read_text())["sha256"] if record.exists() else ""


@guarded
def warm_start(
    settings: WarmStart = WarmStart(),
    *,
    device: str | torch.device = "cpu",
    fresh: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[float]]:
    """The warm-started policy, its tokenizer, and the SFT loss (nats) of every step.

    At once if the package ships it, else from the cache, else trained and cached
    (`tiny`: well under a minute on 2 cores). `fresh` trains it in any case, and so
    does `REFIMPL_OWN_STARTS=1` unless the cache holds one. `REFIMPL_SALT` changes
    what is trained, not what is shipped. An interrupted run leaves nothing in the
    cache, a damaged one there is trained again with a warning, and one that cannot be
    written gets a warning too, and the policy is returned. Processes that need the same
    one wait for the first.

    Raises `ValueError` if a shipped policy is damaged, or is one that the installed
    version of transformers does not read.
    """
    device = pick_device(device)
    shipped = None if fresh else settings.shipped()
    if shipped is not None:
        model, losses = _read_shipped(shipped)
        return model.to(device), make_tokenizer(), losses
    folder = settings.folder()
    with _alone(folder):
        found = None if fresh else _read_cached(folder)
        if found is not None:
            model, tokenizer, losses = found
            return model.to(device), tokenizer, losses
        model, tokenizer, losses = train(settings, device)
        try:
            _cache(folder, model, tokenizer, losses)
        except OSError as error:
            warnings.warn(
                "the warm start was trained, but could not be kept in "
                f"{folder.parent} ({error}); set REFIMPL_CACHE to a folder that can be "
                "written",
                stacklevel=2,
            )
    return model, tokenizer, losses


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time trains a policy; nothing if locks cannot be written."""
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:  # `_cache` will say that nothing can be written there
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _read_cached(folder: Path):
    """Policy, tokenizer and losses from the cache; None, with a warning, if damaged."""
    record = folder / "start.json"
    if not record.exists():
        return None
    try:
        start = json.loads(record.read_text())
        if digest(folder / "model.safetensors") != start["sha256"]:
            raise ValueError("its weights do not fit their checksum")
        return *load(folder), start["losses"]
    except Exception as error:  # transformers raises many kinds for a damaged file
        said = " ".join(str(error).split())[:200]
        warnings.warn(
            f"the warm start in the cache, {folder}, is damaged ({said}); it is "
            "trained again",
            stacklevel=3,
        )
        return None


def _read_shipped(folder: Path) -> tuple[PreTrainedModel, list[float]]:
    start = json.loads((folder / "start.json").read_text())
    weights = folder / "model.safetensors"
    found = digest(weights) if weights.exists() else ""
    if found != start["sha256"]:
        raise ValueError(
            f"the shipped policy {weights} is damaged: its SHA-256 is "
            f"{found[:12] or 'that of no file'}…, expected {start['sha256'][:12]}…. "
            "Install refimpl again (in a clone: git checkout refimpl/starts), or train "
            "your own with REFIMPL_OWN_STARTS=1"
        )
    try:
        with no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, output_loading_info=True
            )
        wrong = [name for names in report.values() for name in names]
    except Exception as error:  # the weights are whole, so it is the version
        said = " ".join(f"{type(error).__name__}: {error}".split())
        wrong, cause = [said[:200]], error
    else:
        cause = None
    if wrong:
        raise ValueError(
            f"transformers {transformers.__version__} does not read the shipped policy "
            f"{folder.name!r}, which transformers {start['transformers']} wrote "
            f"({', '.join(map(str, wrong[:3]))}). Install that version, or train your "
            "own with REFIMPL_OWN_STARTS=1"
        ) from cause
    return model.eval(), start["losses"]


def _cache(folder: Path, model, tokenizer, losses) -> None:
    """Write to a temporary folder beside `folder`, then move it there in one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        start = {"sha256": digest(Path(scratch) / "model.safetensors")}
        start |= {"losses": losses}
        (Path(scratch) / "start.json").write_text(json.dumps(start))
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process got there first
            Path(scratch).rename(folder)
            os.mkdir(scratch)  # for TemporaryDirectory to clean up


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


__all__ = ["WarmStart", "cache_folder", "warm_start"]
