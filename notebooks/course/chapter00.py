"""What the cells of chapter 00 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import plots
from course.exercises import check
from course.habits import by_temperature, more_sft, survey
from course.plots import overview, world
from course.tables import as_table
from refimpl.models import build, count_parameters
