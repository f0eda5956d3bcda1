"""Starts: the policies that training begins from, shipped, cached or trained.

The three policies that the chapters start from are part of the package, and those of
the stored runs lie in a clone, so that every machine starts from the same bits. Others
are trained on first use (`sft`) and cached.
"""

import contextlib
import hashlib
import inspect
import json
import marshal
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from refimpl import seeds, sft
from refimpl.cache import cache_folder, digest, writable_folder
from refimpl.models import pick_device
from refimpl.sft import WarmStart
from refimpl.tasks import HabitWorld, make_tokenizer
from refimpl.validation import UserError, guarded, one_line

RECIPE = 1  # raise it when the same settings would give another model
SHIPPED = Path(__file__).parent / "starts"
IN_A_CLONE = Path(__file__).parents[1] / "figures" / "data" / "starts"
RECORD = "start.json"


def cached(settings: WarmStart) -> Path:
    """Its place in the cache."""
    salt = [seeds.salt()] if seeds.salt() else []
    named = [RECIPE, torch.__version__, asdict(settings), *salt]
    named += own_code(settings.world)
    text = json.dumps(named, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_folder() / f"warm-start-{settings.preset}-{key}"


def own_code(world: HabitWorld) -> list[str]:
    """The methods of the world's classes that are not the package's.

    Two worlds with the same fields may draw other problems or show other habits, so
    what they demonstrate is part of a policy's name. Functions that a method calls
    elsewhere are not: after a change there, ask for `fresh=True`.
    """
    found = []
    for kind in type(world).__mro__:
        if kind.__module__.split(".")[0] in ("refimpl", "builtins"):
            continue
        found.append(kind.__qualname__)
        for name, member in sorted(vars(kind).items()):
            function = inspect.unwrap(getattr(member, "__func__", member))
            if not inspect.isfunction(function) or name.startswith("__"):
                continue
            try:
                found.append(inspect.getsource(function))
            except OSError:  # typed where no file holds it
                found.append(marshal.dumps(function.__code__).hex())
    return found


def shipped(settings: WarmStart) -> Path | None:
    """Its folder in package or clone, if any; none with `REFIMPL_OWN_STARTS=1`.

    The record of a world that is not the package's names its class, as
    "module.Class".
    """
    if os.environ.get("REFIMPL_OWN_STARTS", "0") not in ("", "0"):
        return None
    kind, wanted = type(settings.world), json.loads(json.dumps(asdict(settings)))
    name = f"{kind.__module__}.{kind.__qualname__}" * bool(own_code(settings.world))
    for place in (SHIPPED, IN_A_CLONE):
        for record in sorted(place.glob(f"*/{RECORD}")):
            start = json.loads(record.read_text("utf-8"))
            if start["settings"] == wanted and start.get("world", "") == name:
                return record.parent
    return None


def weights_digest(settings: WarmStart) -> str:
    """SHA-256 of its weights, as shipped or else cached; "" if they are nowhere."""
    record = (shipped(settings) or cached(settings)) / RECORD
    return json.loads(record.read_text("utf-8"))["sha256"] if record.exists() else ""


@guarded
def warm_start(
    settings: WarmStart = WarmStart(),
    *,
    device: str | torch.device = "cpu",
    fresh: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[float]]:
    """The warm-started policy, its tokenizer, and the SFT loss (nats) of every step.

    At once if the package ships it, else from the cache, else trained and cached
    (`tiny`: half a minute to two, by the core). `fresh` trains it in any case, and so
    does `REFIMPL_OWN_STARTS=1` unless the cache holds one. `REFIMPL_SALT` changes
    what is trained, not what is shipped. An interrupted run leaves nothing in the
    cache. Processes that need the same policy wait for the first.

    Raises `UserError` if the world is no dataclass, if the policy is damaged or not
    read by the installed version of transformers, and if the cache cannot be written.
    """
    if not is_dataclass(settings.world):
        raise UserError(
            f"the world {type(settings.world).__name__} must be a dataclass, whose "
            "fields are part of the policy's name: write @dataclass(frozen=True) above "
            "its class"
        )
    device = pick_device(device)
    if not fresh and (there := shipped(settings)):
        model, losses = _read(there)
    else:
        folder = cached(settings)
        writable_folder(folder.parent, "the warm start (REFIMPL_CACHE says where)")
        with FileLock(f"{folder}.lock"):
            if fresh or not (folder / RECORD).exists():
                _write(folder, *sft.train(settings, device))
            model, losses = _read(folder)
    return model.to(device), make_tokenizer(), losses


def _read(folder: Path) -> tuple[PreTrainedModel, list[float]]:
    """Policy and losses. Raises `UserError` if they are not what was written."""
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
            "In the cache, remove that folder; else install refimpl again with its "
            "version of transformers, or train your own with REFIMPL_OWN_STARTS=1"
        ) from error


def _write(folder: Path, model: PreTrainedModel, losses: list[float]) -> None:
    """Write to a temporary folder beside `folder`, then move it there in one step."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        whole = Path(scratch) / "policy"
        model.save_pretrained(whole)
        start = {"sha256": digest(whole / "model.safetensors"), "losses": losses}
        (whole / RECORD).write_text(json.dumps(start), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
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
