"""SFT before RL: the policy that a training run starts from.

RL can only reinforce what the policy already samples. So the policy first learns from
demonstrations, in two stages: the *skill* (mostly careful answers, until it adds well),
then the *habits* (briefly, the world's mix). After that the policy is able to answer
carefully but seldom does. RL then has to find the habit that the verifier rewards.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from refimpl import seeds
from refimpl.config import Preset
from refimpl.files import cache_folder, writable_folder
from refimpl.models import build, one_thread
from refimpl.moe import BALANCE, is_moe, load_balance, routed
from refimpl.tasks import Arithmetic, HabitWorld, Mix, make_tokenizer
from refimpl.tasks.arithmetic import CHARACTERS
from refimpl.validation import (
    Count,
    Positive,
    Seed,
    UserError,
    checked,
    guarded,
    one_line,
)


@checked
class WarmStart:
    """Settings of the warm start; together they identify the policy.

    The code of a world of your own is not part of them. Give it a `name`, and another
    one after a change, or two worlds with equal fields would share a policy.
    """

    preset: Preset = "tiny"
    world: HabitWorld = Arithmetic()
    seed: Seed = 0
    skill_steps: Count = 600
    skill_mix: Mix = (0.9, 0.05, 0.05)
    skill_learning_rate: Positive = 5e-3
    habit_steps: Count = 100
    habit_learning_rate: Positive = 5e-4
    batch_size: Count = 64
    name: str = ""

    def __post_init__(self):
        if not is_dataclass(self.world):
            raise UserError(
                f"world must be a dataclass: write @dataclass above {self.world!r}"
            )


@torch.inference_mode(False)  # the caller may have switched gradients off
def train(settings: WarmStart, device: str | torch.device = "cpu"):
    """Train a policy by SFT, without looking for a shipped or cached one.

    Returns the policy, and the loss of each step in nats.
    """
    world, size = settings.world, settings.batch_size
    check_letters(world)
    tokenizer = make_tokenizer(world.characters)
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
            rise = 0.1 if steps > 10 else 0.15  # torch divides by rise · steps − 1
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, peak, total_steps=steps, pct_start=rise, cycle_momentum=False
            )
            answers = getattr(world, "observe", None)
            for ids, labels in _batches(rows, tokenizer, size, answers):
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


def check_letters(world: HabitWorld) -> None:
    """Raise `UserError` if demonstrations have letters that `characters` lacks."""
    rows = world.demonstrations(64, 0)
    texts = [row["prompt"] + "".join(row["completion"]) for row in rows]
    if strange := {*"".join(texts)} - {*world.characters}:
        raise UserError(
            f"the world writes {', '.join(map(repr, sorted(strange)))}, but its "
            f"characters are {world.characters!r}: name all of them in the class "
            "attribute `characters`"
        )


def _loss(model, ids: Tensor, labels: Tensor, tokenizer) -> Tensor:
    """Compute the cross-entropy, plus the load-balancing loss if there are experts."""
    if not is_moe(model):
        return model(ids, labels=labels, use_cache=False).loss
    with routed(model) as routing:
        loss = model(ids, labels=labels, use_cache=False).loss
    return loss + BALANCE * load_balance(routing, ids != tokenizer.pad_token_id)


def _batches(
    rows, tokenizer, size: int, observe: Callable | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ids, labels), right-padded; only responses have labels, including EOS.

    A completion may be a list of turns. After each the environment answers (`observe`),
    and its tokens have no label: a policy that learned them would not need the tool.
    """
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    for first in range(0, len(rows), size):
        ids, labels = [], []
        for row in rows[first : first + size]:
            turns = row["completion"]
            texts, read, learnt = [row["prompt"]], list[int](), list[int]()
            for turn in [turns] if isinstance(turns, str) else turns:
                texts += [turn, (observe and observe(turn)) or ""]
            for place, text in enumerate(texts):  # every second one is the policy's
                tokens = tokenizer(text)["input_ids"]
                read += tokens
                learnt += tokens if place % 2 else [-100] * len(tokens)
            ids.append(torch.tensor([*read, end]))
            labels.append(torch.tensor([*learnt, end]))
        yield pad_sequence(ids, True, pad), pad_sequence(labels, True, -100)


# A policy is shipped, cached, or trained on first use. The policies that the
# chapters start from are part of the package, and those of stored runs are in a clone
# of the repository, so that every machine starts from the same bits.

