"""The settings that make TRL 1.16 and verl 0.9.1 compute each method's loss."""

from collections.abc import Iterable

from course.kit import methods

ENGINES = "TRL", "verl"


def text(name: str, engine: str) -> str:
    """A method's settings there, or why there are none; "" if nobody has looked."""
    entry = methods.of(name).engines.get(engine)
    return entry.text if entry else ""


def rows(names: Iterable[str]) -> list[tuple[str, ...]]:
    """A table's lines: the method's name here, its settings in TRL and in verl."""
    return [(name, *(text(name, one) or "–" for one in ENGINES)) for name in names]
