"""Checks of a user's input, where it enters; all raise `UserError` with one sentence.

    @checked                                        settings: a class whose fields are
    class Settings:                                 checked when an object is made
        epochs: Count = 1

    @guarded                                        a front door: a function whose
    def sample(prompts, *, group_size: Count = 1):  arguments are checked

pydantic checks numbers and texts, jaxtyping the types and shapes of tensors.
"""

import contextlib
import difflib
import functools
import inspect
import operator
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any

from annotated_types import Predicate
from jaxtyping import jaxtyped
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

T = typing.TypeVar("T")
F = typing.TypeVar("F", bound=Callable)

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Nucleus = Annotated[float, Field(gt=0, le=1)]
"""top_p. It is above 0, because at least one token remains."""

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class UserError(ValueError):
    """The user's input is invalid; the message is one sentence that says why."""


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are checked; tensors may hold any number."""
    made: Any = dataclass(frozen=True)(cls)
    made.__init__ = guarded(made.__init__, finite=False)
    made.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # for help
    return made


def guarded(function: F, finite: bool = True) -> F:
    """Make `function` raise `UserError` on the first invalid argument.

    A letter in the shapes of tensors means the same size throughout a call. With
    `finite`, tensors must hold finite numbers, except outside a `mask`.
    """
    signature = inspect.signature(function)
    owner = function.__qualname__.removesuffix(".__init__")
    names = [name for name in signature.parameters if name != "self"]
    fixed = all(p.kind is not p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.cache  # at the first call, when all annotated classes exist
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
        with jaxtyped("context"):
            for name in [name for name in checks() if name in values]:
                values[name] = checks()[name](values[name], values)
        tensors = {n: x for n, x in values.items() if isinstance(x, Tensor)}
        if finite and tensors:
            check_finite(tensors)
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def annotations(of: Any) -> dict[str, Any]:
    """Return the types of a function's arguments, or of a dataclass's fields."""
    function: Any = vars(of)["__init__"] if isinstance(of, type) else of
    kinds = inspect.get_annotations(function, eval_str=True)
    return {name: kind for name, kind in kinds.items() if name != "return"}


def checker(name: str, annotation: Any) -> Callable[..., Any]:
    """Make a function that checks a value, and returns it as a plain one.

    It raises `UserError` on an invalid value. For a tensor the message also has the
    shapes of the tensors among `others`, the arguments of the same call.
    """
    adapter: TypeAdapter = TypeAdapter(for_pydantic(annotation), config=STRICT)

    def check(value: Any, others: Mapping = MappingProxyType({})) -> Any:
        try:
            return adapter.validate_python(plain(value))
        except ValidationError:
            # Such as 'epochs must be a whole number ≥ 1, got 0'
            message = f"{name} must be {expected(annotation)}, got {shown(value)}"
        tensors = {n: x for n, x in others.items() if isinstance(x, Tensor)}
        shapes = [f"{n} {tuple(x.shape)}" for n, x in tensors.items() if n != name]
        if shapes and isinstance(value, Tensor):
            message += f", next to {', '.join(shapes)}"
        raise UserError(message)

    return check


def for_pydantic(kind: Any) -> Any:
    """Convert a type to one that pydantic can check.

    Numbers and texts stay. For other objects only the class is checked, which for a
    jaxtyping tensor includes its dtype and shape.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return functools.reduce(operator.or_, map(for_pydantic, inner))
    if origin is tuple:  # JSON has lists instead
        convert = BeforeValidator(lambda x: tuple(x) if type(x) is list else x)
        return Annotated[kind, convert]
    if origin is Collection:
        return Annotated[Any, Predicate(functools.partial(holds, inner[0]))]
    if isinstance(kind, type) and kind not in (int, float, Any):
        return Annotated[Any, Predicate(lambda value: isinstance(value, kind))]
    return kind


