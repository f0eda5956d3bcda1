"""Texts of a command line as values: `name=value`, each of its own type."""

import typing
from collections.abc import Iterable
from types import NoneType
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from refimpl.validation import STRICT, UserError, sentence


def parse_pairs(flag: str, pairs: Iterable[str], example: str) -> dict[str, str]:
    """`name=value` texts of a command line, still as text."""
    texts = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if not text:
            raise UserError(f"{flag} takes name=value, as {example}, got {pair!r}")
        texts[name] = text
    return texts


def parse(name: str, annotation: Any, text: str) -> Any:
    """`text` from a command line as what `annotation` says (`false` is False, several
    values stand with commas)."""
    if text.lower() == "none" and NoneType in typing.get_args(annotation):
        return None
    adapter: TypeAdapter = TypeAdapter(annotation, config=STRICT)
    bare = annotation
    if typing.get_origin(annotation) is Annotated:
        bare = typing.get_args(annotation)[0]
    try:
        if typing.get_origin(bare) is not tuple:
            return adapter.validate_strings(text)
        kinds, parts = typing.get_args(bare), text.split(",")
        each = [TypeAdapter(kind, config=STRICT) for kind in kinds[: len(parts)]]
        read = [kind.validate_strings(part) for kind, part in zip(each, parts)]
        return adapter.validate_python((*read, *parts[len(read) :]))
    except ValidationError:
        raise UserError(sentence(name, annotation, text)) from None
