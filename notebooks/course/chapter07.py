"""What the cells of chapter 07 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.cispo import figures as pictures
from course.cispo.exercises import BROKEN
from course.exercises import check, typed
from course.kit import plots
from course.kit.by_hand import answers, compare, show
from course.kit.plots import tokens
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
