"""What in a text is the answer, and what math-verify says of it in a process."""

import json
import re
from pathlib import Path

import pytest

from refimpl.pretrained import answers, judge
from refimpl.tasks import TaskWarning
from tests.worlds import needs

CHAPTER = Path(__file__).parents[2] / "notebooks" / "13_real_model.ipynb"


@pytest.fixture(autouse=True)
def forget_warnings():
    judge.failed.clear()


@pytest.mark.parametrize(
    ("text", "reference", "how", "answer"),
    [
        (" 4 + 6 = 10.\n", "10", "whole", "4 + 6 = 10."),
        (r" \boxed{ a } ", "a", "whole", "a"),
        (r"\boxed{a} or \boxed{b}", "a", "whole", r"\boxed{a} or \boxed{b}"),
        ("4 + 6 = 10.", "10", "last", "10"),
        ("x = \N{EN DASH}3, that makes \N{MINUS SIGN}7", "7", "last", "-7"),
        ("1,234.50 in all", "7", "last", "1234.50"),
        ("7, not ٨", "7", "last", "7"),
        ("1,2,3", "3", "last", "3"),
        ("1.5E-5", "5", "last", "1.5E-5"),
        ("-2e+05.", "5", "last", "-2e+05"),
        ("1 2 300", "2300", "last", "300"),
        (r"\boxed{5} kg, 3 of them", "5", "last", "5"),
        (r"\boxed{7} and \boxed{5}", "7", "last", "5"),
        (r"\boxed{\frac{1}{2}}, 3", "a", "last", r"\frac{1}{2"),
        (r"7, \boxed{7", "7", "last", ""),
        ("", "Friday", "last", ""),
        ("It is **(B)**.", "B", "last", "B"),
        ("<answer>Friday</answer>, I think", "Friday", "last", "Friday"),
        ("So:\nb, a", "b, a", "last", "b, a"),
        ("The answer is 2 × 5 × 53.", "2 × 5 × 53", "last", "2 × 5 × 53"),
        ("Ann is a spy: he, too.", "Ann is a spy", "last", "he, too"),
        ("**Answer:** ['a', 'b']", "['a', 'b']", "last", "['a', 'b']"),
        ("so\n```\n1 2\n  3 4\n```", "5 6\n7 8", "last", "1 2\n  3 4"),
        ("<answer>1</answer> no <answer> 2 </answer>.", "2", "tag", "2"),
        (r"<answer>\boxed{2}</answer>", "2", "tag", "2"),
        ("<answer>1", "1", "tag", ""),
        ("5 </answer>", "5", "tag", "5"),
    ],
)
def test_extraction(text, reference, how, answer):
    assert answers.extracted(text, reference, how) == answer


def test_the_form_of_an_answer_is_its_habit():
    forms = {"bare": (" 7\n", "Friday"), "equation": ("a=b", "4 + 3 = 7.")}
    forms |= {"sentence": ("7 8", "It is 7"), "other": ("", "a\nb=c")}
    for form, texts in forms.items():
        assert [answers.habit(text) for text in texts] == [form] * 2


def test_mathematics_is_compared_by_math_verify():
    needs("math_verify")
    right = ["0.5", r"so $\frac{2}{4}$", r"\boxed{\frac12}"]
    given = [*right, "2", "", "__import__('os').getpid()"]
    assert answers.math_correct([], given, answer=["1/2"] * 6) == [1, 1, 1, 0, 0, 0]
    given = ["7", "7", 4096 * " " + "7", "7" + 4096 * " "]  # the end counts
    assert answers.math_correct([], given, answer=[7, "", 7, 7]) == [1, 0, 1, 0]


def test_six_verdicts_are_those_of_the_chapter():
    """Its table shows what math-verify gets wrong."""
    needs("math_verify")
    cells = json.loads(CHAPTER.read_text())["cells"]
    text = "".join(line for cell in cells for line in cell["source"])
    rows = re.findall(r"^\|`(.+)`\|`(.+)`\|(right|wrong)\|\**(yes|no)\**\|", text, re.M)
    given, references, truth, rewarded = zip(*rows, strict=True)
    wrong = {"right": "no", "wrong": "yes"}
    assert len(rows) == 6 and list(rewarded) == [wrong[one] for one in truth]
    rewards = answers.math_correct([], given, answer=references)
    assert [["no", "yes"][int(x)] for x in rewards] == list(rewarded)


HOSTILE = [
    *("(" * 3000, r"\boxed{" * 900, r"$\frac{" * 600),
    *(r"\boxed{10^{10^{10}}}", r"\boxed{100000000!}", r"\boxed{(x+1)^{10000}}"),
    *("1e999999999", "9" * 4000, "x" * 10**6, "not " * 2000, "9**9**9**9"),
    *(r"\boxed{" + "{" * 2000 + "}" * 2001, "7\x00\ud800", None),
]


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
def test_no_answer_takes_another_ones_verdict():
    needs("math_verify")
    given = [text for hostile in HOSTILE for text in (hostile, "It is 42.")]
    scores = answers.math_correct([], given, answer=["42"] * len(given))
    assert scores == [0.0, 1.0] * len(HOSTILE)


def test_an_answer_that_takes_too_long_is_wrong():
    needs("math_verify")
    with pytest.warns(TaskWarning, match="math_verify took longer than 1 s"):
        slow = answers.math_correct([], [r"\(9^{9^9}\)"], answer=[7], time_limit=1.0)
    assert slow == [0.0]
