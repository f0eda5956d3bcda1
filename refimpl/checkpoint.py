"""Save a run, resume it: a hook.

    train("grpo", hooks=[Checkpoint(folder, every=5)])      # or checkpoint_dir=folder

On a CPU, a run that was stopped and resumed equals an uninterrupted run bit for bit.
Random choices have seeds of their own, so no generator has to be saved.
"""

import contextlib
import hashlib
import inspect
import io
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from refimpl import seeds
from refimpl.files import CheckpointError, writable_folder, write
from refimpl.models import Model, frozen
from refimpl.run import Run
from refimpl.validation import Count, UserError, guarded

NAME, LOCK = "checkpoint.pt", ".lock"
VERSION = 11
MAY_CHANGE = {"rollouts", "device"}
"""Settings that may differ when a run is resumed."""


class Checkpoint:
    """A hook that saves a run in a folder, and lets it be resumed from there.

    It saves every `every` rollouts, and at the end of the run.
    One file, in a folder that is locked for one process. Raises `UserError` if the
    folder cannot be written, there is nothing to resume, or it holds a checkpoint and
    neither `resume` nor `overwrite` is set.
    """

    @guarded
    def __init__(
        self,
        folder: str | Path,
        resume: bool = False,
        overwrite: bool = False,
        every: Count = 10,
    ):
        if resume:
            load(folder)  # tries it; the run loads it again, for its own
        self.resume, self.replaces = resume, resume or overwrite
        self.folder = Path(folder)
        self.refuse_to_replace()
        self.folder = writable_folder(folder, "checkpoints")
        self.every = every
        self.identity: dict[str, Any] = {}  # equal in a resumed run

    @contextlib.contextmanager
    def around(self, run: Run) -> Iterator[None]:
        """Lock the folder and load the saved state; save once more if the run fails.

        Raises `UserError` if another process trains in the folder, or if the checkpoint
        is another run's.
        """
        try:
            lock = FileLock(self.folder / LOCK).acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"another process trains in {str(self.folder)!r}; wait for it, or give "
                "this run a checkpoint folder of its own"
            ) from None
        with lock:
            self.refuse_to_replace()  # once more: two runs may share this object
            self.identity = shared(run)  # now, because a reward may count its calls
            if self.resume:
                self.restore(run, load(self.folder))
            try:
                yield
            except BaseException as error:
                # Do not save between two updates, which a resumed run would repeat, nor
                # after divergence, a failed save or a second Ctrl-C.
                hopeless = KeyboardInterrupt | CheckpointError | FloatingPointError
                going = run.complete and run.history.rows
                if going and not isinstance(error, hopeless):
                    run.history.ended = error  # Ctrl-C does not stop the save below
                    try:
                        self.save(run)
                    except CheckpointError as another:
                        error.add_note(str(another))
                raise

    def __call__(self, run: Run, step: int) -> None:
        if run.last(step) or (step + 1) % self.every == 0:
            self.save(run)

    def refuse_to_replace(self) -> None:
        """Raise `UserError` if a checkpoint of another run is there."""
        if not self.replaces and os.path.exists(self.folder / NAME):
            raise UserError(
                f"{str(self.folder)!r} holds a checkpoint already; continue it with "
                "resume (--resume), replace it with overwrite (--overwrite), or use "
                "another folder"
            )

    def restore(self, run: Run, saved: dict) -> None:
        """Load a saved state into a run that has just been made."""
        check_same(saved, self.identity, run.config.rollouts)
        try:
            if not torch.equal(fingerprint(run.model), saved["frozen"]):
                raise RuntimeError("the frozen weights are others")
            for name, now in weights(run).items():
                if saved[name].keys() != now.keys():
                    raise RuntimeError("other weights are trained")
                getattr(run, name).load_state_dict(saved[name], strict=False)
        except RuntimeError as error:
            raise UserError(
                "the checkpoint holds a model of another shape, or with other frozen "
                "weights; give the model that the run began with, or use another "
                "checkpoint folder"
            ) from error
        run.optimizer.load_state_dict(saved["optimizer"])
        for term, state in zip(remembering(run), saved["terms"], strict=True):
            term.load_state_dict(state)
        past = [row.to(run.model.device) for row in saved["past"]]
        run.sampler.past[:] = past[:-1]  # `sync` adds the current weights
        run.sampler.sync()
        run.history.rows[:] = saved["rows"]
        run.history.samples[:] = saved["samples"]
        run.begun = len(run.history)
        # A shorter run evaluates its last rollout, which a longer run may not do.
        for row in run.history.rows:
            done = row["step"] + 1
            if done % run.config.eval_every and done != run.config.rollouts:
                row |= {name: None for name in row if name.split("/")[0] == "accuracy"}

    def save(self, run: Run) -> None:
        """Save `run`. Raises `CheckpointError` if that fails; the old file stays."""
        state = {
            "version": VERSION,
            "identity": self.identity,
            **weights(run),
            "frozen": fingerprint(run.model),
            "optimizer": run.optimizer.state_dict(),
            "terms": [term.state_dict() for term in remembering(run)],
            "past": run.sampler.past,
            "rows": run.history.rows,
            "samples": run.history.samples,
        }
        whole = io.BytesIO()  # torch.save would not say that a disk is full
        torch.save(state, whole)
        try:
            path = Path(self.folder, NAME)
            write(path, lambda file: file.write(whole.getbuffer()), "wb")
        except UserError as error:
            why = getattr(error.__cause__, "strerror", None) or error
            raise CheckpointError(
                f"no checkpoint could be written to {str(self.folder)!r} ({why})"
            ) from error


