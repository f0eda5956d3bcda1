"""What the cells of chapter 04 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.dr_grpo import figures as pictures
from course.exercises import check, typed
from course.kit import plots
from course.kit.by_hand import answers, compare, show
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from refimpl.pretrained.rewards import Sum
