"""The sorting world: problems, demonstrations, verifier, and that it can be learned."""

import pytest

from refimpl import dice
from refimpl.config import TrainConfig
from refimpl.sft import WarmStart, warm_start
from refimpl.tasks import Sorting
from refimpl.tasks.arithmetic import CHARACTERS, MAX_RESPONSE_CHECKED
from refimpl.tasks.sorting import verify_sorted
from refimpl.tasks.world import HABITS
from refimpl.trainer import train

WORLD = Sorting()
ONLY = {"careful": (1, 0, 0), "guess": (0, 1, 0), "ramble": (0, 0, 1)}


def only(kind: str, n: int = 300) -> list[dict]:
    return WORLD.demonstrations(n, 0, ONLY[kind])


def test_a_problem_is_digits_and_its_answer_the_same_in_order():
    for row in WORLD.sample(300, 0) + WORLD.held_out(300):
        digits = row["prompt"].removesuffix("=")
        assert digits.isdigit() and 3 <= len(digits) == row["items"] <= 6
        assert list(row["answer"]) == sorted(digits)
    assert {row["items"] for row in WORLD.sample(300, 0)} == {3, 4, 5, 6}


def test_an_eighth_of_the_problems_is_held_out_of_everything_else():
    world = Sorting(min_items=2, max_items=2)  # a hundred problems
    trained = {row["prompt"] for row in world.sample(3000, 0)}
    shown = {row["prompt"] for row in world.demonstrations(3000, 0)}
    held_out = {row["prompt"] for row in world.held_out(1000)}
    assert not held_out & (trained | shown)
    assert len(held_out | trained) == 100 and 5 < len(held_out) < 25


def test_purposes_and_seeds_have_dice_of_their_own(monkeypatch):
    drawn = [WORLD.sample(20, 0), WORLD.sample(20, 1), WORLD.demonstrations(20, 0)]
    prompts = [[row["prompt"] for row in rows] for rows in drawn]
    assert prompts[0] != prompts[1] and prompts[0] != prompts[2]
    assert WORLD.sample(20, 0) == drawn[0]
    monkeypatch.setattr(dice, "salt", lambda: 1)
    assert WORLD.sample(20, 0) != drawn[0]


def test_the_careful_habit_puts_one_digit_after_the_other_in_its_place():
    for row in only("careful"):
        digits = row["prompt"].removesuffix("=")
        *steps, answer = row["completion"].split(";")
        assert [list(s) for s in steps] == [
            sorted(digits[:n]) for n in range(1, len(digits) + 1)
        ]
        assert answer == "#" + row["answer"]
        assert verify_sorted(row["completion"], row["answer"])
        assert len(row["completion"]) < 48  # with EOS it fits into an answer


def test_the_other_habits_are_right_now_and_then():
    for kind, opening in (("guess", "#"), ("ramble", "?")):
        rows = only(kind, 1000)
        right = [verify_sorted(row["completion"], row["answer"]) for row in rows]
        assert 0.1 < sum(right) / len(right) < 0.4
        for row in rows:
            assert row["completion"].startswith(opening)
            steps, _, answer = row["completion"].partition("#")
            assert sorted(answer) == list(row["answer"])
            assert (steps.count(";") in range(2, 10)) is (kind == "ramble")


def test_habits_come_in_the_shares_of_the_mix():
    shown = [WORLD.habit(r["completion"]) for r in WORLD.demonstrations(20_000, 0)]
    for kind, share in zip(HABITS, WORLD.habit_mix, strict=True):
        assert abs(shown.count(kind) / len(shown) - share) < 0.015
    letters = {c for r in WORLD.demonstrations(500, 0) for c in r["completion"]}
    assert letters <= set(CHARACTERS)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("#0123", True),
        ("3;23;0123;#0123", True),
        ("#123", False),
        ("#01230", False),
        ("#0123 ", False),
        ("#0123\n", False),
        ("#1#0123", False),
        ("0123", False),
        ("#٠١٢٣", False),
        ("", False),
        (None, False),
        ("#" * 10**6, False),
        ("0" * MAX_RESPONSE_CHECKED + "#0123", False),
    ],
)
def test_the_verifier_pays_for_the_digits_in_order_and_nothing_else(response, right):
    assert verify_sorted(response, "0123") is right
    assert WORLD.reward(None, [response], answer=["0123"], items=[4]) == [float(right)]


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="min_items 5 is above max_items 4"):
        Sorting(min_items=5, max_items=4)
    with pytest.raises(ValueError, match="max_items"):
        Sorting(max_items=9)


@pytest.mark.slow
def test_the_habit_that_pays_is_found_here_too():
    """GRPO from the warm start; other seeds ended at 0.87 to 0.94."""
    model, tokenizer, _ = warm_start(WarmStart(world=WORLD))
    config = TrainConfig(rollouts=40, eval_problems=512)
    history = train(
        "grpo",
        config=config,
        model=model,
        tokenizer=tokenizer,
        task=WORLD,
        progress=False,
    )
    assert history["accuracy"][-1] > 0.75
    assert history["habit/careful"][-1] > 0.9 > 0.5 > history["habit/careful"][0]
