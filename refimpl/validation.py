"""What is asked of a user's input: once, at the door, in one sentence, of one class.

    @checked                                        settings: a class whose fields are
    class Settings:                                 checked when an object is made
        epochs: Count = 1

    @guarded                                        a front door: a function whose
    def sample(prompts, *, group_size: Count = 1):  arguments are checked

Behind the doors the contract is trusted: formulas have no guards, and a training step
asks the device nothing. A letter in a tensor's shape is one size throughout a call;
floats must be finite, where there is a `mask` only where it is 1. NumPy and torch
scalars become plain numbers, so that a setting can always be stored.
"""

import contextlib
import difflib
import functools
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any

from jaxtyping import jaxtyped
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

T = typing.TypeVar("T")
F = typing.TypeVar("F", bound=Callable)

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Nucleus = Annotated[float, Field(gt=0, le=1)]
"""top_p: a nucleus holds at least one token, so 0 is no share of it."""

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class UserError(ValueError):
    """Something that was handed in cannot be meant: one sentence for the reader."""


# Doors


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(cls: type[T]) -> type[T]:
    """A frozen dataclass; making an object raises as a function that is `guarded`."""
    made: Any = dataclass(frozen=True)(cls)
    made.__init__ = guarded(made.__init__)
    made.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # to be shown
    return made


