"""What the cells of appendix 10b take beside `import refimpl as rl`."""

# ruff: noqa: F401

from course.kit import claims, plots
from course.kit.plots import stored
from course.kit.tables import as_table
from course.sapo import figures as pictures
from experiments import grid
from experiments.arms import ARMS, AT_PACE
from experiments.claims import LOSING
from experiments.effects import Mean
from experiments.finding import AFTERWARDS, BETWEEN, FINDING, HALF_OCTAVES
from experiments.statistics import estimate
