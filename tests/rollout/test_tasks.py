"""The worlds: problems, demonstrations, habits, verifiers, tokenizer."""

import random
import re
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.sorting import Sorting
from refimpl.tasks import Arithmetic, Calculator, Rows, rare_careful, verify
from refimpl.tasks.arithmetic import CHARACTERS, HABITS
from refimpl.validation import UserError
from tests.worlds import TOKENIZER

SUMS, SORTS = Arithmetic(), Sorting()
WORLDS = [SUMS, SORTS, Calculator(), rare_careful(), Arithmetic(2, 2), Sorting(2, 2)]
each = pytest.mark.parametrize("world", WORLDS)
ONLY = {"careful": (1, 0, 0), "guess": (0, 1, 0), "ramble": (0, 0, 1)}


def terms_of(prompt: str) -> list[int]:
    assert prompt.endswith("=")
    return [int(digit) for digit in prompt[:-1].split("+")]


def prompts_of(rows: list[dict]) -> set[str]:
    return {row["prompt"] for row in rows}


def test_a_problem_states_its_answer():
    rows = SUMS.sample(500, 0) + SUMS.held_out(500)
    every = [terms_of(row["prompt"]) for row in rows]
    known = [(row["answer"], row["terms"]) for row in rows]
    assert known == [(sum(terms), len(terms)) for terms in every]
    assert {*map(len, every)} == {2, 3, 4, 5} and {*chain(*every)} == {*range(10)}
    for row in SORTS.sample(500, 0) + SORTS.held_out(500):
        digits = row["prompt"].removesuffix("=")
        assert digits.isdigit() and 3 <= len(digits) == row["items"] <= 6
        assert list(row["answer"]) == sorted(digits)


@each
def test_training_and_held_out_problems_divide_the_world_between_them(world):
    """With two digits there are only 100 problems, so many draws see them all."""
    trained = prompts_of(world.sample(4000, 0)) | prompts_of(world.sample(1000, 1))
    shown, held_out = world.demonstrations(3000, 0), prompts_of(world.held_out(1000))
    assert held_out.isdisjoint(trained | prompts_of(shown))
    if world in (Arithmetic(2, 2), Sorting(2, 2)):
        assert len(trained | held_out) == 100
        assert 5 <= len(held_out) <= 20  # one in eight


@each
def test_seed_and_purpose_decide_the_problems_and_no_global_generator(world):
    python, pytorch = random.getstate(), torch.get_rng_state()
    draws = (world.sample, world.held_out, world.demonstrations)
    first = [draw(50, 3) for draw in draws]
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), pytorch)
    random.seed(99)
    assert [draw(50, 3) for draw in draws] == first
    assert all(draw(50, 4) != rows for draw, rows in zip(draws, first, strict=True))
    sampled, _, shown = ([row["prompt"] for row in rows] for rows in first)
    assert sampled != shown
    streams = {world._random("train", 3).random() for world in WORLDS[:3]}
    assert len(streams) == 3  # of each kind of world


RIGHT = {"careful": (1, 1), "guess": (0.085, 0.12), "ramble": (0.08, 0.125)}
SORTED = {"careful": (1, 1), "guess": (0.1, 0.4), "ramble": (0.1, 0.4)}


def test_a_careful_demonstration_is_right_step_by_step():
    assert SUMS.careful("3+9+4=") == "3+9=12;12+4=16;#16"
    assert SORTS.careful("5213=") == "5;25;125;1235;#1235"


@pytest.mark.parametrize("kind", HABITS)
def test_a_demonstration_shows_its_habit_which_is_right_so_often(kind):
    for world, (low, high) in ((SUMS, RIGHT[kind]), (SORTS, SORTED[kind])):
        rows = world.demonstrations(8000, 0, ONLY[kind])
        texts = [row["completion"] for row in rows]
        assert {world.habit(text) for text in texts} == {kind}
        assert {c for text in texts for c in text} <= set(CHARACTERS)
        steps = {text.count(";") for text in texts if world is SUMS}
        assert kind != "ramble" or steps in ({*range(2, 10)}, set())
        paid = world.reward(None, texts, answer=[row["answer"] for row in rows])
        assert low <= sum(paid) / len(paid) <= high


