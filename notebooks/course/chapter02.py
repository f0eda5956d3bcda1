"""What the cells of chapter 02 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course.exercises import check, typed
from course.kit import plots
from course.kit.by_hand import answers, compare, show
from course.kit.plots import tokens
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.ppo import figures as pictures
from refimpl.algorithms.ppo import clipped
from refimpl.logprobs import values
from refimpl.models import count_parameters, make_critic
from refimpl.tasks.world import HABITS, habit
