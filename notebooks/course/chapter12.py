"""What the cells of chapter 12 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.claims import figures as pictures
from course.exercises import check, typed
from course.kit import claims, plots
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from experiments import evidence
from experiments.claims import (
    PAPERS as CLAIMS,
)
from experiments.claims import (
    RATES,
    Contrast,
    breaking_rates,
)
from experiments.grid import Cell
from experiments.statistics import benjamini_hochberg, estimate, holms
from experiments.store import read
