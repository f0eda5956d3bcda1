"""What the cells of chapter 13 take beside `import refimpl as rl`."""

# ruff: noqa: F401

from IPython.display import display

from course import DATA
from course.exercises import check, typed
from course.kit import exercise_runs as of_exercises
from course.kit import plots
from course.kit.plots import stored
from course.kit.runs import watched
from course.kit.tables import as_table
from course.misreadings import MISREADINGS
from course.real_model import figures as pictures
from experiments import real
from experiments.statistics import estimate
from experiments.store import read
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.pretrained import logprobs
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.memory import memory
from refimpl.sampling import Sampling, log_distribution
