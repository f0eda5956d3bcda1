"""The stored runs of a pretrained model: what they are, without making them."""

from experiments import real
from tests.worlds import needs

needs("reasoning_gym")


def spec(setting: str, arm: str) -> dict:
    return real.RUNS.spec({"setting": setting, "arm": arm, "seed": 0})


def test_what_the_controls_pay():
    texts = ["4 + 6 = 10", "10.", "It is 11", "no number", ""]
    assert real.format_reward(None, texts) == [1, 1, 1, 0, 0]
    answers = ["10", "10", "11", "0", "0"]
    assert real.whole_answer(None, texts, answer=answers) == [0] * 5
    assert real.whole_answer(None, [" 10\n", "10"], answer=["10", "1"]) == [1, 0]
    coins = real.random_reward(["q"] * 400, ["the same answer"] * 400)
    assert 140 < sum(coins) < 260 and set(coins) == {0.0, 1.0}
    assert coins == real.random_reward(["q"] * 400, ["the same answer"] * 400)
