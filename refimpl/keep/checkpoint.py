"""Former names of `refimpl.checkpoint`."""

from pathlib import Path

from refimpl.checkpoint import LOCK, NAME, CheckpointError, load

__all__ = ["NAME", "CheckpointError", "files", "load"]


def files(folder: str | Path) -> dict[str, Path]:
    """Name what a run writes into its folder."""
    return {"its checkpoint": Path(folder) / NAME, "its lock": Path(folder) / LOCK}