def holds(kind: Any, values: Any) -> bool:
    """True if `values` is a collection of objects of `kind`, and not a text."""
    several = isinstance(values, Collection) and not isinstance(values, str)
    return several and (kind is Any or all(isinstance(x, kind) for x in values))


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise `UserError` unless a mask holds 0 and 1, and other tensors are finite."""
    mask = tensors.get("mask")
    if mask is not None and not ((mask == 0) | (mask == 1)).all():
        raise UserError(
            "mask must hold only 0 and 1 (1 on response tokens, including EOS)"
        )
    where = "" if mask is None else " where the mask is 1"
    for name, value in tensors.items():
        bad = ~value.isfinite()
        if mask is not None:
            bad &= mask.bool() if value.ndim == mask.ndim else mask.bool().any(-1)
        if bad.any():
            place = bad.nonzero()[0].tolist()
            number = value[tuple(place)].item()
            raise UserError(f"{name} is {number} at {place}: it must be finite{where}")


def plain(value: Any) -> Any:
    """Convert NumPy and torch scalars to Python's numbers, also in lists and dicts."""
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value.item() if getattr(value, "ndim", None) == 0 else value


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UserError`, with the nearest name, if one of `given` is unknown."""
    known, own = list(known), ""
    if "hyperparameters" in known:
        own = ". Those of a loss go into hyperparameters={'epsilon': 0.2}"
    if "config" in known:
        own = ". Settings go into config=TrainConfig(…), which also has hyperparameters"
    if unknown := [name for name in given if name not in known]:
        raise UserError(
            f"{owner} has no setting {unknown[0]!r}{nearest(unknown[0], known)}; it "
            f"has: {', '.join(known) or 'none'}{own}"
        )


UNIONS = (typing.Union, UnionType)
WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text"}
WORDS |= {bool: "True or False", NoneType: "None", Any: "anything", Path: "a path"}
WORDS |= {dict: "a dictionary", Mapping: "a dictionary", Collection: "a list"}
WORDS |= {Callable: "a function"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def expected(annotation: Any) -> str:
    """Describe a type with its range in words: 'a number ≥ 0 and ≤ 1 or None'."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        limits = [asdict(m) for x in inner[1:] for m in getattr(x, "metadata", [])]
        words = [f"{SIGNS[k]} {x}" for limit in limits for k, x in limit.items()]
        words = [f"{expected(inner[0])} {' and '.join(words)}".strip()]
        return ", ".join(words + [part for part in inner[1:] if isinstance(part, str)])
    if origin in UNIONS:
        return " or ".join(map(expected, inner))
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        count = "any number of" if inner[-1] is ... else len(inner)
        return f"{count} values, each {expected(inner[0])}"
    if origin is Collection and inner[0] is not Any:
        return f"a list, each {expected(inner[0])}"
    cls = origin or annotation
    return WORDS.get(cls, f"of type {cls.__name__}")


def check_call(what: str, function: Callable, *arguments: str) -> None:
    """Raise `UserError` unless `function` can be called with these arguments."""
    try:
        with contextlib.suppress(ValueError):  # a builtin may have no signature
            inspect.signature(function).bind(*arguments)
    except TypeError as error:
        known = ", ".join(arguments)
        raise UserError(f"{what} is called as f({known}): {error}") from None


def named(part: Callable) -> str:
    """Return the name of a function, or of an object's class."""
    return getattr(part, "__name__", type(part).__name__)


def shown(value: Any) -> str:
    """Write a value for an error message: a tensor as its shape, a long one cut off."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:77]}…"


def one_line(error: BaseException, limit: int = 300) -> str:
    """Write another library's exception as part of a sentence."""
    words = [type(error).__name__, *([text] if (text := str(error)) else [])]
    return printable(" ".join(": ".join(words).split())[:limit])


def printable(text: str) -> str:
    """Escape characters that move a cursor, change colours or end a line."""
    text = text.replace("\n", " ")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


ELSEWHERE = {
    "lr": "learning_rate",
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "num_iterations": "epochs",
    "ppo_epochs": "epochs",
    "max_steps": "rollouts",
    "batch_size": "prompts_per_rollout",
    "kl_coef": "beta",
    "entropy_coeff": "entropy_bonus",
    "clip_range": "hyperparameters={'epsilon': …}",
    "rloo": "advantage='rloo', reinforce's default",
}
"""Names of other libraries, and ours for the same thing: for errors alone."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean …?)' for an error message, or '' if no name is close."""
    word, names = str(name).lower(), {str(x).lower(): x for x in known}
    if word in ELSEWHERE:
        return f" (here it is called {ELSEWHERE[word]})"
    # Exchanged letters are likelier than wrong ones: gpro is grpo, not gspo.
    close = [other for other in names if sorted(other) == sorted(word)]
    close = close or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""
