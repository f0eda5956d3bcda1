"""The arithmetic world: problems, demonstrations, habits, tokenizer."""

import pickle
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from refimpl.tasks import Arithmetic, make_tokenizer, rare_careful, verify
from refimpl.tasks.arithmetic import CHARACTERS
from refimpl.tasks.world import HABITS

WORLD = Arithmetic()
ONLY = {"careful": (1, 0, 0), "guess": (0, 1, 0), "ramble": (0, 0, 1)}


def terms_of(prompt: str) -> list[int]:
    assert prompt.endswith("=")
    return [int(digit) for digit in prompt[:-1].split("+")]


def prompts_of(rows: list[dict]) -> set[str]:
    return {row["prompt"] for row in rows}


# Problems


def test_a_problem_is_a_sum_of_single_digits_with_its_answer():
    for row in WORLD.sample(500, 0) + WORLD.held_out(500):
        terms = terms_of(row["prompt"])
        assert all(0 <= term <= 9 for term in terms)
        assert row["answer"] == sum(terms)
        assert row["terms"] == len(terms)


def test_every_number_of_terms_and_every_digit_is_drawn_about_equally_often():
    rows = WORLD.sample(8000, 0)
    counts = [sum(row["terms"] == n for row in rows) for n in range(2, 6)]
    assert sum(counts) == len(rows)
    assert all(abs(count / len(rows) - 1 / 4) < 0.03 for count in counts)
    digits = [digit for row in rows for digit in terms_of(row["prompt"])]
    assert all(abs(digits.count(d) / len(digits) - 1 / 10) < 0.015 for d in range(10))


def test_a_world_keeps_to_its_own_number_of_terms():
    world = Arithmetic(min_terms=7, max_terms=9)
    assert {row["terms"] for row in world.sample(100, 0)} == {7, 8, 9}


def test_training_and_held_out_problems_divide_the_world_between_them():
    """With two terms there are only 100 problems, so many draws see them all."""
    world = Arithmetic(min_terms=2, max_terms=2)
    trained = prompts_of(world.sample(5000, 0)) | prompts_of(world.sample(5000, 1))
    held_out = prompts_of(world.held_out(1000))
    assert trained & held_out == set()
    assert len(trained | held_out) == 100
    assert 5 <= len(held_out) <= 20  # one in eight


@pytest.mark.parametrize("seed", range(3))
def test_no_held_out_problem_is_ever_trained_or_demonstrated(seed):
    held_out = prompts_of(WORLD.held_out(3000, seed))
    assert held_out.isdisjoint(prompts_of(WORLD.sample(10_000, seed)))
    assert held_out.isdisjoint(prompts_of(WORLD.demonstrations(10_000, seed)))


@pytest.mark.parametrize("draw", [WORLD.sample, WORLD.held_out, WORLD.demonstrations])
def test_the_seed_decides_the_problems(draw):
    assert draw(50, 3) == draw(50, 3)
    assert draw(50, 3) != draw(50, 4)


