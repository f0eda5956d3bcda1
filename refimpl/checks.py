"""What is asked of a user's input: once, at the door, in one sentence, of one class.

    @checked                                        settings: a class whose fields check
    class Settings:                                 themselves when an object is made
        epochs: Count = 1

    @guarded                                        a front door: a function whose
    def sample(prompts, *, group_size: Count = 1):  arguments check themselves

Behind the doors the contract is trusted: formulas have no guards, and a training step
asks the device nothing. A letter in a tensor's shape is one size throughout a call;
floats must be finite, where there is a `mask` only where it is 1. NumPy and torch
scalars become plain numbers, so that a setting can always be stored.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import cache, wraps
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Bool, Float, Int, Real
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

T = TypeVar("T")
F = TypeVar("F", bound=Callable)

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

STRICT = ConfigDict(
    strict=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    use_attribute_docstrings=True,
)


class UserError(ValueError):
    """Something that was handed in cannot be meant: one sentence for the reader."""


# Settings


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def checked(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are checked when an object is made.

    Making one raises `UserError`: a sentence per bad field, or the nearest name if a
    field does not exist.
    """
    made: Any = dataclass(cls, frozen=True, config=STRICT)
    kinds, validate = annotations(made), made.__init__
    fields = {f.name: kinds[f.name] for f in dataclasses.fields(made)}  # in its order

    @wraps(validate)
    def init(self, *args, **given):
        refuse_unknown(cls.__name__, given, fields)
        given |= dict(zip(fields, args, strict=False))
        try:
            validate(self, **{name: plain(value) for name, value in given.items()})
        except ValidationError as error:
            raise UserError(_sentences(error, fields, given)) from None

    made.__init__ = init
    return made


class Keywords:
    """The keyword-only parameters of a function, checked by their annotations."""

    def __init__(self, function: Callable, owner: str):
        signature = inspect.signature(function, eval_str=True).parameters.values()
        keywords = [p for p in signature if p.kind is p.KEYWORD_ONLY]
        self.owner = owner
        self.defaults = MappingProxyType({p.name: p.default for p in keywords})
        self.annotations = {
            p.name: Any if p.annotation is p.empty else p.annotation for p in keywords
        }
        if {"epsilon_low", "epsilon_high"} <= self.annotations.keys():
            self.annotations.setdefault("epsilon", self.annotations["epsilon_low"])
        self._checks = {n: checker(n, kind) for n, kind in self.annotations.items()}

    def check(self, given: Mapping) -> dict:
        """`given` as plain values; raises as `checked` does.

        `epsilon` is written out as both bounds, where a function knows only those.
        """
        refuse_unknown(self.owner, given, self.annotations)
        values = {name: self._checks[name](value) for name, value in given.items()}
        if "epsilon" in values and "epsilon" not in self.defaults:
            epsilon = values.pop("epsilon")
            values = {"epsilon_low": epsilon, "epsilon_high": epsilon, **values}
        return values


def checker(name: str, annotation: Any) -> Callable[[Any], Any]:
    """A function that gives a value back as plain, or raises a sentence about it."""
    adapter: TypeAdapter = TypeAdapter(_as_it_is(annotation), config=STRICT)

    def check(value: Any) -> Any:
        whole = isinstance(value, dict | list)  # given on as it is
        try:
            return adapter.validate_python(value if whole else plain(value))
        except ValidationError:
            raise UserError(sentence(name, annotation, value)) from None

    return check


def _as_it_is(kind: Any) -> Any:
    """`kind`, with classes of which pydantic looks at nothing but the class."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_as_it_is, inner))
    if origin is dict:
        return dict.__class_getitem__((inner[0], _as_it_is(inner[1])))
    if origin in (Collection, Iterable):
        each = Callable if inner == (Callable,) else None
        return _instance_of(origin, but=str, each=each)  # text is one of letters
    return _instance_of(kind) if isinstance(kind, type) and kind not in WORDS else kind


def _instance_of(cls: Any, but: type | tuple = (), each: Any = None) -> Any:
    def check(value: Any) -> Any:
        if not isinstance(value, cls) or isinstance(value, but):
            raise ValueError
        if each is not None and not all(isinstance(one, each) for one in value):
            raise ValueError
        return value

    return Annotated[Any, AfterValidator(check)]


def parse(name: str, annotation: Any, text: str) -> Any:
    """`text` from a command line as what `annotation` says (`false` is False)."""
    if text.lower() == "none" and NoneType in get_args(annotation):
        return None
    if annotation is Any:
        return text
    try:
        return TypeAdapter(annotation, config=STRICT).validate_strings(text)
    except ValidationError:
        raise UserError(sentence(name, annotation, text)) from None


def parse_pairs(flag: str, pairs: Iterable[str], example: str) -> dict[str, str]:
    """`name=value` texts of a command line, still as text."""
    texts = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not text:
            raise UserError(f"{flag} takes name=value, as {example}, got {pair!r}")
        texts[name] = text
    return texts


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UserError` naming the nearest name if one of `given` is unknown."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UserError(
                f"{owner} has no setting {name!r}{nearest(name, known)}; it has: "
                f"{', '.join(known) or 'none'}"
            )


def nearest(name: str, known: Iterable[str]) -> str:
    """', did you mean …?' for an error message, or nothing."""
    names = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f", did you mean {names[close[0]]!r}?" if close else ""


def annotations(cls: Any) -> dict[str, Any]:
    """A dataclass's fields with their types, those of its parents first."""
    kinds: dict[str, Any] = {}
    for part in reversed(cls.__mro__) if isinstance(cls, type) else (cls,):
        kinds |= inspect.get_annotations(part, eval_str=True)
    return {n: kind for n, kind in kinds.items() if get_origin(kind) is not ClassVar}


