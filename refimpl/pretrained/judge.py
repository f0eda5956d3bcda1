"""Run scorers from other packages in a separate process.

A model's text must be compared, never run, and no answer may hold up training. Many
scorers break these rules: some evaluate the answer as Python, and
`Fraction("1e999999999")` runs in C for minutes, where no exception can stop it.

Therefore this file is also a program, which imports nothing from refimpl. It imports
a scorer once and scores in a fork of itself that refuses to compile text from a model.
The fork ends at an answer that takes too long, and a new one takes its place.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
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
"""A name of two characters or more. Code that sympy compiles for its own purposes has
no such name in common with the answer."""

failed: Counter[tuple[str, str]] = Counter()
"""The number of answers without a verdict, by (scorer, 'raised' | 'slow' | 'died' |
'evaluated'), and of answers whose end alone was judged, by (scorer, 'cut')."""


# The training process


class _Process:
    """The scoring process: the scorers that it has imported; has its fork scored?"""

    def __init__(self) -> None:
        self.pid, self.ready, self.used = os.getpid(), set[str](), False
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        pickle.dump(sys.path, self.process.stdin)  # type: ignore[arg-type]

    def ask(self, what: str, key: str, job: Any, limit: float) -> dict:
        """Send a job and return the reply, which has a `fate` if a fork ended."""
        packed, began, line = (
            pickle.dumps((what, key, job, limit)),
            time.monotonic(),
            b"",
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(packed)  # type: ignore[union-attr]
                self.process.stdin.flush()  # type: ignore[union-attr]
                line = self.process.stdout.readline()  # type: ignore[union-attr]
        finally:  # after Ctrl-C the next job would read this job's reply
            if not line:
                self.end()
        reply = json.loads(line or '{"fate": "died"}')
        if reply.get("fate") == "died" and time.monotonic() - began >= limit:
            reply["fate"] = "slow"
        self.used = "score" in reply or reply.get("fate") == "raised"
        return reply

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
    quiet: bool = False,
) -> list[float]:
    """Score each answer with a number in [0, 1], by a scorer that need not be safe.

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
            reply = verdict(scorer, (answer, entry), time_left)
        if "error" in reply:
            raise _error(f"the scorer of {name} {reply['error']}: {_cut(answer)}")
        paid[place] = reply.get("score", 0.0)
        if "fate" in reply and not quiet:
            how = {
                "slow": f"took longer than {time_left:g} s and was stopped",
                "died": "ended its process",
                "evaluated": "would have to run code",
            }.get(reply["fate"], f"raised {reply.get('why')}")
            _note(name, reply["fate"], answer, how)
        if reply.get("fate") == "slow":
            time_left = max(time_left / 2, limit / HURRY)
    return paid


def end_of(answer: str, name: str) -> str:
    """The last `MAX_ANSWER_CHECKED` characters; `failed` counts shortened answers."""
    if len(answer) > MAX_ANSWER_CHECKED:
        _note(name, "cut", answer, f"reads {MAX_ANSWER_CHECKED} characters at most")
    return answer[-MAX_ANSWER_CHECKED:]


def verdict(scorer: tuple[str, str, dict], job: tuple, limit: float) -> dict:
    """The reply to `job`, (answer, entry): its `score`, its `fate`, or `evaluated`.

    If the scorer raises, a fresh fork is asked once more: earlier answers may have
    changed something in the old one.
    """
    key, process = repr(scorer), _ready(scorer)
    used, reply = process.used, process.ask("score", key, job, limit)
    if reply.get("fate") == "raised" and used:
        process.ask("end", key, None, limit)
        reply = _ready(scorer).ask("score", key, job, limit)
    return reply


