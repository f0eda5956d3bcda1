"""Score answers with packages that may be unsafe, in a separate process.

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
"""Only this many characters from the end of an answer are judged."""

failed: Counter[tuple[str, str]] = Counter()
"""The number of answers without a verdict, by (scorer, 'raised' | 'slow' | 'died' |
'evaluated')."""

_open: dict[tuple[int, str], subprocess.Popen] = {}
"""The scoring processes, by this process (a fork of it starts its own) and package."""
_lock = threading.Lock()


def scores(
    scorer: tuple[str, str, dict],
    answers: Collection[Any],
    entries: Collection[Any],
    limit: float = 2.0,
) -> list[float]:
    """Score each answer with a number in [0, 1].

    `scorer` is ("reasoning_gym", name, settings) or ("math_verify", "", {}). An answer
    that is not a string is wrong. An answer on which the scorer raises, dies, or takes
    longer than `limit` seconds is wrong; `failed` counts these answers, and a
    `TaskWarning` shows the first of each kind. Each slow answer shortens the limit of
    the following ones in the same call, down to a sixteenth.

    Raises `UserError` if the scorer cannot be imported, returns anything but a number
    in [0, 1], or, if it belongs to a dataset, tries to evaluate an answer.
    """
    name, time_left, paid = scorer[1] or scorer[0], limit, [0.0] * len(answers)
    for place, (answer, entry) in enumerate(zip(answers, entries, strict=True)):
        if not isinstance(answer, str):
            continue
        reply = verdict(scorer, answer[-MAX_ANSWER_CHECKED:], entry, time_left)
        fate, score = reply.get("fate"), reply.get("score", 0.0)
        if not 0 <= score <= 1:  # NaN is neither
            raise UserError(
                f"the scorer of {name} returned {score}, not a number in [0, 1], for "
                f"the answer {shown(answer)}"
            )
        paid[place] = score
        if fate == "evaluated" and scorer[1]:
            raise UserError(
                f"the scorer of {name} {reply['how']}; give a scorer of your own. It "
                f"got {shown(answer)}"
            )
        if fate == "slow":
            reply["how"] = f"took longer than {time_left:g} s and was stopped"
            time_left = max(time_left / 2, limit / 16)
        if fate:
            failed[name, fate] += 1
        if failed[name, fate] == 1:
            warnings.warn(
                f"the scorer of {name} {reply.get('how', 'ended its process')} on the "
                f"answer {shown(answer)}: it counts as wrong. This is said once; "
                "refimpl.pretrained.judge.failed counts all such answers",
                TaskWarning,
                stacklevel=3,
            )
    return paid


def verdict(scorer: tuple[str, str, dict], answer: str, entry: Any, limit: float):
    """Return the reply of `scorer.py`: a `score`, or the `fate` of the answer."""
    package, *named = scorer
    key, line = (os.getpid(), package), b""
    with _lock:
        process = _open[key] = _open.get(key) or _started(package)
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps((*named, answer, entry, limit)))
                process.stdin.flush()
                line = process.stdout.readline()
        finally:  # after Ctrl-C the next job would read this job's reply
            if not line:
                _end(_open.pop(key))
    return json.loads(line or '{"fate": "died"}')


def _started(package: str) -> Any:
    process: Any = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("scorer.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process.stdin.write(pickle.dumps((package, sys.path)))
    process.stdin.flush()
    if not process.stdout.readline():
        _end(process)
        raise UserError(f"{package} cannot be imported in a separate process")
    return process


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


@atexit.register
def close() -> None:
    """End the scoring processes of this process; the next answer starts a new one."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        _end(_open.pop(key))