def test_drawing_leaves_the_global_generators_alone():
    python, pytorch = random.getstate(), torch.get_rng_state()
    first = WORLD.sample(20, 0)
    WORLD.held_out(20)
    WORLD.demonstrations(20, 0)
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), pytorch)
    random.seed(99)
    assert WORLD.sample(20, 0) == first


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ((1, 5), "min_terms must be a whole number in [2, 9], got 1"),
        ((4, 3), "min_terms 4 is above max_terms 3"),
        ((2, 10), "max_terms must be a whole number in [2, 9], got 10"),
        ((2.5, 5), "min_terms must be a whole number in [2, 9], got 2.5"),
        ((True, 5), "min_terms must be a whole number in [2, 9], got True"),
        (("2", 5), "min_terms must be a whole number in [2, 9], got '2'"),
        ((2, None), "max_terms must be a whole number in [2, 9], got None"),
    ],
)
def test_impossible_numbers_of_terms_are_refused(terms, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        Arithmetic(*terms)


@pytest.mark.parametrize(
    "mix",
    [
        (0.5, 0.5),
        (0.5, 0.5, 0.5),
        (0.2, 0.2, 0.2),
        (-0.5, 1.0, 0.5),
        (float("nan"), 0.5, 0.5),
        "abc",
        None,
    ],
)
def test_a_mix_that_is_not_three_shares_of_one_is_refused(mix):
    with pytest.raises(ValueError, match=r"^habit_mix must "):
        Arithmetic(habit_mix=mix)


def test_a_world_keeps_plain_numbers_and_does_not_change():
    """A checkpoint stores the world, and two equal worlds are one world."""
    world = Arithmetic(np.int64(3), torch.tensor(4), (np.float64(0.5), 0.5, 0))
    assert {type(n) for n in (world.min_terms, world.max_terms)} == {int}
    assert {type(share) for share in world.habit_mix} == {float}
    assert world == Arithmetic(3, 4, (0.5, 0.5, 0.0))
    assert replace(Arithmetic(), min_terms=4) == Arithmetic(min_terms=4)
    assert pickle.loads(pickle.dumps(world)) == world
    with pytest.raises(AttributeError):
        world.min_terms = 2
    with pytest.raises(ValueError, match="min_terms 9 is above max_terms 5"):
        replace(Arithmetic(), min_terms=9)
    with pytest.raises(TypeError, match="did you mean 'min_terms'"):
        Arithmetic(min_term=3)


# Demonstrations


@pytest.mark.parametrize("kind", HABITS)
def test_a_demonstration_shows_its_habit(kind):
    rows = WORLD.demonstrations(300, 0, ONLY[kind])
    assert {WORLD.habit(row["completion"]) for row in rows} == {kind}


def test_careful_demonstrations_are_right_step_by_step():
    for row in WORLD.demonstrations(500, 0, ONLY["careful"]):
        *steps, last = row["completion"].split(";")
        total, *rest = terms_of(row["prompt"])
        assert len(steps) == len(rest)
        for step, term in zip(steps, rest, strict=True):
            left, right = step.split("=")
            assert left == f"{total}+{term}"
            assert int(right) == total + term
            total = int(right)
        assert last == f"#{total}"
        assert verify(row["completion"], row["answer"])


def test_a_guess_is_a_number_at_once_and_right_one_time_in_ten():
    rows = WORLD.demonstrations(20_000, 0, ONLY["guess"])
    assert all(row["completion"][1:].isdecimal() for row in rows)
    right = sum(verify(row["completion"], row["answer"]) for row in rows)
    assert 0.09 < right / len(rows) < 0.115


def test_a_ramble_is_true_sums_about_nothing_and_then_a_guess():
    rows = WORLD.demonstrations(500, 0, ONLY["ramble"])
    counts = set()
    for row in rows:
        *steps, last = row["completion"].removeprefix("?").split(";")
        for step in steps:
            left, right = step.split("=")
            assert sum(map(int, left.split("+"))) == int(right)
        assert last.startswith("#")
        counts.add(len(steps))
    assert counts == set(range(2, 10))
    assert sum(verify(row["completion"], row["answer"]) for row in rows) < 100


@pytest.mark.parametrize("world", [WORLD, rare_careful()])
def test_habits_come_in_the_shares_of_the_mix(world):
    rows = world.demonstrations(20_000, 0)
    shown = [world.habit(row["completion"]) for row in rows]
    for kind, share in zip(HABITS, world.habit_mix, strict=True):
        assert abs(shown.count(kind) / len(shown) - share) < 0.01


def test_careful_is_a_two_percent_choice_in_the_rare_world():
    assert rare_careful().habit_mix[0] == 0.02
    assert rare_careful().sample(20, 0) == WORLD.sample(20, 0)


def test_only_the_first_character_decides_the_habit():
    seen = {text: WORLD.habit(text) for text in ("#3", "?3", "3#?", "", "+3", "=#")}
    assert list(seen.values()) == ["guess", "ramble", "careful"] + ["other"] * 3


# Reward


def test_the_reward_is_one_for_a_verified_answer_and_ignores_other_columns():
    completions = ["3+9=12;#12", "#13", "12"]
    rewards = WORLD.reward(
        ["3+9="] * 3, completions, answer=[12, 12, 12], terms=[2, 2, 2]
    )
    assert rewards == [1.0, 0.0, 0.0]


def test_the_reward_wants_one_answer_for_each_completion():
    with pytest.raises(ValueError, match="zip"):
        WORLD.reward(["3+9="] * 2, ["#12", "#12"], answer=[12])


# Tokenizer


def test_each_character_is_one_token_of_its_own():
    tokenizer = make_tokenizer()
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert len(set(ids)) == len(CHARACTERS) == len(tokenizer) - 3
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    assert special.isdisjoint(ids)
    for character, token in zip(CHARACTERS, ids, strict=True):
        assert tokenizer.decode([token]) == character


def test_text_survives_the_tokenizer():
    tokenizer = make_tokenizer()
    rows = WORLD.demonstrations(100, 0)
    texts = [
        CHARACTERS,
        CHARACTERS[::-1],
        *(r["prompt"] + r["completion"] for r in rows),
    ]
    assert [tokenizer.decode(tokenizer(t)["input_ids"]) for t in texts] == texts


def test_a_character_from_outside_becomes_the_unknown_token():
    tokenizer = make_tokenizer()
    for stranger in "a １\n-":
        assert tokenizer(stranger)["input_ids"] == [tokenizer.unk_token_id]


def test_batches_are_padded_on_the_left():
    tokenizer = make_tokenizer()
    ids = tokenizer(["1+2=", "1+2+3="], padding=True)["input_ids"]
    assert ids[0] == [tokenizer.pad_token_id] * 2 + tokenizer("1+2=")["input_ids"]


def test_a_saved_tokenizer_gives_the_same_ids(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = [CHARACTERS, "3+9+4=", "?8+2=10;#7", "9"]
    assert again(texts, padding=True) == tokenizer(texts, padding=True)
    assert again.eos_token_id == tokenizer.eos_token_id
    assert again.pad_token_id == tokenizer.pad_token_id
    assert len(again) == len(tokenizer)
