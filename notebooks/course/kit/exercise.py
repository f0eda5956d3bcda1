"""What an exercise is, and how an answer is judged.

An exercise knows some cases, the right answer, and the answers that people usually give
instead. `judged` runs yours on the cases: if it agrees with the right one, you are
done; if it agrees with a known wrong one, it says which mistake that is; otherwise it
shows the first case where it differs.
"""

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Exercise:
    """`solution` is a function of the cases' arguments, or a plain value and `why`.

    `mistakes` maps what to say to the wrong function (or value) that deserves it.
    `also` are right answers written another way, which must pass. `choices` are the
    answers that the task names, if it does; of two answers `parts` says what each is
    to. Title, kind and difficulty stand in the chapter, above the cell.
    """

    key: str
    minutes: int
    solution: Any
    why: str = ""
    cases: tuple[tuple, ...] = ()
    mistakes: dict[str, Any] = field(default_factory=dict)
    also: tuple = ()
    choices: tuple = ()
    parts: tuple[str, ...] = ()


def judged(exercise: Exercise, attempt: Any) -> str:
    """What is right or wrong about `attempt`, in a sentence."""
    key = exercise.key
    try:
        answers = _answers(exercise, attempt)
    except NotImplementedError:
        answers = [None]
    except (Exception, SystemExit) as error:  # the reader's code may raise anything
        return f"✗ {key}  Your code raised {type(error).__name__}: {_cut(error, str)}"
    if any(answer is None or answer is ... for answer in answers):
        return f"… {key}  Not attempted yet (about {exercise.minutes} minutes)."
    right = _answers(exercise, exercise.solution)
    if _same(answers, right):
        return f"✓ {key}  Right."
    for says, wrong in exercise.mistakes.items():
        if _same(answers, _answers(exercise, wrong)):
            return f"✗ {key}  {says}"
    if not exercise.cases:
        if isinstance(attempt, str) and not isinstance(exercise.solution, str):
            return f"✗ {key}  Answer with a number, without quotation marks."
        return f"✗ {key}  Not that. Your answer: {_show(attempt)}."
    at = next(i for i, (a, b) in enumerate(zip(answers, right)) if not _same(a, b))
    return (
        f"✗ {key}  For {', '.join(map(_show, exercise.cases[at]))} you return "
        f"{_show(answers[at])}; it should be {_show(right[at])}."
    )


RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""How far a number may be from the answer that it is taken for."""
SWITCHES: tuple[tuple[Callable, Callable], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    (
        lambda: str(torch.get_default_device()),
        lambda name: torch.set_default_device(None if name == "cpu" else name),
    ),
)
"""What code can change for all that runs after it, and how to put it back."""
DICE: tuple[tuple[Callable, Callable], ...] = (
    (torch.get_rng_state, torch.set_rng_state),
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
)


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Whatever is switched inside is switched back; dice show what they showed."""
    switches = [(get, put, get()) for get, put in SWITCHES]
    dice = [(put, get()) for get, put in DICE]
    try:
        yield
    finally:
        for get, put, before in switches:
            if get() != before:
                put(before)
        for put, before in dice:
            put(before)


@undone()
def _answers(exercise: Exercise, attempt: Any) -> list:
    if not exercise.cases:
        return [attempt() if isinstance(attempt, Callable) else attempt]
    if not callable(attempt):
        return [attempt for _ in exercise.cases]
    # Copies, because an answer may change its arguments in place.
    return [attempt(*copy.deepcopy(case)) for case in exercise.cases]


def _same(a: Any, b: Any) -> bool:
    """Equal up to `RELATIVE` or `ABSOLUTE`, through lists, tuples and tensors.

    Words are equal whatever their case.
    """
    if isinstance(a, str) and isinstance(b, str):
        return a.strip().casefold() == b.strip().casefold()
    if isinstance(a, bool) or isinstance(b, bool):
        a, b = _bool(a), _bool(b)
    if isinstance(a, str | bool) or isinstance(b, str | bool):
        return type(a) is type(b) and a == b
    try:
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(_same, a, b))
        a, b = _real(a), _real(b)
        close = torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    except Exception:  # of an answer that is no number, too large, or holds itself
        return False
    return a.shape == b.shape and close


def _bool(x: Any) -> Any:
    """A single truth value of torch or NumPy as Python's own."""
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    return bool(x) if kind == "bool" and x.ndim == 0 else x


def _real(x: Any) -> torch.Tensor:
    """Numbers in double precision. An imaginary part is an error, unless it is 0."""
    if isinstance(x, list | tuple) and len(x):
        return torch.stack([*map(_real, x)])
    if "complex" in str(getattr(x, "dtype", "")):
        if (x.imag != 0).any():
            raise ValueError
        x = x.real
    return torch.as_tensor(x, dtype=torch.float64).detach()


def _show(value: Any) -> str:
    return _cut(value, _text)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().tolist()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


def _cut(value: Any, text: Callable[[Any], str], length: int = 300) -> str:
    """What a reader wrote as text, whatever it is."""
    try:
        shown = text(value)
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"
