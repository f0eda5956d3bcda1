"""A reward function is somebody else's code: it is called plainly and not trusted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from refimpl import UserError
from refimpl.rewards import (
    Prompt,
    conversational,
    overlong_punishment,
    said,
    score,
)

PROMPTS, COMPLETIONS = ["1+2=", "3+4="], ["#3", "#8"]


def call(reward, **columns):
    return score(reward, PROMPTS, COMPLETIONS, columns)


def test_the_function_receives_lists_under_the_names_of_trl_and_cannot_change_them():
    received = {}

    def vandal(prompts, completions, **rest):
        received.update(rest, prompts=[*prompts], completions=[*completions])
        prompts.clear()
        completions.reverse()
        return [1, 2]

    prompts, completions = list(PROMPTS), list(COMPLETIONS)
    given = {"answer": [3, 7], "level": ["easy", "hard"], "completion_ids": [[5], [6]]}
    assert score(vandal, prompts, completions, given) == [1.0, 2.0]
    assert received == {"prompts": PROMPTS, "completions": COMPLETIONS, **given}
    assert (prompts, completions) == (PROMPTS, COMPLETIONS)
    assert score(vandal, tuple(PROMPTS), tuple(COMPLETIONS), given) == [1.0, 2.0]
    plain = lambda prompts, completions, answer, level: [3, 4]  # noqa: E731
    assert score(plain, prompts, completions, given) == [3.0, 4.0]  # no ids for it


@pytest.mark.parametrize(
    "numbers",
    [
        (True, Fraction(1, 2)),
        torch.tensor([1, 0.5]),
        [torch.tensor(1.0), np.float32(0.5)],
    ],
)
def test_every_kind_of_number_becomes_a_plain_float(numbers):
    rewards = call(lambda **_: numbers)
    assert rewards == [1.0, 0.5]
    assert {type(r) for r in rewards} == {float}
    part = score(lambda **_: [None, 1], PROMPTS, COMPLETIONS, {}, component="half")
    assert math.isnan(part[0]) and part[1] == 1  # it need not apply to every answer


def of_messages(prompts, completions, answer, **_):
    """As most public reward functions are written."""
    asked = [prompt[-1]["content"] for prompt in prompts]
    given = [completion[0]["content"] for completion in completions]
    return [
        float(q.endswith("=") and c == f"#{a}") for q, c, a in zip(asked, given, answer)
    ]


def test_a_function_that_reads_messages_is_wrapped_by_its_author():
    """Else the error names the wrapper: nothing is guessed from what was raised."""
    assert call(conversational(of_messages), answer=[3, 7]) == [1.0, 0.0]
    with pytest.raises(UserError, match=r"of messages, with rewards\.conversational"):
        call(of_messages, answer=[3, 7])
    # An empty answer is an answer, whatever indexing a text would have raised.
    given = {"answer": [3, 8]}
    assert score(conversational(of_messages), PROMPTS, ["", "#8"], given) == [0.0, 1.0]
    prompt = Prompt("<user>1+2=<end>")
    prompt.messages = [{"role": "system", "content": "Add."}, said("user", "1+2=")]
    paid = score(conversational(of_messages), [prompt], ["#3"], {"answer": [3]})
    assert paid == [1.0] and prompt.messages[0]["content"] == "Add."


def test_the_punishment_of_the_paper():
    """Eq. 13 of DAPO: its ramp starts at 16,384; with L_cache = L_max at 0."""
    for limit, buffer, lengths, wanted in (
        (20_480, 4_096, [0, 16_384, 16_385, 20_480], [0, 0, -1 / 4096, -1]),
        (48, 48, [0, 12, 99], [0, -0.25, -1]),
    ):
        paid = overlong_punishment(torch.tensor(lengths).float(), limit, buffer)
        assert paid.tolist() == pytest.approx(wanted, abs=1e-6)
