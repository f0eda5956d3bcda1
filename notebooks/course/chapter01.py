"""What the cells of chapter 01 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import plots
from course.by_hand import answers, compare, show
from course.exercises import check
from course.exercises import runs as of_exercises
from course.habits import more_sft, survey
from course.plots import estimators
from course.runs import of_runs
from course.tables import as_table
from refimpl.tasks.world import habit
