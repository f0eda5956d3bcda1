"""What the cells of appendix 10b take beside `import refimpl as rl`."""

# ruff: noqa: F401

from course.kit import claims, plots
from course.kit.plots import stored
from course.kit.tables import as_table
from course.sapo import figures as pictures
from refimpl.lab import grid
from refimpl.lab.arms import ARMS, AT_PACE
from refimpl.lab.claims import LOSING
from refimpl.lab.effects import Mean
from refimpl.lab.finding import AFTERWARDS, BETWEEN, FINDING, HALF_OCTAVES
from refimpl.lab.statistics import estimate
