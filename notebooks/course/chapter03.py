"""What the cells of chapter 03 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.grpo import figures as groups
from course.grpo.exercises import broken_run
from course.kit import plots
from course.kit.by_hand import answers, compare, show
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from refimpl.models import count_parameters
