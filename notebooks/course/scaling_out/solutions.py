"""Solutions to the exercises of chapter 14."""

UPDATES_IN_TRL = 8
"""14.1: a rollout lasts for 16 micro-steps, and 4 of them make one optimiser step. Two
passes: 2 · 16 / 4. The batch of a device and the number of processes do not matter."""

UPDATES_IN_VERL = 12
"""14.2: 512 / 128 mini-batches, both counted in prompts, three times. `rollout.n` does
not matter, and a micro-batch is not an update."""


def policy_loss(old_log_prob, log_prob, advantages, response_mask):
    """14.3: the coefficient gate · r · Â as a constant, times log π."""
    ratio = (log_prob - old_log_prob).exp().detach()
    gate = (1 - (ratio - 1).abs() / 0.5).clamp(min=0)
    objective = gate * ratio * advantages * log_prob
    return -(objective * response_mask).sum() / response_mask.sum()


LINE = 4
"""14.4: both ranks sample the same prompts with the same seed, so the second half of
every group is a copy of the first. `seed=(step, rank)` mends it."""

GAIN = 0.3
"""14.5: from 0.44 to 0.74. The interval of the mean gain, 0.17 to 0.44, says how little
five warm starts can tell about its size."""
