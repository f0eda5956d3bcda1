"""What the cells of chapter 19 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.critic_returns import figures as pictures
from course.exercises import check, typed
from course.kit import plots
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
