"""Save a run, resume it, and keep all complete rollouts if the run ends early.

    with Checkpoint(folder, resume, overwrite) as checkpoint:
        run = prepare(...)
        checkpoint.restore(run)
        with ending_early(run, checkpoint):
            ...                                  # after every rollout:
            checkpoint.save_when_due(run, step)

On a CPU, a run that was stopped and resumed equals an uninterrupted run bit for bit.
Random choices have seeds of their own, so no generator has to be saved.
"""

import contextlib
import hashlib
import inspect
import json
import os
import signal
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from refimpl import seeds
from refimpl.models import Model, frozen
from refimpl.validation import UserError

if TYPE_CHECKING:
    from refimpl.options import Run

NAME, LOCK = "checkpoint.pt", ".lock"
VERSION = 9
MAY_CHANGE = {"rollouts", "checkpoint_every", "device", "samples_every"}
"""Settings that may differ when a run is resumed."""
PLAIN = (bool, int, float, str, type(None))


class CheckpointError(OSError):
    """A checkpoint could not be written; the one before it is untouched."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; the status of a command is 128 + `number`."""

    def __init__(self, reason: str, number: int = signal.SIGINT):
        super().__init__(reason)
        self.number = number


# Files


def write(
    path: str | Path, fill: str | Callable[[IO], object], mode: str = "w"
) -> None:
    """Write the text `fill`, or what `fill(file)` writes, to `path`: all or nothing.

    Raises `UserError` if `path` cannot be written; an existing file then stays.
    """
    if os.path.exists(path) and not os.path.isfile(
        path
    ):  # root could replace /dev/null
        raise unwritable("a file", path, "it is something else")
    how: dict = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        target = Path(os.path.realpath(path))  # keeps a symbolic link
        part = target.with_name(f".{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(part, mode, **how)  # noqa: SIM115
    except (OSError, ValueError) as error:  # an impossible name
        raise unwritable("a file", path, error) from error
    try:
        with file:
            file.write(fill) if isinstance(fill, str) else fill(file)
            file.flush()
            os.fsync(file.fileno())  # else a loss of power may leave an empty file
        os.replace(part, target)
    except OSError as error:
        raise unwritable("a file", path, error) from error
    finally:
        part.unlink(missing_ok=True)


# Saving and resuming


class Checkpoint:
    """One file to resume a run from, in a folder that is locked for one process.

    Without a folder nothing is saved. Entering raises `UserError` if the folder cannot
    be written, there is nothing to resume, another process trains in the folder, or it
    holds a checkpoint and neither `resume` nor `overwrite` is set.
    """

    def __init__(self, folder: str | Path | None, resume: bool, overwrite: bool):
        if resume and overwrite:
            raise UserError(
                "resume keeps a checkpoint, overwrite replaces it: choose one"
            )
        if folder is None and (resume or overwrite):
            asked = "resume" if resume else "overwrite"
            raise UserError(f"{asked}=True needs a checkpoint_dir, got None")
        self.folder, self.resume, self.overwrite = folder, resume, overwrite
        self.saved: dict | None = None  # the state that `restore` loads
        self.identity: dict[str, Any] = {}  # equal in a resumed run

    def __enter__(self) -> "Checkpoint":
        if self.folder is None:
            return self
        path = Path(self.folder, NAME)
        if self.resume:
            self.saved = load(self.folder)
        elif os.path.exists(path) and not self.overwrite:
            raise UserError(
                f"{str(self.folder)!r} holds a checkpoint already; continue it with "
                "resume (--resume), replace it with overwrite (--overwrite), or use "
                "another folder"
            )
        self.folder = writable_folder(self.folder, "checkpoints")
        self.lock = FileLock(self.folder / LOCK)
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"another process trains in {str(self.folder)!r}; wait for it, or give "
                "this run a checkpoint folder of its own"
            ) from None
        except OSError as error:
            raise unwritable("checkpoints", self.folder / LOCK, error) from error
        return self

    def __exit__(self, *_) -> None:
        if self.folder is not None:
            self.lock.release()

    def restore(self, run: "Run") -> None:
        """Record the run's identity, and load the saved state if the run is resumed.

        Raises `UserError` if the checkpoint belongs to another run.
        """
        if self.folder is not None:
            self.identity = shared(run)  # now, because a reward may count its calls
        if self.saved is None:
            return
        saved, self.saved = self.saved, None
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
        # A shorter run evaluates its last rollout, which a longer run may not do.
        for row in run.history.rows:
            done = row["step"] + 1
            if done % run.config.eval_every and done != run.config.rollouts:
                row |= {name: None for name in row if name.split("/")[0] == "accuracy"}

    def save_when_due(self, run: "Run", step: int) -> None:
        """Save every `checkpoint_every` rollouts, and at the end of the run.

        Raises `KeyboardInterrupt` if a signal has asked the run to stop.
        """
        if run.last(step) or (step + 1) % run.config.checkpoint_every == 0:
            self.save(run)
        if run.stop_signal and step + 1 < run.config.rollouts:
            raise KeyboardInterrupt

    def save(self, run: "Run") -> None:
        """Save `run`. Raises `CheckpointError` if that fails; the old file stays."""
        if self.folder is None:
            return
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
        path = Path(self.folder, NAME)
        try:
            write(path, lambda file: torch.save(state, file), "wb")
        except (UserError, RuntimeError) as error:  # torch's own, on a full disk
            why = str(getattr(error.__cause__, "strerror", error)).split("\n")[0]
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


