"""Seeds: every random number of a run comes from a generator with a seed of its own.

`REFIMPL_SALT=n` changes every seed (problems, demonstrations, initial weights,
sampling, shuffles, evaluation). If it is unset, empty or 0, it has no effect. A result
that holds only for one salt was luck; `notebooks/guide/machines.md` has the command
that looks for such results in the notebooks.
"""

import hashlib
import os

import torch


def salt() -> int:
    """Return `$REFIMPL_SALT`, 0 if unset. Raises `ValueError` if it is no number."""
    return int(os.environ.get("REFIMPL_SALT", "").strip() or "0")


def salted(seed: int) -> int:
    """Combine `seed` with the salt; without a salt, return `seed`.

    The result has 63 bits, which torch accepts; higher bits of `seed` are dropped.
    """
    return _digest(f"{seed} salt {salt()}") if salt() else seed % 2**63


def seed_for(seed: int, step: int, purpose: str) -> int:
    """Return the seed of a (run, rollout, purpose)."""
    return _digest(f"{seed} {step} {purpose}")


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on `device`, seeded with `seed` and the salt."""
    return torch.Generator(device).manual_seed(salted(seed))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
