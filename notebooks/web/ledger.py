"""The ledger: the claims with their verdicts, and every stored run behind them."""

import base64
import html
import json
from functools import cache

from course.kit import claims
from experiments.arms import ARMS
from experiments.claims import CLAIMS, SECOND, Claim
from experiments.grid import OLD, WORLDS, Cell
from refimpl.algorithms import ALGORITHMS
from web.page import Page, table

CELL = ("arm", "world", "updates", "rate", "changed", "answers")
COLUMNS = {
    "arm": "method",
    "world": "world",
    "changed": "changed",
    "updates": "K",
    "rate": "learning rate",
    "start": "start",
    "seed": "seed",
    "reward": "reward",
    "accuracy": "accuracy",
}
"""What the script calls a column, and what the page does."""
LEAD = """<h1 id="top">The ledger</h1>
<p>Sixteen claims of the papers, each judged in this course's small world from runs that
are stored with it, and one of an engine's change log (17). A claim's question, outcome
and smallest effect that matters were named before its runs were made.
One rule gives every verdict: a claim is <em>reproduced</em> or <em>contradicted</em>
where the whole interval lies beyond that size, <em>none that matters</em> where it lies
within it on both sides, and else <em>undecided</em>. Lines with a letter are second
outcomes, and are not counted. Of the first five warm starts only one can still be had;
runs from start 10 on begin from weights that lie in the repository, and are never
paired with the older ones.
<a href="12_claims.html">Chapter 12</a> explains how to read it.</p>"""
RUNS = """<section id="stored" hidden>
<h2 id="runs">The stored runs</h2>
<p>{count} runs of 30 rollouts, those of 10b of three. <em>Reward</em> is the mean of
the last ten and <em>accuracy</em> is measured on held-out problems at the end. A button
in the first column draws the reward of every rollout, with the other runs of the same
settings as thin lines. A heading sorts.</p>
<p class="filters">{filters}</p>
<p id="count" role="status"></p>
<div class="table" tabindex="0"><table id="run-table"><thead><tr>{head}</tr></thead>
<tbody></tbody></table></div>
<p><button type="button" id="more">Show more runs</button></p>
</section>
<noscript><p>The table of the stored runs needs JavaScript.</p></noscript>
<script defer src="assets/elements.js"></script>
<script defer src="assets/ledger.js"></script>
<script defer src="ledger-data.js"></script>"""


def page(group: str) -> Page:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button" data-key="{key}">'
        f"{name}</button></th>"
        for key, name in COLUMNS.items()
    )
    verdicts = sorted({line["verdict"] for line in claims.judged()})
    named = sorted({name for claim in CLAIMS for name in methods(claim)})
    above = select("verdict", "Verdict", verdicts) + select("method", "Method", named)
    every = (*CLAIMS, *SECOND)
    numbers = {str(one.number): f"{one.number} · {one.title}" for one in every}
    filters = select("of-claim", "Claim", numbers) + select("of-arm", "Method", [*ARMS])
    filters += select("of-world", "World", [*WORLDS])
    runs = RUNS.format(
        count=f"{len(claims.everything()):,}", filters=filters, head=head
    )
    return Page(
        "ledger.html",
        "The ledger",
        f'{LEAD}<h2 id="claims">The claims</h2>'
        f'<p class="filters" hidden>{above}</p>{claimed()}{runs}',
        group,
        files={"ledger-data.js": f"ledger({data()});".encode()},
        styles=("ledger.css",),
        summary="Seventeen claims with verdict, effect and interval, and the reward of "
        "every stored run.",
    )


def select(name: str, label: str, values: list[str] | dict[str, str]) -> str:
    """A choice among values, which may have texts of their own; at first all."""
    texts = values if isinstance(values, dict) else dict(zip(values, values))
    options = "".join(
        f'<option value="{html.escape(value)}">{html.escape(text)}</option>'
        for value, text in texts.items()
    )
    return (
        f'<label>{label} <select id="{name}"><option value="">all</option>{options}'
        "</select></label> "
    )


