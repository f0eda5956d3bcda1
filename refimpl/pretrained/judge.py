"""Run scorers from other packages in a separate process.

A model's text must be compared, never run, and no answer may hold up training. Many
scorers break these rules: some evaluate the answer as Python, and
`Fraction("1e999999999")` runs in C for minutes, where no exception can stop it.

Therefore this file is also a program. The scoring process starts at the first answer
and stays alive. It scores the answers of a call in a fork of itself. The fork refuses
to compile text that came from a model, and ends if an answer takes too long. After an
answer without a verdict, a new fork scores the remaining ones. The program imports
nothing from refimpl, so that it starts without torch.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

MAX_ANSWER_CHECKED = 4096
"""Only this many characters from the end of an answer are given to a scorer."""
START_LIMIT = 120.0
"""Seconds that importing a scorer may take."""
HURRY = 16
"""Slow answers shorten the time limit within a call, at most to limit / HURRY."""
MEMORY = 2 * 2**30
"""Bytes that a scorer may use in addition to those after its import (Linux only)."""

ARITHMETIC = re.compile(
    r"from sympy import \*|(?:Integer|Float|Rational|[\d\s.+*/()'-])*"
)
"""Code that sympy compiles to read a number that math-verify found; has no names."""
NAME = re.compile(r"[^\W\d]\w+")
"""A name of two characters or more. Code that sympy compiles for its own purposes (a
product of monomials, a dataclass) has no such name in common with the answer."""

failed: Counter[tuple[str, str]] = Counter()
"""The number of answers without a verdict, by (scorer, 'raised' | 'slow' | 'died' |
'evaluated'), and of answers whose end alone was judged, by (scorer, 'cut')."""


# The training process


class _Process:
    """The scoring process; `ready` holds the scorers that it has imported."""

    def __init__(self) -> None:
        self.pid, self.ready = os.getpid(), set[str]()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.send(sys.path)

    def send(self, job: Any) -> None:
        """Write a job; a dead process is left for `ask` to notice."""
        with contextlib.suppress(BrokenPipeError, OSError):
            pickle.dump(job, self.process.stdin)  # type: ignore[arg-type]
            self.process.stdin.flush()  # type: ignore[union-attr]

    def ask(self, *job: Any) -> Any:
        """Send a job and return the reply; None if the process ended instead.

        It ends if importing a scorer takes too long.
        """
        try:
            self.send(job)
            line = self.process.stdout.readline()  # type: ignore[union-attr]
        except BaseException:  # after Ctrl-C the next job would read this job's reply
            self.end()
            raise
        if line:
            return json.loads(line)
        self.end()
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


_current: _Process | None = None
_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()


@atexit.register
def close() -> None:
    """End the scoring process, if there is one; the next answer starts a new one."""
    global _current
    if _current is not None and _current.pid == os.getpid():  # not a parent's process
        _current.end()
    _current = None


def scores(
    scorer: tuple[str, str, dict],
    answers: Collection[Any],
    entries: Collection[Any],
    limit: float = 2.0,
) -> list[float]:
    """Score each answer with a number in [0, 1], by a scorer that need not be safe.

    `scorer` is ("reasoning_gym", name, settings) or ("math_verify", "", {}). An answer
    that is not a string is wrong. If an answer is longer than `MAX_ANSWER_CHECKED`
    characters, only its end is judged. An answer on which the scorer raises, dies, or
    takes longer than `limit` seconds is wrong. `failed` counts these answers and the
    shortened ones; a `TaskWarning` shows the first of each kind. Each slow answer
    halves the time limit of the following answers in the same call, down to a
    sixteenth, so that a rollout full of slow answers costs seconds.

    Raises `UserError` if the scorer cannot be imported, returns anything but a number
    in [0, 1], or, if it belongs to a dataset, tries to evaluate an answer. (For
    math-verify, an answer that sympy would have to evaluate is wrong.)
    """
    name, time_left, paid = scorer[1] or scorer[0], limit, [0.0] * len(answers)
    jobs = [(i, *pair) for i, pair in enumerate(zip(answers, entries, strict=True))]
    jobs = [(i, end_of(x, name), e) for i, x, e in jobs if isinstance(x, str)]
    while jobs:
        replies = verdicts(scorer, [job[1:] for job in jobs], time_left)
        for (i, answer, _), reply in zip(jobs, replies):
            paid[i] = _paid(scorer, answer, reply, time_left)
        if replies[-1].get("fate") == "slow":
            time_left = max(time_left / 2, limit / HURRY)
        jobs = jobs[len(replies) :]
    return paid


def end_of(answer: str, name: str) -> str:
    """The last `MAX_ANSWER_CHECKED` characters; `failed` counts shortened answers."""
    if len(answer) > MAX_ANSWER_CHECKED:
        _note(name, "cut", answer, f"reads {MAX_ANSWER_CHECKED} characters at most")
    return answer[-MAX_ANSWER_CHECKED:]


def _paid(scorer: tuple[str, str, dict], answer: str, reply: dict, limit: float):
    """The score in a reply; 0 for an answer without a verdict, which is counted."""
    name = scorer[1] or scorer[0]
    if "evaluated" in reply and scorer[0] == "math_verify":
        reply = {"fate": "evaluated"}
    if "evaluated" in reply:
        raise _error(
            f"the scorer of {name} tried to evaluate the answer {_cut(answer)} as code "
            f"({_cut(reply['evaluated'])}); it was stopped. Give a scorer of your own"
        )
    if "fate" in reply:
        _note(name, reply["fate"], answer, fate(reply, limit))
        return 0.0
    value = reply["score"]
    if not (isinstance(value, float) and 0 <= value <= 1):  # NaN is neither
        raise _error(
            f"the scorer of {name} returned {value} for the answer {_cut(answer)}; a "
            "score must be a number in [0, 1]"
        )
    return value


def verdicts(scorer: tuple[str, str, dict], jobs: list[tuple], limit: float):
    """The scoring process's replies to the first `jobs`, each (answer, entry).

    There is at least one reply. A reply has the `score` of an answer or its `fate`, and
    a fate is the last reply.
    """
    key, name = repr(scorer), scorer[1] or scorer[0]
    # Pickled one by one: answers may share an entry, and a scorer may change it.
    packed = [pickle.dumps(job) for job in jobs]
    with _lock:
        replies = _ready(key, scorer, name).ask("score", key, packed, limit)
    return replies or [{"fate": "died"}]


def fate(reply: dict, limit: float) -> str:
    """Say in words why an answer got no verdict."""
    return {
        "slow": f"took longer than {limit:g} s and was stopped",
        "died": "ended its process",
        "evaluated": "would have to run code",
        "raised": f"raised {reply.get('why', '')}",
    }.get(reply.get("fate", ""), "is not equal to itself")


def _ready(key: str, scorer: tuple, name: str) -> _Process:
    """The scoring process with `scorer` imported."""
    global _current
    if (
        _current is None
        or _current.pid != os.getpid()
        or _current.process.poll() is not None
    ):
        close()
        _current = _Process()
    if key not in _current.ready:
        reply = _current.ask("prepare", key, scorer, START_LIMIT) or {}
        if not reply.get("ready"):
            why = reply.get("why") or "the scoring process ended at once"
            raise _error(f"the scorer of {name} cannot be used: {why}")
        _current.ready.add(key)
    return _current


def _note(name: str, fate: str, answer: str, what: str) -> None:
    failed[name, fate] += 1
    if (name, fate) in _warned:
        return
    _warned.add((name, fate))
    from refimpl.tasks import TaskWarning  # not in the scoring process

    counts = f"{name} judges its end" if fate == "cut" else "it counts as wrong"
    warnings.warn(
        f"the scorer of {name} {what} on the answer {_cut(answer)}: {counts}. This is "
        "said once; refimpl.pretrained.judge.failed counts them",
        TaskWarning,
        stacklevel=2,
    )


def _error(sentence: str) -> Exception:
    from refimpl.validation import UserError  # not in the scoring process

    return UserError(sentence)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


# The scoring process

_trusted: set[str] | None = set()
_names: set[str] = set()
_evaluated: list[str] = []
_scoring = False


def serve() -> None:
    """Read jobs as pickles from the training process, and write JSON lines."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C finishes the rollout first
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a scorer that prints must not disturb the replies
    sys.path[:] = pickle.load(sys.stdin.buffer)
    sys.addaudithook(_guard)
    known: dict[str, Callable] = {}
    while True:
        try:
            what, key, *job, limit = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if what == "prepare":
            with _limited(limit):
                reply: Any = _prepare(known, key, *job)
        else:
            (jobs,) = job
            reply = _apart(known[key], jobs, limit)
        out.write(json.dumps(reply) + "\n")
        out.flush()


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer than `seconds`.

    The clock is a C thread that does not need the GIL, so a scorer cannot block it.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def _apart(score: Callable, jobs: list[bytes], limit: float) -> list[dict]:
    """Score the first jobs in a fork, which inherits all imports.

    The replies end with the first answer that gets no verdict. If others were scored
    before it in the same fork, they end before it, so that it gets a fresh fork: the
    earlier answers may have caused the failure.
    """
    if not hasattr(os, "fork"):  # on Windows a slow answer ends the whole process
        with _limited(limit):
            return [_verdict(score, *pickle.loads(jobs[0]))]
    began, (read, write) = time.monotonic(), os.pipe()
    if not (child := os.fork()):
        os.close(read)  # so that writing fails once the parent is gone
        for job in jobs:
            with _limited(limit):
                reply = _verdict(score, *pickle.loads(job))
            os.write(write, json.dumps(reply).encode() + b"\n")
            if "score" not in reply:
                break
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        replies = [json.loads(line) for line in pipe]
    os.waitpid(child, 0)
    if not replies:
        return [{"fate": "slow" if time.monotonic() - began >= limit else "died"}]
    alone = len(replies) == 1
    return replies if alone or "score" in replies[-1] else replies[:-1]