def plain(value: Any) -> Any:
    """A NumPy or torch scalar as Python's own number; containers likewise."""
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    scalar = isinstance(value, numbers.Number) or getattr(value, "ndim", None) == 0
    return value.item() if scalar and hasattr(value, "item") else value


# Sentences

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
WORDS |= {NoneType: "None", dict: "a dictionary", Path: "a path", Any: "anything"}


def _sentences(error: ValidationError, fields: dict[str, Any], given: dict) -> str:
    """One sentence per field at fault, or what `__post_init__` said of several."""
    faults = {}
    for fault in error.errors():
        if fault["loc"]:
            name = str(fault["loc"][0])
            faults[name] = sentence(name, fields[name], given[name])
        else:
            faults[""] = str(fault["ctx"]["error"])
    return "; ".join(faults.values())


def sentence(name: str, annotation: Any, value: Any) -> str:
    """'epochs must be a whole number ≥ 1, got 0'."""
    wanted = expected(annotation)
    if str(plain(value)).strip("+-").lower() in ("inf", "infinity", "nan"):
        wanted = wanted.replace("a number", "a finite number")  # ∞ > 0, yet refused
    return f"{name} must be {wanted}, got {shown(value)}"


def shown(value: Any) -> str:
    """A value in an error message, cut off if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception of somebody else's as part of a sentence."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:limit]


def expected(annotation: Any) -> str:
    """A type with its range, in words: 'a number in [0, 1] or None'."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [m for part in inner[1:] for m in getattr(part, "metadata", [part])]
        words = [f", {part}" for part in inner[1:] if isinstance(part, str)]
        return "".join([expected(inner[0]), _range(limits), *words])
    if origin in (Union, UnionType):
        return " or ".join(expected(part) for part in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}" if inner[1:] else repr(inner[0])
    if origin is tuple:
        return f"{len(inner)} values, each {expected(inner[0])}"
    if Callable in (origin, annotation):
        return "a function"
    if origin in (Collection, Iterable):
        return f"a list, each {expected(inner[0])}"
    if origin is dict:
        return f"a dictionary, each value {expected(inner[1])}"
    name = getattr(annotation, "__name__", str(annotation))
    return WORDS.get(annotation, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _range(limits: list) -> str:
    low = next((m for m in limits if isinstance(m, Ge | Gt)), None)
    high = next((m for m in limits if isinstance(m, Le | Lt)), None)
    if low is not None and high is not None:
        left = f"[{low.ge}" if isinstance(low, Ge) else f"({low.gt}"
        right = f"{high.le}]" if isinstance(high, Le) else f"{high.lt})"
        return f" in {left}, {right}"
    if low is not None:
        return f" ≥ {low.ge}" if isinstance(low, Ge) else f" > {low.gt}"
    return ""


# Arguments

HOLDS: dict[Any, tuple[str, Callable[[torch.dtype], bool]]] = {
    Float: ("floats", lambda dtype: dtype.is_floating_point),
    Int: ("whole numbers", lambda d: d != torch.bool and not d.is_floating_point),
    Real: ("numbers", lambda dtype: dtype != torch.bool),
    Bool: ("True and False", lambda dtype: dtype == torch.bool),
}
"""What a tensor of a jaxtyping kind holds. `Shaped` holds anything."""


def guarded(function: F) -> F:
    """`function`, which raises `UserError` on arguments that do not fit."""
    signature = inspect.signature(function)

    @cache  # when it is first called, so that every class in an annotation exists
    def checks() -> tuple[dict[str, Any], dict[str, Callable]]:
        kinds = inspect.get_annotations(function, eval_str=True)
        kinds = {name: kinds[name] for name in signature.parameters if name in kinds}
        tensors = {n: k for n, k in kinds.items() if _shapes(k)}
        rest = {n: checker(n, kind) for n, kind in kinds.items() if n not in tensors}
        return tensors, rest

    @wraps(function)
    def call(*args, **given):
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise UserError(f"{function.__name__}: {error}") from None
        (tensors, rest), values = checks(), bound.arguments
        sizes: dict[str, int] = {}  # of the letters seen so far
        for name, value in values.items():
            if name in rest:
                values[name] = rest[name](value)
            elif name in tensors and not (
                value is None and NoneType in get_args(tensors[name])
            ):
                _check_tensor(name, value, _shapes(tensors[name]), sizes)
        for name in tensors.keys() & values.keys():
            if isinstance(values[name], Tensor):
                _check_finite(name, values[name], values.get("mask"))
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def _shapes(kind: Any) -> list[Any]:
    """The jaxtyping kinds that an annotation names: alternatives."""
    return [one for one in get_args(kind) or (kind,) if hasattr(one, "dim_str")]


def _check_tensor(name: str, value: Any, kinds: list, sizes: dict[str, int]) -> None:
    """Type, dtype and shape of an argument; its letters enter `sizes`."""
    if not isinstance(value, Tensor):
        raise UserError(
            f"{name} must be a tensor, got {type(value).__name__}; "
            "torch.as_tensor(…) makes one"
        )
    words, holds = HOLDS.get(kinds[0].dtype, ("", lambda _: True))
    if not holds(value.dtype):
        raise UserError(f"{name} must hold {words}, got {value.dtype}")
    if name == "mask" and (other := (value != 0) & (value != 1)).any():
        raise UserError(
            "mask must hold only 0 and 1 (1 on response tokens, EOS in), got "
            f"{value[other][0].item():g}"
        )
    wanted = []
    for kind in kinds:
        letters = kind.dim_str.split()
        known = [sizes.get(letter, letter) for letter in letters]
        fits = [k in (n, letter) for k, n, letter in zip(known, value.shape, letters)]
        if len(letters) == value.ndim and all(fits):
            sizes.update(zip(letters, value.shape))
            return
        plain_shape = f"({', '.join(letters)}{',' * (len(letters) == 1)})"
        sized = f"({', '.join(map(str, known))}{',' * (len(letters) == 1)})"
        wanted.append(plain_shape + f" = {sized}" * (sized != plain_shape))
    raise UserError(
        f"{name} must have shape {' or '.join(wanted)}, got {tuple(value.shape)}"
    )


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
    raise UserError(
        f"{name} is {value[tuple(place)].item()} at "
        f"{', '.join(where) if masked else f'index {place}'}: it must be finite"
        + ("; the model has diverged, or the mask covers padding" if masked else "")
    )


# A task and its rows, which we did not write


def check_task(task) -> None:
    """Raise `UserError` if `task` lacks one of the five parts of a task."""
    parts = ("sample", "held_out", "reward", "habit")
    missing = [name for name in parts if not callable(getattr(task, name, None))]
    if not isinstance(getattr(task, "habits", None), Collection):
        missing.append("habits")
    if missing or isinstance(task, type):
        raise UserError(
            f"task must have the functions {', '.join(parts)} and a list of habits "
            f"(see refimpl.tasks); {shown(task)} "
            + (f"lacks {', '.join(missing)}" if missing else "is a class, no object")
        )


def check_rows(rows, method: str) -> list[dict]:
    """`rows` if they are what a task must return, else `UserError` that says why."""
    wanted = f"task.{method} must return a list of dictionaries with a 'prompt' string"
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{wanted}; it returned {shown(rows)}")
    for row in rows:
        if not (isinstance(row, dict) and isinstance(row.get("prompt"), str)):
            raise UserError(f"{wanted}; one of them is {shown(row)}")
        if row.keys() != rows[0].keys():
            raise UserError(
                f"{wanted} and the same keys throughout; one has "
                f"{sorted(rows[0], key=str)}, another {sorted(row, key=str)}"
            )
    return rows


def rows_of(task, method: str, n: int) -> list[dict]:
    """n rows for a try, from a task that we did not write."""
    try:
        rows = getattr(task, method)(n, 0)
    except UserError:
        raise  # a sentence already, as of a bad salt
    except Exception as error:
        raise UserError(f"task.{method}({n}, 0) raised {one_line(error)}") from error
    return check_rows(rows, method)
