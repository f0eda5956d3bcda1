"""Chapter 17: what a teacher's advantage does, and which teacher reads what."""

from types import SimpleNamespace

import torch
from torch.testing import assert_close

import refimpl as rl
from course.distillation import distil
from refimpl import TrainConfig
from refimpl.tasks import Arithmetic
from tests.worlds import TOKENIZER, prompts_of, random_model, rolled_out


def pair():
    """Student and teacher over five tokens, log-probs."""
    draws = torch.Generator().manual_seed(0)
    two = torch.randn(2, 5, generator=draws, dtype=torch.float64)
    return two.log_softmax(-1)


def test_push_and_spread_are_mean_and_variance_over_the_drawn_token():
    own, other = pair()
    advantage, pi = other - own, own.exp()
    each = advantage[:, None] * (torch.eye(5).double() - pi)  # by drawn token
    mean = (pi[:, None] * each).sum(0)
    assert_close(distil.push(own, advantage), mean)
    variance = (pi * ((each - mean) ** 2).sum(-1)).sum()
    assert_close(distil.spread(own, advantage), variance)
    for tail in (False, True):
        assert_close(distil.top(own, other, 5, tail), mean)
    rest = distil.top(own, other, 4, tail=True)  # of one token: nothing is cut
    assert_close(rest, mean)


def test_a_teacher_that_is_the_student_has_nothing_to_say():
    start, tokenizer, _ = rl.warm_start()
    settings = {"rollouts": 1, "allow_on_policy": True, "minibatches": 1}
    config = TrainConfig(**settings, prompts_per_rollout=4, eval_problems=4)
    given = {"model": start, "tokenizer": tokenizer, "task": Arithmetic()}
    history = distil.distil(start, config, **given)
    assert abs(history["teacher_kl"][0]) < 1e-5
    several = distil.Teachers([start, start])
    for reading in (distil.routed(tokenizer, distil.is_sorting), distil.averaged()):
        history = distil.distil(several, config, log_probs=reading, **given)
        assert abs(history["teacher_kl"][0]) < 1e-5


def test_an_update_brings_the_student_nearer_to_its_teacher():
    """The KL of the same rollout falls, whichever sign the advantages ought to have."""
    teacher, seen = random_model(1), []

    def kl(model):
        own, other = (distil.distributions(m, rollout) for m in (model, teacher))
        each = (own.exp() * (own - other)).sum(-1)
        return ((each * rollout.mask).sum() / rollout.mask.sum()).item()

    start = random_model(0)
    settings = {"rollouts": 1, "allow_on_policy": True, "minibatches": 1}
    config = TrainConfig(**settings, learning_rate=1e-3, eval_problems=4)
    given = {"model": start, "tokenizer": TOKENIZER, "task": Arithmetic()}
    hook = [lambda run, step: seen.append(run.batch.rollout)]
    student = distil.distil(teacher, config, hooks=hook, **given).model
    (rollout,) = seen
    assert kl(student) < 0.95 * kl(start)


def test_each_prompt_is_read_by_its_own_teacher():
    """A sum by the first, a row to sort, which has no plus, by the second."""
    assert [distil.is_sorting(prompt) for prompt in ("1+2=", "312>")] == [0, 1]
    _, batch, _ = rolled_out(model=random_model())
    rollout, teachers = batch.rollout, [random_model(1), random_model(2)]
    with torch.no_grad():
        first, second = (rl.log_probs(one, rollout)[0] for one in teachers)
        reading = distil.routed(TOKENIZER, lambda prompt: prompt.count("+") % 2)
        said, _ = reading(distil.Teachers(teachers), rollout)
    prompts = prompts_of(rollout)
    assert len({prompt.count("+") for prompt in prompts}) > 1
    for prompt, row, *both in zip(prompts, said, first, second):
        assert torch.equal(row, both[prompt.count("+") % 2])
        assert not torch.equal(*both)


def test_a_hint_is_the_first_right_answer_of_another_in_the_group():
    """Of the groups abc and de, in which b, c and d are right."""
    rollout = SimpleNamespace(group=torch.tensor([0, 0, 0, 1, 1]))
    hints = distil.siblings(lambda prompt, text: text in "bcd")
    assert hints([""] * 5, rollout, [*"abcde"]) == [*"bcb", "", "d"]


def test_a_teacher_reads_the_hint_and_the_student_does_not():
    """Without a hint it reads what the student reads."""
    _, batch, _ = rolled_out(model=random_model())
    rollout, one = batch.rollout, random_model(1)
    teacher = distil.Teachers([one])

    def of_the_first(prompts, rollout, texts):
        return ["7", *[""] * (len(prompts) - 1)]

    with torch.no_grad():
        plain, _ = rl.log_probs(one, rollout)
        read, _ = distil.told(TOKENIZER, hints=of_the_first)(teacher, rollout)
    assert_close(read[1:], plain[1:])
    assert (read[0] - plain[0]).abs().max() > 1e-3