def claimed() -> str:
    """The claims as a table that needs no script."""
    known = {str(claim.number): claim for claim in (*CLAIMS, *SECOND)}
    lines = claims.judged() + claims.seconds()
    rows = [row(line, known[line["claim"]]) for line in lines]
    head = ["claim", "verdict", "effect (95 % interval)", "n", "would matter", "see"]
    return table(head, rows)


def row(line: dict[str, str], claim: Claim) -> list[str]:
    effect, interval, unit, runs, _, matters, _ = claims.measured(line)
    starts, pairs = runs.split(", ")
    verdict, number = line["verdict"], claim.number
    why = f"<br><small>{html.escape(line['why'])}</small>" if line["why"] else ""
    owned = html.escape("|".join(methods(claim)))
    asked = html.escape(f"{claim.question} {claim.source}")
    used = sum(len(cells()[one]) for one in of(claim))
    return [
        f'<span id="claim-{number}" data-methods="{owned}" data-verdict="{verdict}">'
        f"{number} · {html.escape(claim.title)}</span><br><small>{asked}</small>",
        f'<strong class="verdict {verdict.replace(" ", "-")}">{verdict}</strong>{why}',
        f"{effect} ({interval}) <small>{html.escape(unit)}</small>",
        f"{starts} warm starts, {pairs} pairs or runs",
        matters,
        f'{places(claims.parent(line))} <button type="button" data-claim="{number}" '
        f"hidden>its {used} runs</button>",
    ]


def places(number: int) -> str:
    """Links to the claims of chapter 12 and to the claim's own chapter."""
    home = next(name for name, owned in claims.CHAPTERS.items() if number in owned)
    return (
        f'<a href="12_claims.html#sixteen-claims">chapter 12</a>, '
        f'<a href="{home}.html">chapter {home[:2]}</a>'
    )


def methods(claim: Claim) -> list[str]:
    """The published methods that decide a claim."""
    names = dict.fromkeys(ARMS[cell.arm].algorithm for cell in claim.effect.cells)
    return [ALGORITHMS[name].title for name in names if name in ALGORITHMS]


def of(claim: Claim) -> list[tuple]:
    """The keys of the runs that decide a claim, each once: cells, from its starts."""
    old = claim.starts[0] in OLD
    return list(dict.fromkeys((*key(cell), old) for cell in claim.effect.cells))


def key(cell: Cell) -> tuple:
    changed = tuple(sorted(cell.changed))
    return (cell.arm, cell.world, cell.updates, cell.rate, changed, cell.answers)


@cache
def cells() -> dict[tuple, list]:
    """The stored runs by what they have in common: a cell, and old starts or new."""
    runs = claims.everything()
    runs = runs.assign(old=runs["start"].isin(OLD))
    return dict(runs.groupby([*CELL, "old"], sort=True).groups)


def data() -> str:
    """Cells, and their runs: start, seed, reward and accuracy in thousandths, curve."""
    runs, owners, found = claims.everything(), {}, []
    for claim in (*CLAIMS, *SECOND):
        for name in of(claim):
            owners.setdefault(name, []).append(claim.number)
    for name, members in cells().items():
        arm, world, updates, rate, changed, *_ = name
        chosen = zip(members, runs.loc[members].itertuples())
        found.append(
            {
                "arm": arm,
                "world": world,
                "updates": updates,
                "rate": rate,
                "changed": ", ".join(f"{n}={v}" for n, v in changed) or "nothing",
                "claims": sorted(map(str, set(owners.get(name, ())))),
                "runs": [
                    [r.start, r.seed, *thousandths(r.reward, r.accuracy), curve(run)]
                    for run, r in chosen
                ],
            }
        )
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def thousandths(*values: float) -> list[int]:
    return [round(1000 * value) for value in values]


def curve(run: str) -> str:
    """The reward of every rollout, a byte each: 0 is 0 and 250 is 1."""
    rewards = claims.rows_of(run)["reward"]
    return base64.b64encode(bytes(round(250 * x) for x in rewards)).decode()
