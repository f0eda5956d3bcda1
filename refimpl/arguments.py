"""Arguments that check themselves: one clear sentence for what cannot be meant.

    @guarded
    def mean(x: Float[Tensor, "B T"], mask: Mask, eps: Positive = 1e-6):

Numbers and objects are checked as the fields of a `settings.checked` class are. A
tensor must have the dtype and the shape of its annotation, where a letter is one size
throughout a call, and be finite: if there is a `mask`, where it is 1.
"""

import inspect
import math
from collections.abc import Callable
from functools import cache, wraps
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from refimpl.settings import checker

F = TypeVar("F", bound=Callable)

HOLDS: dict[Any, tuple[str, Callable[[torch.dtype], bool]]] = {
    Float: ("floats", lambda dtype: dtype.is_floating_point),
    Int: ("whole numbers", lambda d: d != torch.bool and not d.is_floating_point),
    Real: ("numbers", lambda dtype: dtype != torch.bool),
    Bool: ("True and False", lambda dtype: dtype == torch.bool),
}
"""What a tensor of a jaxtyping kind holds. `Shaped` holds anything."""


class Wanted(NamedTuple):
    """What an annotation asks of a tensor; `shapes` are alternatives, in letters."""

    words: str
    holds: Callable[[torch.dtype], bool]
    shapes: list[list[str]]
    optional: bool


def guarded(function: F) -> F:
    """`function`, which raises `ValueError` on arguments that do not fit."""
    signature = inspect.signature(function)

    @cache  # when it is first called, so that every class in an annotation exists
    def checks() -> tuple[dict[str, Wanted], dict[str, Callable]]:
        kinds = inspect.get_annotations(function, eval_str=True)
        kinds = {name: kinds[name] for name in signature.parameters if name in kinds}
        tensors = {n: w for n, kind in kinds.items() if (w := _wanted(kind))}
        rest = {n: checker(n, kind) for n, kind in kinds.items() if n not in tensors}
        return tensors, rest

    @wraps(function)
    def call(*args, **given):
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        (tensors, rest), found = checks(), bound.arguments
        for name, value in found.items():
            if name in rest:
                found[name] = rest[name](value)
        _check_tensors({n: found[n] for n in tensors if n in found}, tensors)
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def _wanted(kind: Any) -> Wanted | None:
    """What `kind` asks of a tensor; None if it names no tensor."""
    every = get_args(kind) or (kind,)
    kinds = [one for one in every if hasattr(one, "dim_str")]
    if not kinds:
        return None
    words, holds = HOLDS.get(kinds[0].dtype, ("", lambda _: True))
    shapes = [one.dim_str.split() for one in kinds]
    return Wanted(words, holds, shapes, NoneType in every)


def _check_tensors(given: dict[str, Any], kinds: dict[str, Wanted]) -> None:
    sizes: dict[str, Any] = {}  # of the letters seen so far
    there = {n: v for n, v in given.items() if v is not None or not kinds[n].optional}
    for name, value in there.items():
        _check_kind(name, value, kinds[name], sizes)
    for name, value in there.items():
        _check_finite(name, value, there.get("mask"))


def _check_kind(name: str, value: Any, kind: Wanted, sizes: dict[str, Any]) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a tensor, got {type(value).__name__}; "
            "torch.as_tensor(…) makes one"
        )
    if not kind.holds(value.dtype):
        raise ValueError(f"{name} must hold {kind.words}, got {value.dtype}")
    if name == "mask" and (other := (value != 0) & (value != 1)).any():
        raise ValueError(
            "mask must hold only 0 and 1 (1 on response tokens, EOS in), got "
            f"{value[other][0].item():g}"
        )
    for dims in kind.shapes:
        if _fits(dims, tuple(value.shape), sizes):
            return
    wanted = " or ".join(_shape(dims, sizes) for dims in kind.shapes)
    raise ValueError(f"{name} must have shape {wanted}, got {tuple(value.shape)}")


def _fits(dims: list[str], shape: tuple, sizes: dict[str, Any]) -> bool:
    """Whether a tensor's shape is `dims`; letters that are new enter `sizes`."""
    if dims[0] == "...":  # any number of them
        rest = max(0, len(shape) - len(dims) + 1)
        shape = (shape[:rest], *shape[rest:])
    if len(shape) != len(dims):
        return False
    for name, size in zip(dims, shape, strict=True):
        if sizes.get(name, size) != size:
            return False
    sizes.update(zip(dims, shape, strict=True))
    return True


def _shape(dims: list[str], sizes: dict[str, Any]) -> str:
    """'(B, T)', and '(B, T) = (4, T)' if B is 4 in the tensors before."""

    def text(parts: list) -> str:
        comma = "," if len(parts) == 1 and parts != ["..."] else ""
        return f"({', '.join(map(str, parts))}{comma})"

    known: list = []
    for name in dims:
        size = sizes.get(name, name)
        known += size if isinstance(size, tuple) else [size]
    return text(dims) if known == dims else f"{text(dims)} = {text(known)}"


def _check_finite(name: str, value: Tensor, mask: Tensor | None) -> None:
    if not (value.is_floating_point() and value.numel()):
        return
    low, high = value.detach().aminmax()  # one pass; either is NaN if any number is
    if math.isfinite((high - low).item()):
        return
    bad = ~value.isfinite()
    masked = mask is not None and mask.shape[: value.ndim] == value.shape
    if masked:
        bad &= mask.bool() if value.ndim == mask.ndim else mask.bool().any(-1)
    if not bad.any():
        return
    place = bad.nonzero()[0].tolist()
    where = [f"{what} {at}" for what, at in zip(("row", "token"), place)]
    raise ValueError(
        f"{name} is {value[tuple(place)].item()} at "
        f"{', '.join(where) if masked else f'index {place}'}: it must be finite"
        + ("; the model has diverged, or the mask covers padding" if masked else "")
    )