def _ready(scorer: tuple[str, str, dict]) -> _Process:
    """The scoring process with `scorer` imported."""
    global _current
    mine = _current is not None and _current.pid == os.getpid()
    if not mine or _current.process.poll() is not None:  # type: ignore[union-attr]
        close()
        _current = _Process()
    assert _current is not None
    if (key := repr(scorer)) not in _current.ready:
        reply = _current.ask("prepare", key, scorer, START_LIMIT)
        if "ready" not in reply:
            why = reply.get("why") or "the scoring process ended at once"
            name = scorer[1] or scorer[0]
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
    """Read jobs as pickles from the training process, and write a JSON line each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C finishes the rollout first
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a scorer that prints must not disturb the replies
    jobs = sys.stdin.buffer
    sys.path[:] = pickle.load(jobs)
    sys.addaudithook(_guard)
    known: dict[str, Callable] = {}
    while True:
        try:
            what, key, job, limit = pickle.load(jobs)
        except EOFError:
            return
        if what == "end":
            os._exit(1)
        with _limited(limit):
            reply = (
                _prepare(known, key, job)
                if what == "prepare"
                else _verdict(known[key], *job)
            )
        print(json.dumps(reply), file=out, flush=True)
        if "ready" in reply:
            _go_on_in_a_fork(out)


def _go_on_in_a_fork(out: Any) -> None:
    """Return in a fork, and in a new one, after a reply for it, whenever it fails."""
    if not hasattr(os, "fork"):  # on Windows a slow answer ends the whole process
        return
    gc.freeze()  # leaves the pages of the imports shared
    while child := os.fork():
        if os.waitpid(child, 0)[1] == 0:
            os._exit(0)
        print('{"fate": "died"}', file=out, flush=True)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer than `seconds`.

    The clock is a C thread that does not need the GIL, so a scorer cannot block it.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


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
    """The score, an `error` of the scorer, or the `fate` of an answer without one."""
    global _trusted, _names, _scoring
    _evaluated.clear()
    _trusted, _names, _scoring = None, {*NAME.findall(answer)}, True
    if isinstance(entry, dict):  # texts by the task itself, which it may evaluate
        texts = [entry.get("answer"), *entry.get("metadata", {}).values()]
        _trusted = {text.strip() for text in texts if isinstance(text, str)}
    try:
        value, why = float(score(answer, entry)), ""
    except (Exception, SystemExit) as error:
        value, why = 0.0, f"{type(error).__name__}: {error}"[:200]
    _scoring = False
    if _evaluated and _trusted is None:
        return {"fate": "evaluated"}
    if _evaluated:
        code = f"tried to evaluate ({_evaluated[0]})"
        return {"error": f"{code} and was stopped; give a scorer of your own. It got"}
    if why:
        return {"fate": "raised", "why": why}
    if not 0 <= value <= 1:  # NaN is neither
        return {"error": f"returned {value}, not a number in [0, 1], for the answer"}
    return {"score": value}


def _guard(event: str, args: tuple) -> None:
    """An audit hook that keeps eval, exec and compile from a model's text."""
    if event != "compile" or not _scoring:
        return
    source, file = args
    file = os.fsdecode(file) if isinstance(file, str | bytes) else "<string>"
    if not isinstance(source, str | bytes) or not file.startswith("<"):
        return  # a syntax tree, whose text was checked before, or a module's import
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    if _trusted is None:  # math-verify
        if ARITHMETIC.fullmatch(text) or not _names & {*NAME.findall(text)}:
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

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    latex = LatexExtractionConfig(boxed_match_priority=0)

    def read(text: str) -> list:
        # No number is picked out of a formula that cannot be read as a whole. Their
        # time limits are signals, which C code ignores; ours ends the process.
        if text.count("$") == 2 and text[0] == text[-1] == "$":
            return parse(
                text, [latex], extraction_mode="first_match", parsing_timeout=None
            )
        return parse(text, [latex, ExprExtractionConfig()], parsing_timeout=None)

    read_gold = functools.lru_cache(read)  # as each reference has several answers

    def correct(answer: str, reference: str) -> float:
        gold, given = read_gold(reference), read(answer)
        if not gold or not given or isinstance(gold[0], str) or _curve(gold, given):
            return 0.0
        right = verify(gold, given, timeout_seconds=None)
        return float(right and not _differ(gold, given))

    for text in (
        "1/2",
        "$x^3/3+C$",
        r"$\int_0^1 e^{-x} dx$",
        r"$\sum_{n=1}^\infty 1/n^4$",
    ):
        correct(text, "$x^2+2x+1$")  # triggers late imports while the guard is off
    return correct


def _curve(gold: list, given: list) -> bool:
    """True for an equation in unknowns, which is not the value on its right side.

    The left side of a value is a number, or the name of a quantity: AB, f(3), a + b.
    """
    from sympy import Basic, Eq, Number, Pow, Symbol, exp
    from sympy.core.function import AppliedUndef
    from sympy.core.relational import Relational

    if not isinstance(given[0], Basic) or getattr(gold[0], "atoms", set)(Relational):
        return False
    for equation in given[0].atoms(Eq):
        left = equation.lhs
        left = left.replace(
            lambda x: isinstance(x, AppliedUndef), lambda _: Symbol("f")
        )
        odd = left.atoms(exp) | (left.atoms(Number) - {-1})
        odd |= {power for power in left.atoms(Pow) if power.exp != -1}
        if left.free_symbols and odd:
            return True
    return False


def _differ(gold: list, given: list) -> bool:
    """True if two numbers differ although math-verify takes them as equal.

    It does so for small numbers that are close, and for equal digits in two bases.
    """
    from sympy import UnevaluatedExpr

    bases = [re.findall(r"\d_\{?(\d+)\}?$", str(read[-1])) for read in (gold, given)]
    if bases[0] != bases[1]:
        return True
    try:
        left, right = (complex(reading[0].doit().evalf()) for reading in (gold, given))
    except Exception:  # not numbers
        return False
    percent = gold[0].has(UnevaluatedExpr) or given[0].has(UnevaluatedExpr)
    return not percent and abs(left - right) > 1e-4 * max(abs(left), abs(right))


SOURCES: dict[str, Callable[[str, dict], Callable]] = {
    "reasoning_gym": _reasoning_gym,
    "math_verify": _math_verify,
}

if __name__ == "__main__":
    serve()