def _prepare(known: dict[str, Callable], key: str, scorer: tuple) -> dict:
    _cap_memory(None)
    try:
        source, name, settings = scorer
        known[key] = SOURCES[source](name, settings)
    except Exception as error:
        return {"why": f"{type(error).__name__}: {error}"[:500]}
    _cap_memory(MEMORY)
    return {"ready": True}


def _verdict(score: Callable, answer: str, entry: Any) -> dict:
    global _trusted, _names, _scoring
    _evaluated.clear()
    _trusted, _names, _scoring = _texts(entry), set(NAME.findall(answer)), True
    reply: dict[str, Any]
    try:
        reply = {"score": float(score(answer, entry))}
    except (Exception, SystemExit) as error:
        reply = {"fate": "raised", "why": f"{type(error).__name__}: {error}"[:200]}
    finally:
        _scoring = False
    return {"evaluated": _evaluated[0]} if _evaluated else reply


def _texts(entry: Any) -> set[str] | None:
    """Texts by the task itself, which a scorer may evaluate; None for math-verify."""
    if not isinstance(entry, dict):
        return None
    texts = [entry.get("answer"), *entry.get("metadata", {}).values()]
    return {text.strip() for text in texts if isinstance(text, str)}


def _guard(event: str, args: tuple) -> None:
    """An audit hook that keeps eval, exec and compile from a model's text."""
    if event != "compile" or not _scoring:
        return
    source, file = args
    file = os.fsdecode(file) if isinstance(file, str | bytes) else "<string>"
    if not isinstance(source, str | bytes) or not file.startswith("<"):
        return  # a syntax tree, whose text was checked before, or a module's import
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    if _trusted is None:
        if ARITHMETIC.fullmatch(text) or not _names & set(NAME.findall(text)):
            return
    elif text.strip() in _trusted:
        return
    _evaluated.append(text[:200])
    raise PermissionError("a verifier evaluates no answer")


