"""Solutions to the exercises of chapter 15."""

SHARE = 0.0
"""15.1: π_old is computed from the weights that make the first update, so
π_θ/π_old is 1 for every token, however old the sampler is."""


def trained_on(pi, mu, cap):
    """15.2: μ · min(π/μ, C), divided by its sum."""
    kept = [min(p, cap * q) for p, q in zip(pi, mu)]
    return [x / sum(kept) for x in kept]


LENGTH = 256
"""15.3: the dotted line of the right panel is at 0.4 for 64 tokens, at 1.95 for 256."""

LINE = 5
"""15.4: `old` comes from the sampler already, so `ratio` is π_θ/μ, and w multiplies
by the learner's distance to the sampler a second time. Leave the weight out."""
