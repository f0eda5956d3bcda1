"""Solutions to the exercises of chapter 16."""


def ratio_bounds(mu, delta):
    """16.1: |π − μ| ≤ δ is |r − 1| ≤ δ/μ, and no probability leaves [0, 1]."""
    return max(0.0, 1 - delta / mu), min(1 / mu, 1 + delta / mu)


COEFFICIENT = 0.0
"""16.2: 0.7 lies outside (0.8, 1.2), and GLM-5 does not ask in which direction the
token moves. GRPO and DPPO keep a good token that has become rarer."""

CROSSING = -2.0
"""16.3: the gradient vanishes where Â = τ z, at z = Â/τ = −1/0.5."""

LINE = 6
"""16.4: with one update the learner is π_old, so what is compared is a policy with
itself. The mask has to compare with the sampler: `(logp.exp() - mu.exp()).detach()`."""
