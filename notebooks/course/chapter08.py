"""What the cells of chapter 08 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.gmpo import figures as pictures
from course.gmpo.exercises import BROKEN
from course.kit import claims, plots, stale
from course.kit.by_hand import answers, compare, show
from course.kit.plots import tokens
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from experiments import grid
