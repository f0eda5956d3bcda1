"""One file that a run can be continued from, bit for bit."""

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from refimpl.arguments import guarded
from refimpl.files import writable_folder

NAME = "checkpoint.pt"
VERSION = 5
KEYS = {"algorithm", "config", "task", "reward", "salt", "rows", "samples"}
KEYS |= {"model", "critic", "reference", "frozen", "optimizer"}


class CheckpointError(OSError):
    """A checkpoint could not be written; the one before it is untouched."""


@contextlib.contextmanager
def claim(folder: str | Path, *, may_exist: bool) -> Iterator[None]:
    """Take `folder` for this run: one process at a time, and no run over another.

    Raises `ValueError` if the folder cannot be written, another process trains in it,
    or it holds a checkpoint already although not `may_exist`.
    """
    folder = writable_folder(folder, "checkpoints")
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process trains in {str(folder)!r}; wait for it, or give this run "
            "a checkpoint folder of its own"
        ) from None
    try:
        if (folder / NAME).exists() and not may_exist:
            raise ValueError(
                f"{str(folder)!r} holds a checkpoint already; go on from it with "
                "resume (--resume), replace it with overwrite (--overwrite), or use "
                "another folder"
            )
        yield
    finally:
        lock.release()


def save(folder: str | Path, state: dict) -> None:
    """Write beside the old checkpoint, then swap the two in one step.

    Raises `CheckpointError` if it cannot be written; the old one is then untouched.
    """
    path = Path(folder) / NAME
    scratch = path.with_name(NAME + ".tmp")
    try:
        with open(scratch, "wb") as file:
            torch.save({"version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except (OSError, RuntimeError) as error:  # torch's, if the disk is full
        said = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise CheckpointError(
            f"no checkpoint could be written to {str(folder)!r} ({said})"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


@guarded
def load(folder: str | Path, device: str | torch.device) -> dict:
    """Raises `ValueError` if there is none, or it is corrupt or of another version."""
    path = Path(folder) / NAME
    if not path.exists():
        raise ValueError(f"nothing to resume: {path} does not exist")
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not compare checksums
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"bad checksum in {damaged}")
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise ValueError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); it may be "
            "damaged. Delete it to start again"
        ) from error
    known = isinstance(state, dict) and state.get("version") == VERSION
    if not (known and state.keys() >= KEYS):
        raise ValueError(f"{path} was not written by this version; delete it")
    return state


def check_matches(state: dict, algorithm: str, config: dict, free: set[str]) -> None:
    """Raise `ValueError` unless the run asked for is the run that was saved.

    `free` names the settings that may differ (the number of rollouts, say).
    """
    if state["algorithm"] != algorithm:
        raise ValueError(
            f"the checkpoint is a run of {state['algorithm']!r}, not of {algorithm!r}; "
            "use another checkpoint folder"
        )
    changed = [
        f"{k} was {state['config'].get(k)!r}, now {v!r}"
        for k, v in config.items()
        if k not in free and state["config"].get(k) != v
    ]
    if changed:
        raise ValueError(
            f"the checkpoint was made with other settings: {'; '.join(changed)}. "
            "Resume with the same ones, or use another checkpoint folder"
        )
