"""What the cells of chapter 03 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import plots
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises.solutions.chapter03 import broken_run
from course.misreadings import MISREADINGS
from course.plots import groups
from course.runs import of_runs
from course.tables import as_table
from refimpl.models import count_parameters
