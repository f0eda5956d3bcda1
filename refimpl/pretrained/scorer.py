"""The program that `judge.py` runs to score answers; it needs nothing of refimpl."""

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
from pathlib import Path
from typing import Any

MEMORY = 2 * 2**30
"""Bytes that a scorer may use in addition to those after its import (Linux only)."""
ARITHMETIC = re.compile(
    r"from sympy import \*|(?:Integer|Float|Rational|[\d\s.+*/()'-])*"
)
"""Code that sympy compiles to read a number that math-verify found; has no names."""
NAME = re.compile(r"[^\W\d]\w+")
"""A name of two characters or more. Code that sympy compiles for its own purposes has
no such name in common with the answer."""

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
    package, sys.path[:] = pickle.load(jobs)
    scorer = functools.lru_cache(maxsize=32)(PACKAGES[package]())
    sys.addaudithook(_guard)
    print("{}", file=out, flush=True)
    _go_on_in_a_fork(out)
    _cap_memory()
    with contextlib.suppress(EOFError):
        while True:
            name, settings, answer, entry, limit = pickle.load(jobs)
            try:
                score = scorer(name, pickle.dumps(settings))
            except Exception as error:
                reply = {"error": f"cannot be used: {_why(error)}, for the answer"}
            else:
                # The clock is a C thread that needs no GIL, so nothing can block it.
                faulthandler.dump_traceback_later(limit, exit=True, file=sys.__stderr__)
                reply = _verdict(score, answer, entry)
                faulthandler.cancel_dump_traceback_later()
            print(json.dumps(reply), file=out, flush=True)


def _go_on_in_a_fork(out: Any) -> None:
    """Return in a fork, and in a new one, after a reply for it, whenever it fails."""
    if not hasattr(os, "fork"):  # on Windows a slow answer ends the whole process
        return
    gc.freeze()  # leaves the pages of the imports shared
    while child := os.fork():
        status = os.waitpid(child, 0)[1]
        if status == 0:
            os._exit(0)
        stopped = os.waitstatus_to_exitcode(status) == 1  # by the clock
        fate = {"fate": "slow" if stopped else "died"}
        print(json.dumps(fate), file=out, flush=True)


def _cap_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _verdict(score: Callable, answer: str, entry: Any) -> dict:
    """The score, an `error` of the scorer, or the `fate` of an answer without one."""
    global _trusted, _names, _scoring
    _evaluated.clear()
    _trusted, _names, _scoring = None, {*NAME.findall(answer)}, True
    if isinstance(entry, dict):  # texts by the task itself, which it may evaluate
        texts = [entry.get("answer"), *entry.get("metadata", {}).values()]
        _trusted = {text.strip() for text in texts if isinstance(text, str)}
    try:
        value, how = float(score(answer, entry)), ""
    except (Exception, SystemExit) as error:
        value, how = 0.0, f"raised {_why(error)}"
    _scoring = False
    if _evaluated and _trusted is None:
        return {"fate": "evaluated", "how": "would have to run code"}
    if _evaluated:
        code = f"tried to evaluate ({_evaluated[0]})"
        return {"error": f"{code} and was stopped; give a scorer of your own. It got"}
    if how:
        return {"fate": "raised", "how": how}
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


def _reasoning_gym() -> Callable:
    from reasoning_gym.factory import DATASETS

    def scorer(name: str, settings: bytes) -> Callable:
        dataset, config = DATASETS[name]
        return dataset(config(**pickle.loads(settings), seed=0, size=1)).score_answer

    return scorer


def _math_verify() -> Callable:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

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

    for text in ("1/2", r"$\int_0^1 e^{-x} dx$", r"$\sum_{n=1}^\infty 1/n^4$"):
        correct(text, "$x^2+2x+1$")  # triggers late imports while the guard is off
    return lambda name, settings: correct


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
        left = equation.lhs.subs({f: Symbol("f") for f in equation.atoms(AppliedUndef)})
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


PACKAGES: dict[str, Callable[[], Callable]] = {
    "reasoning_gym": _reasoning_gym,
    "math_verify": _math_verify,
}

if __name__ == "__main__":
    serve()
