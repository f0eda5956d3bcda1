"""`python -m refimpl {bench,real,evidence,gpu-check}`: what is measured in a clone."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from experiments import bench as speed
from experiments import real as pretrained
from experiments.gpu import check
from refimpl.keep.files import unmade, writable_file
from refimpl.validation import UserError


def bench(
    *,
    seeds: int = 10,
    algorithms: tuple[str, ...] = speed.TRAINED,
    model: Literal["tiny", "smollm2"] = "tiny",
    chapters: Path | None = None,
    out: str = "bench.json",
) -> int:
    """Measure speed, memory and accuracy of every method.

    Args:
        model: smollm2 takes hours: name some algorithms, and fewer seeds.
        chapters: time the notebooks in this folder too.
    """
    with unmade(os.path.dirname(out)):
        writable_file(out, "the measurements")
        speed.bench(seeds, Path(out), chapters, algorithms, model)
    return 0


def real(
    *,
    arms: tuple[str, ...] = tuple(pretrained.ARMS),
    settings: tuple[str, ...] = tuple(pretrained.SETTINGS),
    seeds: int = 3,
    workers: int = 1,
    out: str = "real",
) -> int:
    """Every method on a pretrained model; goes on where it stopped.

    Args:
        out: two files: OUT.runs.csv and OUT.rows.csv.gz.
    """
    pretrained.real(out, arms, settings, seeds, workers)
    print(f"wrote {out}.runs.csv and {out}.rows.csv.gz")
    return 0


def evidence_(
    action: Literal["plan", "run", "ledger", "check", "repeat"],
    /,
    *,
    claims: tuple[str, ...] = (),
    workers: int = 1,
    count: int = 10,
    seed: int = 0,
    out: str = "figures/data/evidence",
) -> int:
    """The claims of the papers: which runs are missing, make them, judge them.

    Args:
        action: plan: what is missing, and for how long; run: make it; ledger: all
            verdicts, from the rows; check: is the stored ledger what the rows give;
            repeat: some stored runs, drawn by chance, made again.
        count: how many to repeat.
        seed: of the draw.
        claims: numbers of claims, or names of studies; none: all of them.
        out: OUT.runs.csv, OUT.rows.csv.gz and OUT.ledger.csv.
    """
    from experiments import evidence  # pandas and scipy take a second

    if claims and action in ("ledger", "check"):
        raise UserError(f"evidence {action} is about all claims: leave off --claims")
    chosen = claims or tuple(evidence.NAMES)
    if action == "plan":
        print(evidence.plan(out, chosen, workers))
    elif action == "run":
        evidence.run_all(out, chosen, workers)
        print(f"each claim's runs: {out}.CLAIM.runs.csv and {out}.CLAIM.rows.csv.gz")
    elif action == "ledger":
        print(evidence.write_ledger(out))
    elif action == "repeat":
        print(evidence.repeat_some(out, claims, count, seed))
    else:
        wrong = evidence.check(out)
        print("\n".join(wrong) or "the ledger is what the rows give")
        return 1 if wrong else 0
    return 0


def gpu_check(
    *, device: str = "cuda", out: str = "gpu_check.json", tiny: bool = False
) -> int:
    """Measure what can only be seen on a GPU, within ten minutes.

    Args:
        tiny: try its parts with the tiny presets, as --device cpu --tiny.
    """
    with unmade(os.path.dirname(out)):
        writable_file(out, "the measurements")
        figures = check.gpu_check(device, Path(out), tiny)
    failed = [name for name, part in figures.items() if "error" in part]
    if failed:
        print(f"these could not be measured: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "bench": bench,
    "real": real,
    "evidence": evidence_,
    "gpu-check": gpu_check,
}
