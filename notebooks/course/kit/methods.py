"""Facts about a method other than its loss: `notebooks/methods.toml`, checked.

A missing entry is not an error: `of` answers for any name, and a part that nobody wrote
is empty.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from refimpl.algorithms import ALGORITHMS
from refimpl.validation import UserError, nearest

FILE = Path(__file__).resolve().parents[2] / "methods.toml"
KINDS = {
    "settings": "settings",
    "partly": "partly",
    "absent": "absent",
    "not_found": "not found",
}
"""Keys that describe a method in an engine, and how each is shown."""


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(Table):
    """A method in an engine: one of the first four keys, what differs, the source."""

    settings: str = ""
    partly: str = ""
    absent: str = ""
    not_found: str = ""
    differs: str = "none noted"
    source: str = ""

    @property
    def key(self) -> str:
        return next(key for key in KINDS if getattr(self, key))

    @property
    def settable(self) -> bool:
        return bool(self.settings or self.partly)

    @property
    def text(self) -> str:
        """What to set, or why nothing can be."""
        return getattr(self, self.key)


class Several(Entry):
    methods: tuple[str, ...]


class Engine(Table):
    """An engine and what was read of it; `source` serves entries without their own.

    `others` names values of its options that belong to no entry. A `{word}` in its
    entries is replaced by its text in `words`. An entry in `several` applies to each of
    its methods.
    """

    read: str
    source: str
    others: str = ""
    words: dict[str, str] = {}
    several: tuple[Several, ...] = ()


class Method(Table):
    """`look` is a colour and a dash: a format of `axis.plot`, or lengths and gaps."""

    chapter: str = ""
    misreading: str = ""
    formula: str = ""
    look: tuple[str, str | tuple[float, ...]] | None = None
    engines: dict[str, Entry] = {}


class Known(Table):
    engines: dict[str, Engine]
    method: dict[str, Method]
    papers: dict[str, tuple[str, str]]
    """Author and title by arXiv id."""


def read(text: str) -> Known:
    """The file's tables, each engine's entries with its words and sources in them.

    Raises `UserError`, which names the place, for an unknown key, method or engine, a
    word without an explanation, an entry that does not say exactly one thing, or a
    second entry for one method.
    """
    try:
        known = Known.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{FILE.name}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{FILE.name}, {place}: {first['msg']}") from error
    refuse("method", known.method, ALGORITHMS)
    methods = {}
    for name, method in known.method.items():
        refuse(f"method.{name}.engines", method.engines, known.engines)
        entries = {
            key: whole(f"method.{name}.engines.{key}", entry, known.engines[key])
            for key, entry in method.engines.items()
        }
        methods[name] = method.model_copy(update={"engines": entries})
    for key, engine in known.engines.items():
        for entry in engine.several:
            entry = whole(f"engines.{key}.several", entry, engine)
            refuse(f"engines.{key}.several", entry.methods, methods)
            for name in entry.methods:
                if methods[name].engines.setdefault(key, entry) is not entry:
                    raise UserError(f"{FILE.name}: {name} has two entries for {key}")
    return known.model_copy(update={"method": methods})


def refuse(place: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UserError` for the first name that is not known."""
    for name in given:
        if name not in known:
            raise UserError(
                f"{FILE.name}, {place}: no {name!r} is known{nearest(name, known)}"
            )


def whole(place: str, entry: Entry, engine: Engine) -> Entry:
    """The entry with its source, and its engine's words for theirs."""
    if sum(bool(getattr(entry, key)) for key in KINDS) != 1:
        raise UserError(f"{FILE.name}, {place}: give one of {', '.join(KINDS)}")
    texts = {key: text for key, text in entry if isinstance(text, str)}
    texts["source"] = entry.source or engine.source
    return entry.model_copy(
        update={key: said(place, text, engine.words) for key, text in texts.items()}
    )


def said(place: str, text: str, words: Mapping[str, str]) -> str:
    try:
        return text.format_map(words)
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{FILE.name}, {place}: no word {error} in {text!r}") from error


KNOWN = read(FILE.read_text(encoding="utf-8"))


def of(name: str) -> Method:
    """Return what is known of a method, by `Algorithm.name`; nothing for a new one."""
    return KNOWN.method.get(name, Method())
