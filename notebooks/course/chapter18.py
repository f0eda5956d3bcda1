"""What the cells of chapter 18 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import plots
from course.kit.runs import watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.several_turns import figures as pictures