def load(folder: str | Path) -> dict:
    """Read a checkpoint. Raises `UserError` if there is none, or it is damaged."""
    path = Path(folder, NAME)
    if not path.exists():
        raise UserError(f"nothing to resume: {path} does not exist")
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not compare checksums
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"bad checksum in {damaged}")
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved.get("version") != VERSION:
            raise ValueError("another version wrote it")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); it may be "
            "damaged, or from another version. Delete it to start again"
        ) from error
    return saved


def weights(run: Run) -> dict[str, dict[str, Tensor]]:
    """Collect the weights that change. A resumed run is given the frozen ones again."""
    parameters = run.model.named_parameters(remove_duplicate=False)
    frozen_names = {name for name, p in parameters if not p.requires_grad}
    states = {}
    for name in ("model", "critic", "reference"):
        if (part := getattr(run, name)) is not None:
            # All of a critic's: those that `critic_frozen` names are few.
            skipped = () if name == "critic" else frozen_names
            state = part.state_dict().items()
            states[name] = {n: x for n, x in state if n not in skipped}
    return states


def remembering(run: Run) -> list[Any]:
    """Return the loss terms that change during a run, as an adaptive bonus does."""
    return [term for term in run.loss_terms if hasattr(term, "state_dict")]


def fingerprint(model: Model) -> Tensor:
    """Take some numbers of each frozen weight, enough to recognise a base model."""
    sampled = [p.detach().flatten()[:: 1 + p.numel() // 64] for p in frozen(model)]
    return torch.cat([torch.zeros(0).double(), *(x.cpu().double() for x in sampled)])


def shared(run: Run) -> dict[str, Any]:
    """Collect everything that a run must have in common with the one it resumes."""
    settings = asdict(run.config).items()
    teacher = run.teacher and fingerprint(run.teacher).numpy().tobytes()
    return {
        "algorithm": run.algorithm.name,
        "objective": identity(run.algorithm.objective),
        "advantages": identity(run.algorithm.advantages),
        "task": identity(run.task),
        "reward": identity(run.reward),
        "EOS": run.tokenizer.eos_token_id,
        "REFIMPL_SALT": seeds.salt(),
        "objects": [identity(part) for part in run.handed_in],
        "teacher": teacher and hashlib.sha256(teacher).hexdigest()[:16],
        **{name: value for name, value in settings if name not in MAY_CHANGE},
    }


def check_same(saved: dict, now: dict[str, Any], rollouts: int) -> None:
    """Raise `UserError` unless the run asked for is the run that was saved."""
    before, done = saved["identity"], len(saved["rows"])
    differ = [name for name in now if before.get(name) != now[name]]
    changed = [f"{name} was {before.get(name)!r}, now {now[name]!r}" for name in differ]
    if changed:
        raise UserError(
            f"the checkpoint is another run's: {'; '.join(changed)}. Resume with the "
            "same settings, or use another checkpoint folder"
        )
    if done > rollouts:
        raise UserError(
            f"the checkpoint holds {done} rollouts already, more than the {rollouts} "
            "asked for; ask for more, or start again"
        )


def identity(part: Any) -> str:
    """Name a task, a reward or an object, in the same way in every process.

    This is its `repr` without addresses: the class and fields of a dataclass, the class
    of another object; for a function its module and name. Whether two objects of one
    class, or two functions of one name, are the same is for the user to know.
    """
    if inspect.isfunction(part):
        return f"{part.__module__}.{part.__qualname__}"
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(part))
