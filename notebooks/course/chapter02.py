"""What the cells of chapter 02 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import plots
from course.by_hand import answers, compare, show
from course.exercises import check
from course.misreadings import MISREADINGS
from course.plots import ppo as pictures
from course.plots import tokens
from course.runs import of_runs
from course.tables import as_table
from refimpl.algorithms import clip
from refimpl.models import count_parameters, make_critic
from refimpl.scoring import values
from refimpl.tasks.world import HABITS, habit
