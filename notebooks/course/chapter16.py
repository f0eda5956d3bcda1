"""What the cells of chapter 16 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import claims, elsewhere, fork, plots
from course.by_hand import answers, compare
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import probability as pictures
from course.tables import as_table
from refimpl.lab.claims import CLAIMS, FIRST_RUNS, STUDIES
from refimpl.lab.statistics import estimate
