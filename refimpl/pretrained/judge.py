"""Score answers by packages that need not be safe, in a process of their own.

A model's text must be compared, never run, and no answer may hold up training. Many
scorers break these rules: some evaluate the answer as Python, and
`Fraction("1e999999999")` runs in C for minutes, where no exception can stop it.
Therefore `scorer.py` scores each answer in a fork that refuses to compile a model's
text. The fork ends at an answer that takes too long, and a new one takes its place.
"""

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from refimpl.tasks import TaskWarning
from refimpl.validation import UserError, shown

MAX_ANSWER_CHECKED = 4096
"""Only this many characters from the end of an answer are given to a scorer."""
HURRY = 16
"""Slow answers shorten the time limit within a call, at most to limit / HURRY."""

failed: Counter[tuple[str, str]] = Counter()
"""The number of answers without a verdict, by (scorer, 'raised' | 'slow' | 'died' |
'evaluated'), and of answers whose end alone was judged, by (scorer, 'cut')."""

_open: dict[tuple[int, str], subprocess.Popen] = {}
"""The scoring processes, by this process (a fork of it starts its own) and package."""
_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()


def scores(
    scorer: tuple[str, str, dict],
    answers: Collection[Any],
    entries: Collection[Any],
    limit: float = 2.0,
    quiet: bool = False,
) -> list[float]:
    """Score each answer with a number in [0, 1].

    `scorer` is ("reasoning_gym", name, settings) or ("math_verify", "", {}). An answer
    that is not a string is wrong. If an answer is longer than `MAX_ANSWER_CHECKED`
    characters, only its end is judged. An answer on which the scorer raises, dies, or
    takes longer than `limit` seconds is wrong. Unless `quiet`, `failed` counts these
    answers and the shortened ones, and a `TaskWarning` shows the first of each kind.
    Each slow answer halves the time limit of the following answers in the same call,
    down to a sixteenth, so that a rollout full of slow answers costs seconds.

    Raises `UserError` if the scorer cannot be imported, returns anything but a number
    in [0, 1], or, if it belongs to a dataset, tries to evaluate an answer. (For
    math-verify, an answer that sympy would have to evaluate is wrong.)
    """
    name, time_left, paid = scorer[1] or scorer[0], limit, [0.0] * len(answers)
    for place, (answer, entry) in enumerate(zip(answers, entries, strict=True)):
        if not isinstance(answer, str):
            continue
        answer = end_of(answer, name)
        with _lock:
            reply = verdict(scorer, answer, entry, time_left)
        if "error" in reply:
            raise UserError(f"the scorer of {name} {reply['error']}: {shown(answer)}")
        paid[place], fate = reply.get("score", 0.0), reply.get("fate")
        if fate and not quiet:
            slow = f"took longer than {time_left:g} s and was stopped"
            how = reply.get("how", slow if fate == "slow" else "ended its process")
            _note(name, fate, answer, how, "it counts as wrong")
        if fate == "slow":
            time_left = max(time_left / 2, limit / HURRY)
    return paid


def end_of(answer: str, name: str) -> str:
    """The last `MAX_ANSWER_CHECKED` characters; `failed` counts shortened answers."""
    if len(answer) > MAX_ANSWER_CHECKED:
        how = f"reads {MAX_ANSWER_CHECKED} characters at most"
        _note(name, "cut", answer, how, f"{name} judges its end")
    return answer[-MAX_ANSWER_CHECKED:]


def _note(name: str, fate: str, answer: str, how: str, so: str) -> None:
    failed[name, fate] += 1
    if (name, fate) not in _warned:
        _warned.add((name, fate))
        warnings.warn(
            f"the scorer of {name} {how} on the answer {shown(answer)}: {so}. This is "
            "said once; refimpl.pretrained.judge.failed counts them",
            TaskWarning,
            stacklevel=3,
        )


def verdict(scorer: tuple[str, str, dict], answer: str, entry: Any, limit: float):
    """The reply of `scorer.py`: a `score`, an `error` of the scorer, or a `fate`."""
    package, *named = scorer
    key = os.getpid(), package
    if key not in _open:
        _open[key] = _started(package)
    process, line = _open[key], b""
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps((*named, answer, entry, limit)))
            process.stdin.flush()
            line = process.stdout.readline()
    finally:  # after Ctrl-C the next job would read this job's reply
        if not line:
            _end(_open.pop(key))
    return json.loads(line or '{"fate": "died"}')


def _started(package: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("scorer.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process.stdin.write(pickle.dumps((package, sys.path)))  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    if not process.stdout.readline():  # type: ignore[union-attr]
        _end(process)
        raise UserError(f"{package} cannot be imported in a process of its own")
    return process


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


@atexit.register
def close() -> None:
    """End the scoring processes of this process; the next answer starts a new one."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        _end(_open.pop(key))
