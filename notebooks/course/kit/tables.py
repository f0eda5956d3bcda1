"""Tables as a page shows them: Markdown, which survives a phone."""

from collections.abc import Iterable, Sequence

import pandas as pd
from IPython.display import Markdown, display
from tabulate import tabulate


def as_table(
    rows: pd.DataFrame | Iterable[Iterable[object]],
    headers: Sequence[str] = (),
    **options,
) -> None:
    """Show rows under their headers; `options` are tabulate's, as floatfmt=".2f"."""
    display(markdown(rows, headers, **options))


def markdown(
    rows: pd.DataFrame | Iterable[Iterable[object]],
    headers: Sequence[str] = (),
    **options,
) -> Markdown:
    """The table itself. A bar in a text is no edge of a cell."""
    rows = rows.values.tolist() if isinstance(rows, pd.DataFrame) else rows
    cells = [[escaped(cell) for cell in row] for row in rows]
    heads = [escaped(head) for head in headers] or [""] * max(map(len, cells))
    return Markdown(tabulate(cells, heads, tablefmt="pipe", **options))


def escaped(cell: object) -> object:
    return cell.replace("|", "\\|") if isinstance(cell, str) else cell
