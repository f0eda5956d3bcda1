"""What the cells of chapter 02 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import plots
from course.by_hand import answers, compare, show
from course.exercises import check
from course.habits import sorted_by_habit
from course.misreadings import MISREADINGS
from course.plots import overview, tokens
from course.plots import ppo as pictures
from course.runs import of_runs
from course.tables import as_table
from refimpl.algorithms import clip, value_loss
from refimpl.models import count_parameters, make_critic
from refimpl.scoring import values
from refimpl.tasks.world import HABITS, habit
