"""What the cells of chapter 10 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import claims, plots, stale
from course.kit.by_hand import answers, compare, show
from course.kit.plots import stored, tokens
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.sapo import figures as pictures
from course.sapo.exercises import BROKEN
from course.sapo.explorer import sapo_explorer
from experiments import grid
