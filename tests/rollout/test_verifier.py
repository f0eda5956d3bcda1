"""The verifier pays for one thing: one '#', then exactly the answer, then nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.tasks import Arithmetic, verify
from refimpl.tasks.arithmetic import MAX_RESPONSE_CHECKED


def oracle(response: str, answer: int) -> bool:
    """The same rule by cutting and comparing, without a pattern."""
    _, sign, after = response.partition("#")
    return len(response) <= MAX_RESPONSE_CHECKED and sign + after == "#" + str(answer)


ACCEPTED = [
    ("#12", 12),
    ("3+9=12;#12", 12),
    ("9+9=1;#12", 12),  # the steps are not checked
    ("?8+2=10;#12", 12),
    ("two\nlines #12", 12),
    ("١٢ 👍#12", 12),
    ("#0", 0),
    ("#100", 100),
    ("#999999", 999_999),
    ("0" * (MAX_RESPONSE_CHECKED - 3) + "#12", 12),
]

REJECTED = [
    "",
    "#",
    "12",
    "12#",
    "#13",
    "#1",
    "#2",
    "#123",
    "#112",
    # more than one '#': listing answers must pay nothing
    "##12",
    "#12#",
    "#12#12",
    "#11#12",
    "#12#13",
    "#1#2#3#4#5#6#7#8#9#10#11#12",
    # something after the digits
    "#12;",
    "#12 ",
    "#12\n",
    "#12\r\n",
    "#12\x00",
    "#12.",
    "#12.0",
    "#12=12",
    "#12+0",
    "#12e0",
    # something before the digits
    "# 12",
    "#\n12",
    "#=12",
    "#?12",
    "#;12",
    # another way to write twelve
    "#012",
    "#0012",
    "#+12",
    "#-12",
    "#--12",
    "#1_2",
    "#1,2",
    "#0xc",
    "#0b1100",
    "#XII",
    "#twelve",
    "#1 2",
    "#１２",
    "#1２",
    "#١٢",
    "#१२",
    "#¹²",
    "#⑫",
    "#1\u200b2",
    "＃12",
    # nothing is evaluated
    "#3+9",
    "#(12)",
    "#6*2",
    "#9**9**9",
    "9**9**9**9#",
    "#__import__('os').getpid()",
    "__import__",
    "#{12}",
    "#%d",
    # nested separators
    "#12;#12",
    "#(#12)",
    ";;;#;12",
    "#<eos>12",
]


@pytest.mark.parametrize(("response", "answer"), ACCEPTED)
def test_accepted(response, answer):
    assert verify(response, answer) is True
    assert verify(response, answer + 1) is False


@pytest.mark.parametrize("response", REJECTED)
def test_rejected(response):
    assert verify(response, 12) is False


@pytest.mark.parametrize(
    "response", [None, 5, 12, 12.0, True, b"#12", ["#12"], ("#", "12"), {}, object()]
)
def test_what_is_not_a_string_is_wrong(response):
    assert verify(response, 12) is False


def test_a_negative_or_empty_zero_is_no_zero():
    for response in ("#-0", "#00", "#", "#+0", "#o", "#O"):
        assert verify(response, 0) is False


HUGE = [
    "#" * 1_000_000,
    "1" * 1_000_000,
    "#1" * 500_000,
    "#" + "9" * 1_000_000,
    "a" * 1_000_000 + "#12",
    "#12" + " " * 1_000_000,
    "9**" * 300_000 + "9",
    "0" * (MAX_RESPONSE_CHECKED - 2) + "#12",
]


@pytest.mark.parametrize("response", HUGE, ids=lambda text: f"{text[:6]}…{len(text)}")
def test_huge_responses_are_wrong(response):
    assert verify(response, 12) is False


@pytest.mark.parametrize("text", ["#", "1", "#1", "1#"])
def test_the_longest_checked_response_comes_back(text):
    """A pattern that backtracked over 4,096 characters would not, in a lifetime."""
    assert verify(text * (MAX_RESPONSE_CHECKED // len(text)), 12) is False


FUZZ_ALPHABET = "0123456789" + "#" * 6 + ";;==??++" + "*()-. _e" + "\n\r\t" + "１２١٢²٣"


def mutate(text: str, rng: random.Random) -> str:
    """Insert, delete, replace or repeat one character."""
    place = rng.randrange(len(text))
    before, here, after = text[:place], text[place], text[place + 1 :]
    other = rng.choice(FUZZ_ALPHABET)
    changed = rng.choice([other + here, "", other, here + here, here + other])
    return before + changed + after


def fuzz_cases(n: int):
    """Half noise, half true answers with none to three characters changed."""
    rng = random.Random(0)
    rows = Arithmetic().demonstrations(n // 2, 0, (0.5, 0.25, 0.25))
    for row in rows:
        answer = row["answer"]
        noise = "".join(rng.choices(FUZZ_ALPHABET, k=rng.randrange(8)))
        yield noise, rng.choice([answer, rng.randrange(10)])
        text = rng.choice([row["completion"], f"#{answer}"])
        for _ in range(rng.randrange(4)):
            text = mutate(text, rng) if text else text
        yield text, answer


def test_100_000_random_strings_agree_with_the_oracle():
    paid = 0
    for response, answer in fuzz_cases(100_000):
        verdict = verify(response, answer)
        assert verdict is oracle(response, answer), (response, answer)
        paid += verdict
    assert 10_000 < paid < 60_000  # the strings are neither all wrong nor all right


@given(st.text(), st.integers(0, 999_999))
def test_any_text_agrees_with_the_oracle(response, answer):
    assert verify(response, answer) is oracle(response, answer)


@given(st.text("0123456789#;=+\n２ "), st.integers(0, 9))
def test_any_text_of_near_misses_agrees_with_the_oracle(response, answer):
    assert verify(response, answer) is oracle(response, answer)


@given(st.text().filter(lambda text: "#" not in text), st.integers(0, 999_999))
def test_an_answer_is_accepted_after_anything_and_before_nothing(text, answer):
    assert verify(f"{text}#{answer}", answer) is True
    assert verify(f"{text}#{answer}{text}", answer) is (text == "")
