"""Misreadings of distillation on the student's own samples: chapter 17."""

import torch

from course.kit.misreading import Misreading


def _expected(own, advantage):
    """E over tokens a drawn from π of ∇_logits log π(a) · Â(a), in V logits."""
    pi = own.exp()
    return pi * (advantage - (pi * advantage).sum(-1, keepdim=True))


def penalty_of_the_state(own, teacher):
    """Â = −KL(π ‖ π_T), the same for every token that could be drawn."""
    kl = (own.exp() * (own - teacher)).sum(-1, keepdim=True)
    return _expected(own, -kl.expand_as(own))


def penalty_of_the_token(own, teacher):
    """Â = log π_T − log π of the token drawn."""
    return _expected(own, teacher - own)


def differentiated_k1(own, teacher):
    """log π − log π_T of the sampled token as a loss: −E[∇ log π] = 0."""
    logits = own.detach().clone().requires_grad_()
    loss = (own.exp().detach() * (logits.log_softmax(-1) - teacher)).sum()
    return -torch.autograd.grad(loss, logits)[0]


def forward(own, teacher):
    """−∇ of KL(π_T ‖ π), as if the samples were the teacher's."""
    return teacher.exp() - own.exp()


def gate_on_the_teacher(own, sampler, teacher, low, high):
    """w Â of sampled tokens, 0 where π_T/π is outside the band."""
    r = (teacher - own).exp()
    return ((r >= low) & (r <= high)) * (own - sampler).exp() * (teacher - own)


def gate_on_the_sampler(own, sampler, teacher, low, high):
    """The same where w = π/μ is: MOPD (2601.02780, 2606.30406)."""
    w = (own - sampler).exp()
    return ((w >= low) & (w <= high)) * w * (teacher - own)


MISREADINGS = [
    Misreading(
        "distil_penalty_of_the_state",
        "The KL over the whole vocabulary is a better penalty than one token's.",
        "As an advantage it is the same for every token that could be drawn, so it is "
        "a baseline, and its expected gradient is 0. Differentiate it, or take the "
        "sampled token's log-ratio.",
        penalty_of_the_state,
        penalty_of_the_token,
    ),
    Misreading(
        "distil_k1_as_a_loss",
        "The sampled token's log π − log π_T estimates the KL, so minimise it.",
        "Its value is right, but its gradient is 0 on average, because the teacher's "
        "part is a constant. Detach it and put it into the advantage.",
        differentiated_k1,
        penalty_of_the_token,
    ),
    Misreading(
        "distil_forward_for_reverse",
        "Cross-entropy with the teacher on the student's samples does the same.",
        "That descends KL(π_T ‖ π) at these states, which asks for every token that "
        "the teacher may write. The advantage descends KL(π ‖ π_T).",
        forward,
        penalty_of_the_token,
    ),
    Misreading(
        "distil_gate_on_the_teacher",
        "MOPD's band drops the tokens on which teacher and student differ too much.",
        "The band compares learner and sampler, as IcePop's does. Where the teacher "
        "differs most, there is most to learn.",
        gate_on_the_teacher,
        gate_on_the_sampler,
    ),
]
