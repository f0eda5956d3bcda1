"""Former names of `refimpl.checkpoint`."""

from refimpl.checkpoint import Interrupted, signals_to

__all__ = ["Interrupted", "signals_to"]
