"""What a misreading is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Misreading:
    """What is said (`claim`), what is so (`correction`), and both as code."""

    name: str
    claim: str
    correction: str
    wrong: Callable
    right: Callable
