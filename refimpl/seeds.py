"""Seeds: where every random number of a run comes from.

A run names its draws by seed. `REFIMPL_SALT=n` is an offset of all of them: it enters
every seed (problems, demonstrations, initial weights, sampling, shuffles,
evaluation). Unset, empty or 0 it changes nothing. A result that holds only for one salt
was luck; `python -m tests.tools.other_runs` looks for such results in the notebooks.
"""

import hashlib
import os

import torch

from refimpl.validation import UserError


def salt() -> int:
    """`$REFIMPL_SALT`, 0 if unset. Raises `UserError` if it is no whole number ≥ 0."""
    text = os.environ.get("REFIMPL_SALT", "").strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UserError(
            f"REFIMPL_SALT must be a whole number ≥ 0, got {text:.20}; unset it, or "
            "set REFIMPL_SALT=0, for the seeds of the committed notebooks"
        )
    return int(text)


def salted(seed: int) -> int:
    """`seed` itself without a salt; with one, a number that both decide.

    As torch takes it: any whole number ≥ 0, less what exceeds 63 bits.
    """
    return _digest(f"{seed} salt {salt()}") if salt() else seed % 2**63


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed of its own for every (run, rollout, purpose)."""
    return _digest(f"{seed} {step} {purpose}")


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device`, seeded with `seed` and the salt."""
    return torch.Generator(device).manual_seed(salted(seed))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
