"""One file to continue a run from: bit for bit on a CPU, on a GPU see `gpu-check`."""

import contextlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from refimpl import seeds
from refimpl.cache import writable_folder
from refimpl.keep.files import sweep, unmade, writable_file, write
from refimpl.keep.identity import fingerprint, frozen_names, identity
from refimpl.models import Model
from refimpl.options import Run
from refimpl.validation import UserError, one_line

NAME, LOCK = "checkpoint.pt", ".lock"
VERSION = 7
KEYS = {"algorithm", "config", "task", "reward", "EOS", "salt", "rows", "samples"}
KEYS |= {"model", "critic", "reference", "frozen", "optimizer", "past"}


class CheckpointError(OSError):
    """A checkpoint could not be written; the one before it is untouched."""


def files(folder: str | Path) -> dict[str, Path]:
    """What a run writes into its folder, by name."""
    place = Path(folder)
    return {"its checkpoint": place / NAME, "its lock": place / LOCK}


@contextlib.contextmanager
def folder(
    path: str | Path | None, resume: bool, overwrite: bool
) -> Iterator[tuple[Path | None, dict | None]]:
    """Take the folder for this run: one process at a time, and no run over another.

    Gives its absolute path, and what is saved there if the run is to go on. Raises
    `UserError` if the folder cannot be written, there is nothing to go on from, another
    process trains in it, or it holds a checkpoint that this run was not told to
    continue or to replace. A run that saves nothing leaves nothing behind.
    """
    if resume and overwrite:
        raise UserError("resume keeps a checkpoint, overwrite replaces it: choose one")
    if path is None:
        if resume or overwrite:
            asked = "resume" if resume else "overwrite"
            raise UserError(f"{asked}=True needs a checkpoint_dir, got None")
        yield None, None
        return
    with unmade(path):
        yield from _taken(path, resume, overwrite)


def _taken(path: str | Path, resume: bool, overwrite: bool) -> Iterator:
    if resume and str(path):
        check_there(Path(path) / NAME)
    path = writable_folder(path, "checkpoints")
    saved = path / NAME
    if saved.exists() and not saved.is_file():
        raise UserError(f"{saved} is in the way, which is no file; use another folder")
    if saved.is_symlink():
        writable_file(saved, "checkpoints")
    new = not os.path.lexists(path / LOCK)
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"another process trains in {str(path)!r}; wait for it, or give this run "
            "a checkpoint folder of its own"
        ) from None
    except OSError as error:  # a folder, a link, another user's
        raise UserError(
            f"{path / LOCK} cannot be taken ({error.strerror}): remove it, or use "
            "another checkpoint folder"
        ) from error
    try:
        sweep(path, f".{NAME}.", older=0)  # nobody else writes here
        if saved.exists() and not (resume or overwrite):
            raise UserError(
                f"{str(path)!r} holds a checkpoint already; go on from it with "
                "resume (--resume), replace it with overwrite (--overwrite), or use "
                "another folder"
            )
        yield path, load(path) if resume else None
    finally:
        if new and not saved.exists():
            with contextlib.suppress(OSError):  # Windows removes no open file
                os.unlink(path / LOCK)
        lock.release()


def check_there(path: Path) -> None:
    """Raise `UserError` if no checkpoint is there to go on from."""
    if not os.path.exists(path):
        raise UserError(f"nothing to resume: {path} does not exist")


def save(folder: str | Path, state: dict) -> None:
    """Raises `CheckpointError` if it cannot be written; the old one stays as it is."""
    try:
        with_version = {"version": VERSION, **state}
        write(Path(folder) / NAME, lambda file: torch.save(with_version, file), "wb")
    except (OSError, RuntimeError) as error:  # torch's, if the disk is full
        why = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise CheckpointError(
            f"no checkpoint could be written to {str(folder)!r} ({why})"
        ) from error


def load(folder: str | Path) -> dict:
    """Raises `UserError` if there is none, or it is corrupt or of another version."""
    path = Path(folder) / NAME
    check_there(path)
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not compare checksums
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"bad checksum in {damaged}")
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); it may be "
            "damaged. Delete it to start again"
        ) from error
    known = isinstance(saved, dict) and saved.get("version") == VERSION
    if not (known and saved.keys() >= KEYS and all(map(_is_row, saved["rows"]))):
        raise UserError(f"{path} was not written by this version; delete it")
    return saved


