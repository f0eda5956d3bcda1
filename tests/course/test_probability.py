"""Chapter 16's figures: where their lines stand."""

import numpy as np
import pytest
import torch

from course.probability import figures as probability


def test_both_bounds_stand_where_the_rules_cut():
    """At p = 0.1 the ratio's bounds are 0.12 and 0.08; at 0.5 ± 0.2 the probability's.

    Above the line where Â > 0, below it where Â < 0.
    """
    half = torch.tensor([0.5, 0.5])
    figure = probability.moves(half, half, torch.tensor([1.0, -1.0]), "A finding")
    for axis, ratio, moved in zip(figure.axes, (0.12, 0.08), (0.7, 0.3)):
        lines = {line.get_label(): line.get_xydata() for line in axis.lines}
        clip, dppo = (
            next(xy for label, xy in lines.items() if label.startswith(name))
            for name in ("GRPO", "DPPO-TV")
        )
        for (x, y), at, bound in ((clip.T, 0.1, ratio), (dppo.T, 0.5, moved)):
            assert np.interp(at, x, y) == pytest.approx(bound, abs=1e-3)
