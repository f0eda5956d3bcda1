"""Settings that check themselves: typed fields, and one clear sentence per fault.

    @checked
    class Settings:
        epochs: Count = 1

Types and ranges stand beside the field; pydantic checks them when the object is made.
NumPy and torch scalars become plain numbers, so that a setting can always be stored.
"""

import difflib
import functools
import inspect
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import wraps
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

T = TypeVar("T")

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


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def checked(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are checked when an object is made.

    Making one raises `ValueError` with a sentence per bad field, and `TypeError` with
    the nearest name if a field does not exist.
    """
    made: Any = dataclass(cls, frozen=True, config=STRICT)
    fields, validate = annotations(made), made.__init__

    @wraps(validate)
    def init(self, *args, **given):
        refuse_unknown(cls.__name__, given, fields)
        given |= dict(zip(fields, args, strict=False))
        try:
            validate(self, **{name: plain(value) for name, value in given.items()})
        except ValidationError as error:
            raise ValueError(_sentences(error, fields, given)) from None

    made.__init__ = init
    return made


class Keywords:
    """The keyword-only parameters of a function, checked by their annotations."""

    def __init__(self, function: Callable, owner: str):
        found = inspect.signature(function, eval_str=True).parameters.values()
        own = [p for p in found if p.kind is p.KEYWORD_ONLY]
        self.owner = owner
        self.defaults = MappingProxyType({p.name: p.default for p in own})
        self.annotations = {
            p.name: Any if p.annotation is p.empty else p.annotation for p in own
        }
        if {"epsilon_low", "epsilon_high"} <= self.annotations.keys():
            self.annotations.setdefault("epsilon", self.annotations["epsilon_low"])
        self._checks = {n: checker(n, kind) for n, kind in self.annotations.items()}

    def check(self, given: Mapping) -> dict:
        """`given` as plain values; raises as `checked` does.

        `epsilon` is written out as both bounds, where a function knows only those.
        """
        refuse_unknown(self.owner, given, self.annotations)
        found = {name: self._checks[name](value) for name, value in given.items()}
        if "epsilon" in found and "epsilon" not in self.defaults:
            epsilon = found.pop("epsilon")
            found = {"epsilon_low": epsilon, "epsilon_high": epsilon, **found}
        return found


def checker(name: str, annotation: Any) -> Callable[[Any], Any]:
    """A function that gives a value back as plain, or raises a sentence about it."""
    adapter: TypeAdapter = TypeAdapter(_as_it_is(annotation), config=STRICT)

    def check(value: Any) -> Any:
        whole = isinstance(value, dict | list)  # given on as it is
        try:
            return adapter.validate_python(value if whole else plain(value))
        except ValidationError:
            raise ValueError(sentence(name, annotation, value)) from None

    return check


def _as_it_is(kind: Any) -> Any:
    """`kind`, with classes of which pydantic looks at nothing but the class."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_as_it_is, inner))
    if origin is dict:
        return dict.__class_getitem__((inner[0], _as_it_is(inner[1])))
    if origin in (Collection, Iterable):
        return _instance_of(origin, but=str)  # which is a collection of letters
    return _instance_of(kind) if isinstance(kind, type) and kind not in WORDS else kind


def _instance_of(cls: type, but: type | tuple = ()) -> Any:
    def check(value: Any) -> Any:
        if not isinstance(value, cls) or isinstance(value, but):
            raise ValueError
        return value

    return Annotated[Any, AfterValidator(check)]


WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
WORDS |= {NoneType: "None", dict: "a dictionary", Path: "a path", Any: "anything"}


def parse(name: str, annotation: Any, text: str) -> Any:
    """`text` from a command line as what `annotation` says (`false` is False)."""
    if text.lower() == "none" and NoneType in get_args(annotation):
        return None
    if annotation is Any:
        return text
    try:
        return TypeAdapter(annotation, config=STRICT).validate_strings(text)
    except ValidationError:
        raise ValueError(sentence(name, annotation, text)) from None


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` naming the nearest name if one of `given` is unknown."""
    known = list(known)
    for name in given:
        if name not in known:
            raise TypeError(
                f"{owner} has no setting {name!r}{nearest(name, known)}; it has: "
                f"{', '.join(known) or 'none'}"
            )


def nearest(name: str, known: Iterable[str]) -> str:
    """', did you mean …?' for an error message, or nothing."""
    names = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f", did you mean {names[close[0]]!r}?" if close else ""


def annotations(cls: Any) -> dict[str, Any]:
    """A dataclass's fields with their types."""
    return inspect.get_annotations(cls, eval_str=True)


def plain(value: Any) -> Any:
    """A NumPy or torch scalar as Python's own number; containers likewise."""
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    scalar = isinstance(value, numbers.Number) or getattr(value, "ndim", None) == 0
    return value.item() if scalar and hasattr(value, "item") else value


def _sentences(error: ValidationError, fields: dict[str, Any], given: dict) -> str:
    """One sentence per field at fault, or what `__post_init__` said of several."""
    said = {}
    for fault in error.errors():
        if fault["loc"]:
            name = str(fault["loc"][0])
            said[name] = sentence(name, fields[name], given[name])
        else:
            said[""] = str(fault["ctx"]["error"])
    return "; ".join(said.values())


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


def expected(annotation: Any) -> str:
    """A type with its range, in words: 'a number in [0, 1] or None'."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [m for part in inner[1:] for m in getattr(part, "metadata", [part])]
        said = [f", {part}" for part in inner[1:] if isinstance(part, str)]
        return "".join([expected(inner[0]), _range(limits), *said])
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


def table(cls: Any) -> str:
    """The fields of a checked class with type, default and meaning, as text."""
    kinds, lines = annotations(cls), []
    for name, own in cls.__pydantic_fields__.items():
        default = own.default if own.default_factory is None else {}
        meaning = f": {own.description}" if own.description else ""
        lines.append(f"  {name} = {default!r}, {expected(kinds[name])}{meaning}")
    return "\n".join(lines)