def _is_row(row: object) -> bool:
    """Whether it has at least what the end of a run sums up."""
    needed = {"step", "reward", "step_time"}
    return isinstance(row, dict) and row.keys() >= needed


def state(run: Run) -> dict:
    """All that a run goes on from."""
    frozen = frozen_names(run.model)

    def trained(model: Model | None) -> dict | None:
        """Without what is never trained: that is given again."""
        if model is None:
            return None
        return {n: x for n, x in model.state_dict().items() if n not in frozen}

    return {
        "algorithm": run.algorithm.name,
        "config": asdict(run.config),
        "task": identity(run.task),
        "reward": identity(run.reward),
        "EOS": run.tokenizer.eos_token_id,
        "salt": seeds.salt(),
        "model": trained(run.model),
        "critic": None if run.critic is None else run.critic.state_dict(),
        "reference": trained(run.reference),
        "frozen": fingerprint(run.model),
        "optimizer": run.optimizer.state_dict(),
        "past": run.sampler.past,
        "rows": run.history.rows,
        "samples": run.history.samples,
    }


MAY_CHANGE = {"rollouts", "checkpoint_every", "device", "samples_every"}
"""Settings that may differ when a run is resumed."""


def restore(run: Run, saved: dict) -> None:
    """Put `saved` into `run`. Raises `UserError` if it is another run's."""
    try:
        check_same(saved, state(run))
        _put(saved, run)
    except UserError:
        raise
    except Exception as error:  # somebody else wrote it
        raise UserError(
            f"the checkpoint is none that this version wrote ({one_line(error)}); use "
            "another checkpoint folder"
        ) from error


def _put(saved: dict, run: Run) -> None:
    now = state(run)
    try:
        if not torch.equal(now["frozen"], saved["frozen"]):
            raise RuntimeError("what is frozen was another")
        for name in ("model", "critic", "reference"):
            if (part := getattr(run, name)) is None:
                continue
            if saved[name].keys() != now[name].keys():
                raise RuntimeError("what is trained was another")
            part.load_state_dict(saved[name], strict=False)
    except RuntimeError as error:
        raise UserError(
            "the checkpoint holds a model of another shape, or with other frozen "
            "weights; give the model that the run began with, or use another "
            "checkpoint folder"
        ) from error
    run.optimizer.load_state_dict(saved["optimizer"])
    past = [row.to(run.model.device) for row in saved["past"]]
    run.sampler.past[:] = past[:-1]  # the last are the policy's weights of now
    run.sampler.sync()
    run.history.rows[:] = saved["rows"]
    run.history.samples[:] = saved["samples"]
    for row in run.history.rows:  # measured only because that run was to end there
        done = row["step"] + 1
        if done % run.config.eval_every and done != run.config.rollouts:
            row |= {name: None for name in row if name.split("/")[0] == "accuracy"}


def check_same(saved: dict, now: dict) -> None:
    """Raise `UserError` unless the run asked for is the run that was saved."""
    elsewhere = "or use another checkpoint folder"
    if saved["algorithm"] != now["algorithm"]:
        raise UserError(
            f"the checkpoint is a run of {saved['algorithm']!r}, not of "
            f"{now['algorithm']!r}; give the same algorithm, {elsewhere}"
        )
    changed = [
        f"{name} was {saved['config'].get(name)!r}, now {value!r}"
        for name, value in now["config"].items()
        if name not in MAY_CHANGE and saved["config"].get(name) != value
    ]
    if changed:
        raise UserError(
            f"the checkpoint was made with other settings: {'; '.join(changed)}. "
            f"Resume with the same ones, {elsewhere}"
        )
    for what in ("task", "reward", "EOS"):
        if saved[what] != now[what]:
            raise UserError(
                f"the checkpoint was trained with the {what} {saved[what]}, not with "
                f"{now[what]}; give the same {what}, {elsewhere}"
            )
    if saved["salt"] != now["salt"]:
        raise UserError(
            f"the checkpoint was made with REFIMPL_SALT={saved['salt']!r}, now it is "
            f"{now['salt']!r}; set the same salt, {elsewhere}"
        )
    done, asked = len(saved["rows"]), now["config"]["rollouts"]
    if done > asked:
        raise UserError(
            f"the checkpoint holds {done} rollouts already, more than the {asked} "
            "asked for; ask for more, or start again"
        )
