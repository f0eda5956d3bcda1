"""What the cells of chapter 01 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import exercise_runs as of_exercises
from course.kit import plots
from course.kit.by_hand import answers, compare, show
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.policy_gradient import figures as estimators
from refimpl.tasks.world import habit
