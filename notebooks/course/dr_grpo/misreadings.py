"""Misreadings of Dr. GRPO: the constant, the weight of long answers, the std."""

from course.kit.misreading import Misreading
from course.kit.plain import clipped


def loss_over_constant(logp, old_logp, advantages, mask, max_length):
    """−Σ_i Σ_t / (B · L_max), L_max the same for every batch of the run."""
    total = (clipped((logp - old_logp).exp(), advantages[:, None]) * mask).sum()
    return -total / (len(mask) * max_length)


def shares_growing_with_length(lengths):
    """Σ_t of each response's weights, equal for all tokens: |o_i| / Σ_j |o_j|."""
    return [n / sum(lengths) for n in lengths]


def loss_without_std(logp, old_logp, rewards, mask, max_length):
    """One group as in 2503.20783: the constant, and Ã = R − mean R."""
    advantages = rewards - rewards.mean()
    return loss_over_constant(logp, old_logp, advantages, mask, max_length)


def whitened_by_group(rewards):
    """(prompts, G): each group's own mean, and the std of all that is left."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (centred**2).mean().sqrt()


def whitened(rewards):
    """REINFORCE++ (2501.03262) of answers of one length: mean and std of the batch."""
    return (rewards - rewards.mean()) / rewards.std(correction=0)


MISREADINGS = [
    Misreading(
        "constant_is_longest",
        "The constant is the longest response of the batch.",
        "Then it is no constant: it changes from batch to batch, so the same token "
        "counts more in a batch of short responses. Take one number for the run.",
        {"* max_length)": "* mask.sum(-1).max())"},
        loss_over_constant,
    ),
    Misreading(
        "long_weighs_less",
        "Removing 1/|o| makes long answers weigh less.",
        "They weigh more. Every token now weighs the same, so a response weighs in "
        "proportion to its length. Under 1/|o| all responses weighed the same, so the "
        "tokens of long ones weighed little.",
        {"n / sum(lengths)": "1 / n / sum(1 / m for m in lengths)"},
        shares_growing_with_length,
    ),
    Misreading(
        "constant_but_std",
        "Dividing by a constant is Dr. GRPO.",
        "That is half of it. The std still boosts uneven groups. Divisor and std are "
        "two settings, and TRL and verl keep the std unless you turn it off.",
        {
            "rewards - rewards.mean()": (
                "(rewards - rewards.mean()) / (rewards.std() + 1e-6)"
            )
        },
        loss_without_std,
    ),
    Misreading(
        "whitening_spares_solved_prompts",
        "A prompt whose answers are all right has no gradient under REINFORCE++ "
        "either.",
        "Its baseline is the batch's mean, so all these answers are pushed up, and "
        "those of a hard prompt down. The variant with a baseline subtracts the "
        "group's mean first.",
        whitened_by_group,
        whitened,
    ),
]
