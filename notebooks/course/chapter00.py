"""What the cells of chapter 00 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import plots
from course.kit.habits import by_temperature, more_sft, survey
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.start_here import control, world
from course.start_here import figures as overview
from refimpl.models import build, count_parameters