def weights(run: "Run") -> dict[str, dict[str, Tensor]]:
    """Collect the weights that change. A resumed run is given the frozen ones again."""
    parameters = run.model.named_parameters(remove_duplicate=False)
    frozen_names = {name for name, p in parameters if not p.requires_grad}
    states = {}
    for name in ("model", "critic", "reference"):
        if (part := getattr(run, name)) is not None:
            skipped = (
                () if name == "critic" else frozen_names
            )  # a critic has no frozen ones
            state = part.state_dict().items()
            states[name] = {n: x for n, x in state if n not in skipped}
    return states


def remembering(run: "Run") -> list[Any]:
    """Return the loss terms that change during a run, as an adaptive bonus does."""
    return [term for term in run.loss_terms if hasattr(term, "state_dict")]


def fingerprint(model: Model, each: int = 64) -> Tensor:
    """Take some numbers of each frozen weight, enough to recognise a base model."""
    sampled = [p.detach().flatten()[:: 1 + p.numel() // each] for p in frozen(model)]
    return torch.cat([torch.zeros(0).double(), *(x.cpu().double() for x in sampled)])


def weights_read(model: Model) -> str:
    """Identify a frozen model by a hash of some of its weights."""
    return hashlib.sha256(fingerprint(model).numpy().tobytes()).hexdigest()[:16]


def shared(run: "Run") -> dict[str, Any]:
    """Collect everything that a run must have in common with the one it resumes."""
    settings = asdict(run.config).items()
    return {
        "algorithm": run.algorithm.name,
        "objective": identity(run.algorithm.objective),
        "task": identity(run.task),
        "reward": identity(run.reward),
        "EOS": run.tokenizer.eos_token_id,
        "REFIMPL_SALT": seeds.salt(),
        "objects": run.handed_in,
        "teacher": run.teacher and weights_read(run.teacher),
        **{name: value for name, value in settings if name not in MAY_CHANGE},
    }


def check_same(saved: dict, now: dict[str, Any], rollouts: int) -> None:
    """Raise `UserError` unless the run asked for is the run that was saved."""
    before, done = saved["identity"], len(saved["rows"])
    changed = [
        f"{name} was {before.get(name)!r}, now {value!r}"
        for name, value in now.items()
        if before.get(name) != value
    ]
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
    """Identify a task, a reward or an objective, in the same way in every process.

    A function is identified by its name and the constants in its closure. Its source
    may therefore be corrected before a run is resumed. An object is identified by its
    class and the arguments that it was made with.
    """
    if is_dataclass(part):
        return repr(part)
    part = inspect.unwrap(part)
    named = part if hasattr(part, "__qualname__") else type(part)
    name: str = f"{named.__module__}.{named.__qualname__}"
    inside: Any = None
    if isinstance(part, partial):
        name, inside = identity(part.func), [part.args, part.keywords]
    elif inspect.ismethod(part):
        inside = [part.__self__]
    elif inspect.isfunction(part):
        constants = [cell.cell_contents for cell in part.__closure__ or ()]
        if name.endswith("<lambda>"):  # all lambdas have the same name
            constants += [*part.__code__.co_names, *part.__code__.co_consts]
        inside = [x for x in constants if isinstance(x, PLAIN)]
        functions = [x for x in constants if inspect.isfunction(x) and x != part]
        inside += [identity(x) for x in functions]
    elif named is not part and (made := getattr(part, "__dict__", {})):
        with contextlib.suppress(ValueError):  # as of a SimpleNamespace
            arguments = inspect.signature(named).parameters
            made = {k: v for k, v in made.items() if k in arguments}
        inside = made
    text = json.dumps(inside, skipkeys=True, default=identity)
    return f"{name} {text}" if inside else name


# The end of a run

ENDS_A_RUN = (KeyboardInterrupt, FloatingPointError, CheckpointError, UserError)
"""Errors after which `train` returns the history. A `UserError` comes from a reward, a
scorer or a task that fails in a later rollout, or from dynamic sampling that finds no
group."""


@contextlib.contextmanager
def ending_early(run: "Run", checkpoint: Checkpoint) -> Iterator[None]:
    """Keep all complete rollouts if a run ends early.

    Errors of `ENDS_A_RUN` are stored in `History.ended` and not raised. Any other error
    is raised and carries the run's `history`. Before the first rollout is complete,
    every error is raised unchanged.
    """

    def request(number: int, _) -> None:
        """Finish the rollout first; a second Ctrl-C does not wait for it."""
        ending = run.history.ended is not None  # then only a moment is left
        if run.stop_signal and number == signal.SIGINT and not ending:
            raise KeyboardInterrupt
        run.stop_signal = run.stop_signal or number

    with signals_to(request):
        try:
            yield
        except BaseException as error:
            if not run.history.rows:
                raise
            run.history.ended, unsaved = error, ""
            run.optimizer.zero_grad(set_to_none=True)  # an update may be cut short
            # Do not save between two updates, which a resumed run would repeat, nor
            # after divergence, a failed save or a second Ctrl-C.
            hopeless = KeyboardInterrupt | CheckpointError | FloatingPointError
            if run.complete and not isinstance(error, hopeless):
                try:
                    checkpoint.save(run)
                except CheckpointError as another:
                    unsaved = f"; {another}"
            if not isinstance(error, ENDS_A_RUN):
                error.history = run.history  # type: ignore[attr-defined]
                raise
            run.history.ended = with_progress(run, error, unsaved)


def with_progress(run: "Run", error: BaseException, unsaved: str) -> BaseException:
    """Make an error of the same class whose message also has the run's progress."""
    kind: Any = type(error)
    why = str(error)
    if isinstance(error, KeyboardInterrupt):
        number = run.stop_signal or signal.SIGINT
        kind = partial(Interrupted, number=number)
        why = "interrupted" if number == signal.SIGINT else signal.Signals(number).name
    done = f"stopped after {len(run.history)} of {run.config.rollouts} rollouts"
    ended = kind(f"{done}: {why}{unsaved}")
    ended.__cause__ = error
    return ended


@contextlib.contextmanager
def signals_to(handler: Callable) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP by `handler` inside the block."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others get no signals
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# Folders


def cache_folder() -> Path:
    """Return `$REFIMPL_CACHE`, or else `refimpl` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REFIMPL_CACHE") or Path(home) / "refimpl")


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def writable_folder(path: str | Path, what: str, file: str = "") -> Path:
    """Make `path` a folder if necessary, and test that it can be written to.

    Returns an absolute path, which stays valid if the working directory changes. Raises
    `UserError`, which names `file` in the folder, before any training.
    """
    try:
        folder = Path(path).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a name that holds NUL
        raise unwritable(what, Path(path) / file, error) from error
    return folder


def unwritable(what: str, path: str | Path, why: object) -> UserError:
    """Make the error for a place that cannot be written to."""
    why = getattr(why, "strerror", None) or why
    return UserError(
        f"cannot write {what} to {str(path)!r} ({why}); choose a place that you may "
        "write to"
    )
