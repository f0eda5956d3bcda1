"""The program that `judge.py` runs to score answers, without importing refimpl."""

import contextlib
import faulthandler
import functools
import gc
import json
import os
import pickle
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 2**32
"""Bytes that this process may use (Linux only)."""
OWN = {"from", "sympy", "import", "integer", "float", "rational"}
"""Names in the code that sympy compiles to read a number."""

_scoring: tuple[str, Any] | None = None
"""The answer that is being scored, and its entry."""
_refused: list[str] = []


def serve() -> None:
    """Read jobs as pickles from the training process, and write a JSON line each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C finishes the rollout first
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a scorer that prints must not disturb the replies
    jobs = sys.stdin.buffer
    package, sys.path[:] = pickle.load(jobs)
    scorer = functools.lru_cache(maxsize=32)(PACKAGES[package]())
    sys.addaudithook(_guard)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print("{}", file=out, flush=True)
    # A fork scores. If it fails, reply for it, and make a new one.
    gc.freeze()  # leaves the pages of the imports shared
    while hasattr(os, "fork") and (child := os.fork()):
        status = os.waitpid(child, 0)[1]
        if status == 0:
            return
        fate = "slow" if os.waitstatus_to_exitcode(status) == 1 else "died"
        print(json.dumps({"fate": fate}), file=out, flush=True)
    with contextlib.suppress(EOFError):
        while True:
            name, settings, answer, entry, limit = pickle.load(jobs)
            score = scorer(name, pickle.dumps(settings))
            # The clock is a C thread that needs no GIL, so nothing can block it.
            faulthandler.dump_traceback_later(limit, exit=True, file=sys.__stderr__)
            reply = _verdict(score, answer, entry)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(reply), file=out, flush=True)


def _verdict(score: Callable, answer: str, entry: Any) -> dict:
    """Return the score, or the `fate` of an answer without one."""
    global _scoring
    _refused.clear()
    _scoring = answer, entry
    try:
        reply: dict = {"score": float(score(answer, entry))}
    except (Exception, SystemExit) as error:
        how = f"raised {type(error).__name__}: {error}"[:200]
        reply = {"fate": "raised", "how": how}
    _scoring = None
    if _refused:
        how = f"tried to evaluate ({_refused[0]}) and was stopped"
        return {"fate": "evaluated", "how": how}
    return reply


def _may_run(text: str) -> bool:
    answer, entry = _scoring or ("", None)
    if isinstance(entry, dict):  # a task may evaluate its own texts
        own = [entry.get("answer"), *entry.get("metadata", {}).values()]
        return text.strip() in [one.strip() for one in own if isinstance(one, str)]
    # sympy compiles its own code, which shares no name with the answer
    return not (_named(answer) - OWN) & _named(text)


def _named(text: str) -> set[str]:
    return {*re.findall(r"[^\W\d]\w+", text.casefold())}


def _guard(event: str, args: tuple) -> None:
    """Keep eval, exec and compile from a model's text, as an audit hook."""
    if event != "compile" or _scoring is None or not isinstance(args[0], str | bytes):
        return  # the text of a syntax tree was checked before
    file = os.fsdecode(args[1]) if isinstance(args[1], str | bytes) else "<string>"
    text = os.fsdecode(args[0])
    if file.startswith("<") and not _may_run(text):  # else a module's import
        _refused.append(text[:200])
        raise PermissionError("a verifier evaluates no answer")


def _reasoning_gym() -> Callable:
    from reasoning_gym.factory import DATASETS

    def scorer(name: str, settings: bytes) -> Callable:
        dataset, config = DATASETS[name]
        return dataset(config(**pickle.loads(settings), seed=0, size=1)).score_answer

    return scorer


def _math_verify() -> Callable:
    from math_verify import parse, verify

    # Its own time limits are signals, which C code ignores; ours ends the process.
    read = functools.partial(parse, parsing_timeout=None)
    read_reference = functools.lru_cache(read)  # each is compared several times

    def correct(answer: str, reference: str) -> float:
        return verify(read_reference(reference), read(answer), timeout_seconds=None)

    for text in ("1/2", r"$\int_0^1 e^{-x} dx$", r"$\sum_{n=1}^\infty 1/n^4$"):
        correct(text, "$x^2+2x+1$")  # triggers late imports while the guard is off
    return lambda name, settings: correct


PACKAGES = {"reasoning_gym": _reasoning_gym, "math_verify": _math_verify}

if __name__ == "__main__":
    serve()