@pytest.mark.parametrize("world", [SUMS, SORTS, rare_careful()])
def test_habits_come_in_the_shares_of_the_mix(world):
    n = 8000
    shown = [world.habit(r["completion"]) for r in world.demonstrations(n, 0)]
    for kind, share in zip(HABITS, world.habit_mix, strict=True):
        spread = (share * (1 - share) / n) ** 0.5
        assert abs(shown.count(kind) / n - share) < 4 * spread


# Verifiers: one '#', then exactly the answer, then nothing


def oracle(response: str, answer: int | str) -> bool:
    """The same rule by a pattern, without cutting."""
    return re.fullmatch(rf"[^#]*#{answer}", response) is not None


REJECTED = [
    *"12 12# # #13 #1 #123 ##12 #12# #12#12 #11#12 #12#13 #12;#12".split(),
    # Something after the digits, or before them; another way to write twelve.
    *"#12; #12.0 #12+0 #=12 #012 #+12 #1_2 #0xc #１２ #١٢ ＃12 #3+9 #{12}".split(),
    *["", "#12 ", "#12\n", "# 12", "#1 2", "#1\u200b2"],
    *(None, 12, True, b"#12", ["#12"]),
]


def test_rejected():
    assert [text for text in REJECTED if verify(text, 12) is not False] == []
    assert not any(verify(text, 0) for text in ("#-0", "#00", "#", "#o"))


ANY_TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr)).map("".join)


@given(ANY_TEXT, st.text("0123456789#;=+\n２ "), st.sampled_from([0, 3, 12, "0123"]))
def test_any_text_agrees_with_the_oracle(text, near, answer):
    for response in (text, near, f"{text}#{answer}", f"{near}#{answer}{near}"):
        assert verify(response, answer) is oracle(response, answer)


def test_each_character_is_one_token_of_its_own():
    ids = TOKENIZER(CHARACTERS)["input_ids"]
    assert len(set(ids)) == len(CHARACTERS) == len(TOKENIZER) - 3
    special = {TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id}
    assert special.isdisjoint(ids)
    assert [TOKENIZER.decode([token]) for token in ids] == list(CHARACTERS)
    assert TOKENIZER.decode(ids) == CHARACTERS
    for stranger in "a １\n-":
        assert TOKENIZER(stranger)["input_ids"] == [TOKENIZER.unk_token_id]


def test_rows_are_drawn_from_one_side_and_none_twice_while_there_are_enough():
    given = [{"prompt": f"{i}+0=", "answer": i} for i in range(10)]
    task = Rows(given, lambda prompts, completions, **_: [1.0] * len(completions))
    drawn = [row["answer"] for row in task.sample(8, 3)]
    tested = [row["answer"] for row in task.held_out(4)]
    assert sorted({*drawn, *tested}) == [*range(10)] and len({*drawn}) == 8
    assert sorted(tested[:2]) == sorted(tested[2:])  # two rows, asked for four times
    assert [*map(str, task.sample(8, 3))] == [*map(str, task.sample(8, 3))]
    assert task.sample(8, 3) != task.sample(8, 4)
    for share, held_out in ((0.0, 1), (1.0, 2)):  # a problem is left to either side
        few = Rows(given[:3], task.reward, share)
        assert len({row["answer"] for row in few.held_out(3)}) == held_out
    sides = [Rows(given, task.reward, seed=n).held_out(1) for n in range(9)]
    assert len({*map(str, sides)}) > 1
    with pytest.raises(UserError, match="at least two problems"):
        Rows(given[:1], task.reward)
    with pytest.raises(UserError, match="row 1 has the keys prompt, but the first"):
        Rows([given[0], {"prompt": "1"}], task.reward)
