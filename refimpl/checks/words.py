"""What an error says: values, types and names in words of one sentence."""

import difflib
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any

UNIONS = (typing.Union, UnionType)
WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text"}
WORDS |= {bool: "True or False", NoneType: "None", Any: "anything"}
WORDS |= {dict: "a dictionary", Path: "a path", Callable: "a function"}
OPAQUE: dict[Any, str] = {Collection: "a list", Mapping: "a dictionary"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def sentence(name: str, annotation: Any, value: Any) -> str:
    """'epochs must be a whole number ≥ 1, got 0'."""
    wanted = expected(annotation)
    if str(plain(value)).strip("+-").lower() in ("inf", "infinity", "nan"):
        wanted = wanted.replace("a number", "a finite number")  # ∞ > 0, yet refused
    return f"{name} must be {wanted}, got {shown(value)}"


def expected(annotation: Any) -> str:
    """A type with its range, in words: 'a number ≥ 0 and ≤ 1 or None'."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        limits = [m for part in inner[1:] for m in getattr(part, "metadata", [])]
        limits = [f"{SIGNS[k]} {x}" for m in limits for k, x in asdict(m).items()]
        words = [f"{expected(inner[0])} {' and '.join(limits)}".strip()]
        return ", ".join(words + [part for part in inner[1:] if isinstance(part, str)])
    if origin in UNIONS:
        return " or ".join(map(expected, inner))
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        return f"{len(inner)} values, each {expected(inner[0])}"
    if origin is Collection and inner[0] is not Any:
        return f"a list, each {expected(inner[0])}"
    cls = origin or annotation
    return (WORDS | OPAQUE).get(cls, f"of type {cls.__name__}")


def shown(value: Any) -> str:
    """A value in an error message, cut off if it is long; of a tensor its shape."""
    if is_tensor(value):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:77]}…"


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception of somebody else's as part of a sentence."""
    words = [type(error).__name__, *([text] if (text := str(error)) else [])]
    return printable(" ".join(": ".join(words).split())[:limit])


def printable(text: str) -> str:
    """`text` without what moves a cursor, changes colours or ends a line: escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text.replace("\n", " ")
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """', did you mean …?' for an error message, or nothing."""
    names = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f", did you mean {names[close[0]]!r}?" if close else ""


def plain(value: Any) -> Any:
    """A NumPy or torch scalar as Python's own number, 0 or ∞ if it is that in float32;
    containers likewise."""
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    if type(value) is float and not 1e-30 < abs(value) < 3e38:
        value *= 0.0 if abs(value) <= 1e-30 else float("inf")
    return value


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch's, of which there is none until torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