def _cap_memory(extra: int | None) -> None:
    """Limit memory to `extra` bytes more than now; None lifts the limit."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = hard
        if extra is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            soft = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _reasoning_gym(name: str, settings: dict) -> Callable:
    from reasoning_gym.factory import DATASETS

    dataset, config = DATASETS[name]
    return dataset(config(**settings, seed=0, size=1)).score_answer


def _math_verify(name: str, settings: dict) -> Callable:
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def correct(answer: str, reference: str) -> float:
        # Their time limits are signals, which C code ignores; ours ends the process.
        gold = parse(reference, parsing_timeout=None, raise_on_error=True)
        if not gold or all(isinstance(reading, str) for reading in gold):
            raise ValueError(f"{reference!r} is no mathematics")
        given = parse(answer, parsing_timeout=None)
        right = verify(gold, given, timeout_seconds=None)
        return float(right and not _differ(gold, given))

    for answer in WARMING_UP:  # triggers late imports while the guard is off
        with contextlib.suppress(Exception):
            correct(answer, "$x^2+2x+1$")
    return correct


def _differ(gold: list, given: list) -> bool:
    """True if two numbers differ although math-verify takes them as equal.

    It does so for exact or small numbers that are close, and for equal digits in two
    bases.
    """
    from sympy import Expr, Float

    bases = [BASE.findall(str(reading[-1])) for reading in (gold, given)]
    if bases[0] != bases[1]:
        return True
    exact = [
        isinstance(reading[0], Expr)
        and bool(reading[0].is_rational)
        and not reading[0].has(Float)
        for reading in (gold, given)
    ]
    if all(exact):
        return bool((gold[0] - given[0]).doit() != 0)
    values: list[Any] = [getattr(x[0], "doit", str)() for x in (gold, given)]
    if not all(isinstance(x, Expr) and x.is_number for x in values):
        return False
    left, right = values
    size = max(abs(left.evalf()), abs(right.evalf()))
    return bool(size < SMALL and abs((left - right).evalf()) > SMALL * size)


SMALL = 1e-3
"""Numbers below this are compared by their relative difference, up to this limit."""
BASE = re.compile(r"\d_\{?(\d+)\}?$")
"""The base of a number, as in 4210_7."""
WARMING_UP = (
    "7",
    "1/2",
    r"$\frac{x^3}{3}+C$",
    r"$\int_0^1 e^{-x} dx$",
    r"$\lim_{x\to0}\frac{\sin x}{x}$",
    r"$\sum_{n=1}^\infty 1/n^4$",
    r"$\frac{d}{dx}x^2$",
    r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$",
    r"$x \in \{1, 2\}$",
)

SOURCES: dict[str, Callable[[str, dict], Callable]] = {
    "reasoning_gym": _reasoning_gym,
    "math_verify": _math_verify,
}

if __name__ == "__main__":
    serve()
