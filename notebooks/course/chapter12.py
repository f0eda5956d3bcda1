"""What the cells of chapter 12 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA
from course.claims import figures as pictures
from course.exercises import check
from course.kit import claims, plots, stale
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from refimpl.lab import evidence
from refimpl.lab.claims import (
    PAPERS as CLAIMS,
)
from refimpl.lab.claims import (
    RATES,
    STUDIES,
    Best,
    Breaking,
    Contrast,
    breaking_rates,
    of_cell,
    sweep,
)
from refimpl.lab.grid import Cell
from refimpl.lab.statistics import benjamini_hochberg, estimate, holms
from refimpl.lab.store import read