def guarded(function: F) -> F:
    """`function`, which raises `UserError` on the first argument that does not fit."""
    signature = inspect.signature(function)
    owner = function.__qualname__.removesuffix(".__init__")
    names = [name for name in signature.parameters if name != "self"]
    fixed = all(p.kind is not p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.cache  # at the first call, when every class in an annotation exists
    def checks() -> dict[str, Callable]:
        return {name: checker(name, k) for name, k in annotations(function).items()}

    @functools.wraps(function)
    def call(*args, **given):
        if fixed:
            refuse_unknown(owner, given, names)
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise UserError(f"{owner}: {error}") from None
        values = bound.arguments
        with jaxtyped("context"):  # in which a letter of a shape is one size
            for name in [name for name in checks() if name in values]:
                try:
                    values[name] = checks()[name](values[name])
                except UserError as error:
                    raise UserError(f"{error}{_beside(name, values)}") from None
        _check_numbers({n: v for n, v in values.items() if is_tensor(v)})
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def annotations(of: Any) -> dict[str, Any]:
    """The types of a function's arguments, or of a dataclass's fields."""
    function: Any = vars(of)["__init__"] if isinstance(of, type) else of
    kinds = inspect.get_annotations(function, eval_str=True)
    return {name: kind for name, kind in kinds.items() if name != "return"}


class Keywords:
    """The keyword-only parameters of a function, checked by their annotations."""

    def __init__(self, function: Any, owner: str):
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.owner = owner
        self.defaults = MappingProxyType({p.name: p.default for p in keywords})
        self.annotations = {
            p.name: Any if p.annotation is p.empty else p.annotation for p in keywords
        }
        if {"epsilon_low", "epsilon_high"} <= self.annotations.keys():
            self.annotations.setdefault("epsilon", self.annotations["epsilon_low"])
        self._checks = {n: checker(n, kind) for n, kind in self.annotations.items()}

    def check(self, given: Mapping) -> dict:
        """`given` as plain values; raises `UserError` as a guarded function does.

        `epsilon` is written out as both bounds, where a function knows only those.
        """
        refuse_unknown(self.owner, given, self.annotations)
        values = {name: self._checks[name](value) for name, value in given.items()}
        if "epsilon" in values and "epsilon" not in self.defaults:
            if "epsilon_low" in values:
                raise UserError("epsilon is epsilon_low too: give one of them")
            epsilon = values.pop("epsilon")
            values = {"epsilon_low": epsilon, "epsilon_high": epsilon, **values}
        return values


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UserError` naming the nearest name if one of `given` is unknown."""
    known, own = list(known), ""
    if "hyperparameters" in known:
        own = ". A loss's own go into hyperparameters={'epsilon': 0.2}"
    for name in given:
        if name not in known:
            raise UserError(
                f"{owner} has no setting {name!r}{nearest(name, known)}; it has: "
                f"{', '.join(known) or 'none'}{own}"
            )


# One value


def checker(name: str, annotation: Any) -> Callable[[Any], Any]:
    """A function that gives a value back as plain, or raises a sentence about it."""
    adapter: TypeAdapter = TypeAdapter(_opaque(annotation), config=STRICT)

    def check(value: Any) -> Any:
        try:
            return adapter.validate_python(plain(value))
        except ValidationError:
            raise UserError(sentence(name, annotation, value)) from None

    return check


def _opaque(kind: Any) -> Any:
    """`kind`, of which pydantic looks at an object's class, and a list's members'."""
    origin = typing.get_origin(kind)
    if origin in UNIONS:
        return functools.reduce(operator.or_, map(_opaque, typing.get_args(kind)))
    cls = origin or kind
    if cls in (Annotated, tuple, *WORDS) or not isinstance(cls, type):
        return kind

    held: Any = typing.get_args(kind)[0] if origin is Collection else Any
    held = object if held is Any else typing.get_origin(held) or held

    def check(value: Any) -> Any:
        text = cls is Collection and isinstance(value, str)  # one of letters
        if text or not isinstance(value, cls):
            raise ValueError
        members: Any = value if origin is Collection else ()
        if not all(isinstance(one, held) for one in members):
            raise ValueError
        return value

    return Annotated[Any, AfterValidator(check)]


def from_text(name: str, annotation: Any, text: str) -> Any:
    """`text` as what `annotation` says; several values stand with commas.

    Raises `UserError` if it is something else.
    """
    if text.lower() == "none" and NoneType in typing.get_args(annotation):
        return None
    adapter: TypeAdapter = TypeAdapter(annotation, config=STRICT)
    with contextlib.suppress(ValidationError):
        return adapter.validate_strings(text)
    with contextlib.suppress(ValidationError):
        return adapter.validate_json(f"[{text}]")
    raise UserError(sentence(name, annotation, text))


# Tensors


def _beside(name: str, values: Mapping) -> str:
    """The shapes with which that of a tensor at fault has to agree."""
    tensors = {n: v for n, v in values.items() if is_tensor(v)}
    shapes = [f"{n} {tuple(v.shape)}" for n, v in tensors.items() if n != name]
    return f", beside {', '.join(shapes)}" if name in tensors and shapes else ""


def is_dense(x: Any) -> bool:
    """Whether it is a tensor that holds a real number for each of its places."""
    dense = str(getattr(x, "layout", None)) == "torch.strided"
    return dense and not (x.is_meta or x.is_quantized or x.is_complex())


def _check_numbers(tensors: Mapping[str, Any]) -> None:
    """A mask holds 0 and 1; the others are finite, where there is a mask inside it."""
    if odd := [name for name, value in tensors.items() if not is_dense(value)]:
        raise UserError(
            f"{odd[0]} must be a dense tensor of real numbers, not a sparse, meta, "
            f"quantized or complex one, got {shown(tensors[odd[0]])}"
        )
    mask = tensors.get("mask")
    if mask is not None and (other := (mask != 0) & (mask != 1)).any():
        raise UserError(
            "mask must hold only 0 and 1 (1 on response tokens, EOS in), got "
            f"{mask[other][0].item():g}"
        )
    for name, value in tensors.items():
        if not value.numel():
            raise UserError(f"{name} has no number in it, got {shown(value)}")
        bad = ~value.isfinite()
        if mask is not None:
            bad &= mask.bool() if value.ndim == mask.ndim else mask.bool().any(-1)
        if bad.any():
            place = bad.nonzero()[0].tolist()
            raise UserError(
                f"{name} is {value[tuple(place)].item()} at {place}: it must be finite"
                + " where the mask is 1" * (mask is not None)
            )


# Words

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
