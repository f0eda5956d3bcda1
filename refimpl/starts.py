"""Starts: the policies that training begins from, shipped, cached or trained.

The three policies that the chapters start from are part of the package, so that every
machine starts from the same bits. Others are trained on first use (`sft`) and cached.
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
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from refimpl import seeds, sft
from refimpl.checks import UserError, guarded, one_line
from refimpl.files import cache_folder, digest
from refimpl.models import pick_device
from refimpl.sft import WarmStart
from refimpl.tasks import make_tokenizer

RECIPE = 1  # raise it when the same settings would give another model
SHIPPED = Path(__file__).parent / "starts"
RECORD = "start.json"


def cached(settings: WarmStart) -> Path:
    """Its place in the cache."""
    named = [RECIPE, torch.__version__, asdict(settings)]
    if seeds.salt():
        named.append(seeds.salt())
    text = json.dumps(named, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_folder() / f"warm-start-{settings.preset}-{key}"


def shipped(settings: WarmStart) -> Path | None:
    """The folder in the package that holds this policy, if one does.

    With `REFIMPL_OWN_STARTS=1` none does.
    """
    if os.environ.get("REFIMPL_OWN_STARTS", "0") not in ("", "0"):
        return None
    wanted = json.loads(json.dumps(asdict(settings)))
    for folder in sorted(SHIPPED.glob("*")):
        if json.loads((folder / RECORD).read_text())["settings"] == wanted:
            return folder
    return None


def weights_digest(settings: WarmStart) -> str:
    """SHA-256 of its weights, as shipped or else cached; "" if they are nowhere."""
    record = (shipped(settings) or cached(settings)) / RECORD
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

    Raises `UserError` if a shipped policy is damaged, or is one that the installed
    version of transformers does not read.
    """
    device = pick_device(device)
    there = None if fresh else shipped(settings)
    if there is not None:
        model, losses = _read(there)
        return model.to(device), make_tokenizer(), losses
    folder, model = cached(settings), None
    with _alone(folder):
        if not fresh and (folder / RECORD).exists():
            try:
                model, losses = _read(folder)
            except Exception as error:  # transformers raises many kinds
                warnings.warn(
                    f"the warm start in the cache is trained again: {one_line(error)}",
                    stacklevel=3,
                )
        if model is None:
            model, losses = sft.train(settings, device)
            try:
                _cache(folder, model, losses)
            except OSError as error:
                warnings.warn(
                    "the warm start was trained, but could not be kept in "
                    f"{folder.parent} ({error}); set REFIMPL_CACHE to a folder that "
                    "can be written",
                    stacklevel=3,
                )
    return model.to(device), make_tokenizer(), losses


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time trains a policy; nothing if locks cannot be written."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # `_cache` will say so
            folder.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(f"{folder}.lock"))
        yield


def _read(folder: Path) -> tuple[PreTrainedModel, list[float]]:
    """Policy and losses. Raises `UserError` if they are not what was written."""
    start = json.loads((folder / RECORD).read_text())
    weights = folder / "model.safetensors"
    there = digest(weights) if weights.exists() else "that of no file"
    if there != start["sha256"]:
        raise UserError(
            f"the policy {weights} is damaged: its SHA-256 is {there[:15]}…, expected "
            f"{start['sha256'][:12]}…. Install refimpl again (in a clone: git checkout "
            "refimpl/starts), or train your own with REFIMPL_OWN_STARTS=1"
        )
    cause: Exception | None = None
    try:
        with no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, output_loading_info=True
            )
        wrong = [str(name) for names in report.values() for name in names]
    except Exception as error:  # the weights are whole, so it is the version
        wrong, cause = [one_line(error, 200)], error
    if wrong:
        raise UserError(
            f"transformers {transformers.__version__} does not read the policy "
            f"{folder.name!r}, which transformers {start.get('transformers')} wrote "
            f"({', '.join(wrong[:3])}). Install that version, or train your own with "
            "REFIMPL_OWN_STARTS=1"
        ) from cause
    return model.eval(), start["losses"]


def _cache(folder: Path, model: PreTrainedModel, losses: list[float]) -> None:
    """Write to a temporary folder beside `folder`, then move it there in one step."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        whole = Path(scratch) / "policy"
        model.save_pretrained(whole)
        start = {"sha256": digest(whole / "model.safetensors"), "losses": losses}
        (whole / RECORD).write_text(json.dumps(start))
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process got there first
            whole.rename(folder)


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Without transformers' bar: one small file needs none."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()