RECIPE = 1  # increase it if the same settings would give another model
SHIPPED = Path(__file__).parent / "starts"
IN_A_CLONE = Path(__file__).parents[1] / "figures" / "data" / "starts"
RECORD = "start.json"


def cached(settings: WarmStart) -> Path:
    """Return the policy's folder in the cache."""
    salt = [seeds.salt()] if seeds.salt() else []
    world = f"{type(settings.world).__module__}.{type(settings.world).__qualname__}"
    parts = [RECIPE, torch.__version__, asdict(settings), world, *salt]
    if settings.world.characters != CHARACTERS:  # another vocabulary
        parts.append(settings.world.characters)
    text = json.dumps(parts, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_folder() / f"warm-start-{settings.preset}-{key}"


def shipped(settings: WarmStart) -> Path | None:
    """Return the policy's folder in package or clone; None if it is not shipped.

    Also None with `REFIMPL_OWN_STARTS=1`. The record of a user's world names its class
    as "module.Class".
    """
    if os.environ.get("REFIMPL_OWN_STARTS", "0") not in ("", "0"):
        return None
    kind, wanted = type(settings.world), json.loads(json.dumps(asdict(settings)))
    ours = kind.__module__.startswith("refimpl.")
    name = "" if ours else f"{kind.__module__}.{kind.__qualname__}"
    for place in (SHIPPED, IN_A_CLONE):
        for record in sorted(place.glob(f"*/{RECORD}")):
            start = json.loads(record.read_text("utf-8"))
            same = {"name": "", **start["settings"]} == wanted
            if same and start.get("world", "") == name:
                return record.parent
    return None


def weights_digest(settings: WarmStart) -> str:
    """Return the SHA-256 of the shipped or cached weights; "" if there are none."""
    record = (shipped(settings) or cached(settings)) / RECORD
    return json.loads(record.read_text("utf-8"))["sha256"] if record.exists() else ""


@guarded
def warm_start(
    settings: WarmStart = WarmStart(),
    *,
    device: str | torch.device = "cpu",
    fresh: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[float]]:
    """Return the warm-started policy, its tokenizer, and each step's SFT loss (nats).

    A policy that the package ships is loaded at once; otherwise it comes from the
    cache, or is trained (`tiny` takes half a minute to two minutes on one core) and
    cached. `fresh` trains it in any case, `REFIMPL_OWN_STARTS=1` ignores shipped
    policies, and `REFIMPL_SALT` changes those that are trained.

    Raises `UserError` if the policy is damaged or the installed version of transformers
    cannot read it, if the cache cannot be written, or if the world writes letters that
    its `characters` lack.
    """
    if not fresh and (there := shipped(settings)):
        model, losses = _read(there)
    else:
        folder = cached(settings)
        writable_folder(folder.parent, "the warm start (REFIMPL_CACHE says where)")
        with FileLock(f"{folder}.lock"):
            if fresh or not (folder / RECORD).exists():
                _write(folder, *train(settings, device))
            model, losses = _read(folder)
    return model.to(device), make_tokenizer(settings.world.characters), losses


def _read(folder: Path) -> tuple[PreTrainedModel, list[float]]:
    """Read policy and losses. Raises `UserError` if they are damaged."""
    try:
        start = json.loads((folder / RECORD).read_text("utf-8"))
        if digest(folder / "model.safetensors") != start["sha256"]:
            raise ValueError("its weights have another SHA-256")
        with no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, output_loading_info=True
            )
        if any(report.values()):  # weights that are missing would be random
            raise ValueError(f"its weights have other names or shapes: {report}")
        return model.eval(), start["losses"]
    except Exception as error:  # transformers raises many kinds
        raise UserError(
            f"the policy in {folder} is damaged, or transformers "
            f"{transformers.__version__} does not read it ({one_line(error, 200)}). "
            "If it is in the cache, remove that folder; else install refimpl again, "
            "with its transformers, or train your own (REFIMPL_OWN_STARTS=1)"
        ) from error


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write(folder: Path, model: PreTrainedModel, losses: list[float]) -> None:
    """Write to a temporary folder next to `folder`, then move it there in one step."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        whole = Path(scratch) / "policy"
        model.save_pretrained(whole)
        start = {"sha256": digest(whole / "model.safetensors"), "losses": losses}
        (whole / RECORD).write_text(json.dumps(start), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Switch off the progress bar of transformers: one small file needs none."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()
