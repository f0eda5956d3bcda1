"""The ledger: the claims with their verdicts, and every stored run behind them."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from course.kit import claims
from experiments.arms import ARMS
from experiments.claims import CLAIMS, SECOND, Claim
from experiments.grid import OLD, WORLDS, Cell
from refimpl.algorithms import ALGORITHMS
from web.page import Page, made

EVERY = {str(claim.number): claim for claim in (*CLAIMS, *SECOND)}
CELL = ("arm", "world", "updates", "rate", "changed", "answers")


def page(group: str) -> Page:
    shown = list(judged())
    written = made(
        "ledger",
        "The ledger",
        group,
        "Seventeen claims with verdict, effect and interval, and the reward of every "
        "stored run.",
        claims=shown,
        verdicts=sorted({row["verdict"] for row in shown}),
        named=sorted({name for row in shown for name in row["methods"]}),
        count=len(claims.everything()),
        titles={n: f"{n} · {claim.title}" for n, claim in EVERY.items()},
        arms=[*ARMS],
        worlds=[*WORLDS],
    )
    return replace(written, files={"ledger-data.js": f"ledger({data()});".encode()})


def judged() -> Iterator[dict]:
    """Return the table's rows, one per claim."""
    for line in claims.judged() + claims.seconds():
        claim, number = EVERY[line["claim"]], claims.parent(line)
        effect, interval, unit, _, _, matters, _ = claims.measured(line)
        yield line | {
            "claim": claim,
            "effect": effect,
            "interval": interval,
            "unit": unit,
            "matters": matters,
            "methods": methods(claim),
            "used": sum(len(cells()[cell]) for cell in of(claim)),
            "home": next(k for k, its in claims.CHAPTERS.items() if number in its),
        }


def methods(claim: Claim) -> list[str]:
    """Return the published methods whose runs decide a claim."""
    names = dict.fromkeys(ARMS[cell.arm].algorithm for cell in claim.effect.cells)
    return [ALGORITHMS[name].title for name in names if name in ALGORITHMS]


def of(claim: Claim) -> list[tuple]:
    """Return the keys of the cells, with old or new starts, that decide a claim."""
    old = claim.starts[0] in OLD
    return list(dict.fromkeys((*key(cell), old) for cell in claim.effect.cells))


def key(cell: Cell) -> tuple:
    changed = tuple(sorted(cell.changed))
    return (cell.arm, cell.world, cell.updates, cell.rate, changed, cell.answers)


@cache
def cells() -> dict[tuple, list]:
    """Group the stored runs by cell, and by old or new starts."""
    runs = claims.everything()
    runs = runs.assign(old=runs["start"].isin(OLD))
    return dict(runs.groupby([*CELL, "old"], sort=True).groups)


def data() -> str:
    """Write each cell's runs: start, seed, reward, accuracy (in thousandths), curve."""
    runs, rows = claims.everything(), []
    for name, members in cells().items():
        arm, world, updates, rate, changed, *_ = name
        chosen = zip(members, runs.loc[members].itertuples())
        rows.append(
            {
                "arm": arm,
                "world": world,
                "updates": updates,
                "rate": rate,
                "changed": ", ".join(f"{n}={v}" for n, v in changed) or "nothing",
                "claims": sorted(n for n, claim in EVERY.items() if name in of(claim)),
                "runs": [
                    [r.start, r.seed, *thousandths(r.reward, r.accuracy), curve(run)]
                    for run, r in chosen
                ],
            }
        )
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def thousandths(*values: float) -> list[int]:
    return [round(1000 * value) for value in values]


def curve(run: str) -> str:
    """Encode the reward of every rollout in a byte: 0 is 0 and 250 is 1."""
    rewards = claims.rows_of(run)["reward"]
    return base64.b64encode(bytes(round(250 * x) for x in rewards)).decode()
