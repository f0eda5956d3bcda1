"""The commands of `python -m experiments`.

They make and judge the measurements that the course shows, and run in a clone.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments import evidence as stored
from experiments.bench import bench
from experiments.gpu.check import gpu_check
from experiments.gpu.gates import gates
from experiments.long import long
from experiments.real import real
from experiments.store import DATA
from refimpl.validation import UserError


def evidence(
    action: Literal["plan", "run", "ledger", "check", "repeat"],
    /,
    *,
    claims: tuple[str, ...] = (),
    workers: int = 1,
    count: int = 10,
    seed: int = 0,
    out: Path = DATA / "evidence",
) -> int:
    """Make the runs that the papers' claims need, and judge the claims.

    Args:
        action: plan prints which runs are missing and how long they take; run makes
            them; ledger computes all verdicts from the rows; check compares the stored
            ledger with the rows; repeat makes some stored runs again, chosen at random.
        claims: numbers of claims, or names of studies; all of them unless given.
        workers: runs at the same time, each in its own process.
        count: number of runs to repeat.
        seed: seed of the choice of runs to repeat.
        out: path and name of the store: OUT.runs.csv.xz, OUT.rows.csv.xz and
            OUT.ledger.csv.
    """
    if claims and action in ("ledger", "check"):
        raise UserError(f"evidence {action} is about all claims: leave off --claims")
    chosen = claims or tuple(stored.NAMES)
    if action == "plan":
        print(stored.plan(out, chosen, workers))
    elif action == "run":
        stored.run_all(out, chosen, workers)
        print(f"each claim's runs: {out}.CLAIM.runs.csv.xz and {out}.CLAIM.rows.csv.xz")
    elif action == "ledger":
        print(stored.write_ledger(out))
    elif action == "repeat":
        print(stored.repeat_some(out, claims, count, seed))
    else:
        wrong = stored.check(out)
        print("\n".join(wrong) or "the stored ledger agrees with the rows")
        return bool(wrong)
    return 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "bench": bench,
    "real": real,
    "long": long,
    "evidence": evidence,
    "gpu-check": gpu_check,
    "gates": gates,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns its status: 2 after an error that the user can correct."""
    try:
        status = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="python -m experiments", args=arguments
        )
        return int(status or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
