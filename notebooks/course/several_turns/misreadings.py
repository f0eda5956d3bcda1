"""Misreadings of responses with several turns: chapter 18."""

import torch

from course.kit.misreading import Misreading


def mean_over_the_span(z, mask):
    """log s_i with the observation's tokens in sum and length."""
    span = (mask.cumsum(-1) > 0) & (mask.flip(-1).cumsum(-1).flip(-1) > 0)
    return (z * span).sum(-1) / span.sum(-1)


def mean_over_own_tokens(z, mask):
    """log s_i over what the policy wrote."""
    return (z * mask).sum(-1) / mask.sum(-1)


def _gae(rewards, values, order, lam):
    """Â over the positions `order` of one response, γ = 1."""
    A, after, found = 0.0, 0.0, torch.zeros_like(values)
    for t in reversed(order):
        A = rewards[t] + after - values[t] + lam * A
        found[t], after = A, values[t]
    return found


def reward_on_the_last_own_token(reward, values, mask, lam):
    """The reward stands on the last token that the policy wrote."""
    own = mask.nonzero()[:, 0].tolist()
    rewards = torch.zeros_like(values)
    rewards[own[-1]] = reward
    return _gae(rewards, values, own, lam)


def ratio_after_encoding_again(logp, logp_again):
    """exp of the difference of the response's log-probs, under its new tokens."""
    return (logp_again.sum() - logp.sum()).exp()


def ratio_of_kept_ids(logp, logp_again):
    """The tokens are those that were sampled, so nothing has moved yet."""
    return (logp.sum() - logp.sum()).exp()


MISREADINGS = (
    Misreading(
        "turns_count_the_span",
        "|o| is the length of the response, tool output included.",
        "|o| counts what the policy wrote. If it includes the tool's tokens, the own "
        "tokens of a response that calls a tool weigh less.",
        mean_over_the_span,
        mean_over_own_tokens,
    ),
    Misreading(
        "turns_reward_on_the_observation",
        "The reward stands on the last token of the response.",
        "It stands on the last token that the policy wrote. On an observation GAE "
        "never reaches it, and a rewarded answer is pushed down.",
        {"own[-1]": "-1"},
        reward_on_the_last_own_token,
    ),
    Misreading(
        "turns_encoded_again",
        "Decode the conversation so far and encode it again for the next turn.",
        "The same text may be split into other tokens, which nobody sampled. Keep the "
        "ids.",
        ratio_after_encoding_again,
        ratio_of_kept_ids,
    ),
)
