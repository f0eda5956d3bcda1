"""What in a text is the answer, and whether it is right: as people and models write."""

import time
from importlib import import_module

import pytest

from refimpl import TrainConfig, UserError, train
from refimpl.pretrained import answers, judge
from refimpl.pretrained.rewards import Sum
from refimpl.tasks import Arithmetic, TaskWarning
from tests.worlds import needs


@pytest.fixture(autouse=True)
def forget_warnings():
    judge.failed.clear()


@pytest.mark.parametrize(
    ("text", "reference", "how", "answer"),
    [
        (" 4 + 6 = 10.\n", "10", "whole", "4 + 6 = 10."),
        (r"\boxed{a}", "a", "whole", "a"),
        (r"\boxed{a} or \boxed{b}", "a", "whole", "a, b"),
        ("4 + 6 = 10.", "10", "last", "10"),
        ("x = \N{EN DASH}3, that makes \N{MINUS SIGN}7", "7", "last", "-7"),
        ("1,234.50 in all", "7", "last", "1234.50"),
        ("1,234.50 in all", "1,234", "last", "1,234.50"),
        ("it is .5", "5", "last", ".5"),
        ("v.5 or x.7", "5", "last", ""),
        ("it is +5", "5", "last", "5"),
        ("7, not ٨", "7", "last", "7"),
        ("1,2,3", "3", "last", "3"),
        ("12,345,67", "7", "last", "67"),
        ("1.5E-5", "5", "last", "1.5E-5"),
        ("-2e+05.", "5", "last", "-2e+05"),
        ("10^{-5}", "5", "last", "10^{-5}"),
        ("x^5", "5", "last", ""),
        ("3, or 0x5", "5", "last", "0"),
        ("It is not Friday", "Friday", "last", ""),
        ("6 is right, 5 is not", "5", "last", "6"),
        ("a not\n```\nb", "x\ny", "last", "a not\nb"),
        ("It is not 5, but 3", "5", "last", "3"),
        ("5kg, 5e, 5", "5", "last", "5"),
        ("1 2 300", "2300", "last", "300"),
        ("that makes 12 300", "1000", "last", "12300"),
        (r"12\,300 or 12{,}300 or 12_300", "7", "last", "12300"),
        (r"\boxed{5} kg, 3 of them", "5", "last", "5"),
        (r"\boxed{7} and \boxed {5}", "7", "last", "5"),
        (r"a \boxed 5", "5", "last", "5"),
        (r"7, \boxed{}", "7", "last", ""),
        (r"7, \boxed{7", "7", "last", ""),
        ("<think>7</think> no", "7", "last", ""),
        ('Backward: "olleh".', "olleh", "last", "olleh"),
        ("It is [18].", "[18]", "last", "[18]"),
        ("It is [18].", "18x", "last", "18"),
        ("<answer>Friday</answer>, I think", "Friday", "last", "Friday"),
        ("So:\nb, a", "b, a", "last", "b, a"),
        ("The answer is 2 × 5 × 53.", "2 × 5 × 53", "last", "2 × 5 × 53"),
        ("So 7 × 2 × 5 × 53.", "2 × 5 × 53", "last", "So 7 × 2 × 5 × 53"),
        ("**Answer:** ['a', 'b']", "['a', 'b']", "last", "['a', 'b']"),
        ("so\n```\n1 2\n  3 4\n```", "5 6\n7 8", "last", "1 2\n  3 4"),
        ("so\n(R ∨ P)", None, "last", "(R ∨ P)"),
        ("<answer>1</answer> no <answer> 2 </answer>.", "2", "tag", "2"),
        ("<answer>2</answer>, as <answer></answer>", "2", "tag", "2"),
        ("<Answer>2</ANSWER>", "2", "tag", "2"),
        (r"<answer>\boxed{2}</answer>", "2", "tag", "2"),
        ("<answer>1", "1", "tag", ""),
        ("3? </think> 5 </answer>", "5", "tag", "5"),
    ],
)
def test_extraction(text, reference, how, answer):
    assert answers.extracted(text, reference, how) == answer


def test_habits_tell_the_forms_apart():
    given = ("10", " sun. ", "4 + 6 = 10", "It is 10.", "", "1\n2")
    shown = [answers.habit(text) for text in given]
    assert shown == ["bare", "bare", "equation", "sentence", "other", "other"]


def test_a_lax_scorer_pays_for_lists_and_words_and_looks_at_the_end_of_a_long_text():
    right = ["1 2 3 4 5 6 7 8", " " * 4096 + "7", "7.0", "+7", "0.7e1", "70e-1"]
    wrong = ["8", "77", "7.5", "7" + " " * 4096, "7e999999999999999999999", None]
    given = [*right, *wrong]
    scores = answers.contains_answer([], given, answer=[7] * len(given))
    assert scores == [1.0] * len(right) + [0.0] * len(wrong)
    for text in ("1,000", "1 000", "1e3"):
        assert answers.contains_answer([], [text], answer=["1000"]) == [1.0], text
    assert answers.contains_answer([], ["110^3"], answer=["11000"]) == [0.0]
    given, right = ["the sun.", "moon", "", "moon"], ["sun", "sun", "sun", ""]
    assert answers.contains_answer([], given, answer=right) == [1.0, 0.0, 0.0, 0.0]


def test_an_interval_is_an_inequality_and_what_is_slow_is_wrong():
    """The interval is taken for the inequality, and not the other way round."""
    needs("math_verify")
    less, interval = "$x>2$", r"$(2,\infty)$"
    both = answers.math_correct([], [interval, less], answer=[less, interval])
    assert both == [1.0, 0.0]
    with pytest.warns(TaskWarning, match="math_verify took longer than 1 s"):
        slow = answers.math_correct([], [r"\(9^{9^9}\)"], answer=[7], time_limit=1.0)
    assert slow == [0.0]


TYPED = [  # reference, right ones, wrong ones
    ("1/2", r"1/2|0.5|½|\frac12|so it is $\frac{2}{4}$.|\boxed{0.5}", "2|"),
    ("1/2", "0.50", r"__import__('os').getpid()|\boxed{__import__('os').getpid()}"),
    # a formula is read as one with a backslash or without, and a word as a word
    ("2k+2", r"\boxed{2k+2}|The answer is 2k+2.|so $2+2k$", "2|4|k|2k"),
    ("6 - 5i", r"\boxed{6-5i}|-5i + 6", "5|6|6+5i"),
    ("5!", r"120|\boxed{5!}", "5"),
    ("2pi", r"\boxed{2\pi}|2π", "2|pi"),
    ("1, 2, 3", r"\boxed{1,2,3}|The answer is 1, 2, 3.", "3|1|1, 2"),
    ("3:4", r"\boxed{3:4}", "3|4"),
    ("-3 < x < 2", r"\boxed{-3<x<2}", "2|-3"),
    ("1e3", r"1000|\boxed{1e3}|10^3|1,000", "1|3|1e4"),
    ("1,2", r"\boxed{1,2}", "1.2|1|2"),
    ("(1,2)", r"\boxed{(1,2)}", "1|2|(2,1)"),
    ("[0,1)", r"\boxed{[0,1)}", "(0,1)|[0,1]"),
    ("x^2+1", r"1+x^2|\boxed{x^{2}+1}", "1|2"),
    ("½", "0.5|1/2", "1|2"),
    ("+5", "5|+5", "-5"),
    ("∞", r"\boxed{\infty}", "1|8"),
    (r"\sqrt{2}", "√2|sqrt(2)", "2|1.4"),
    ("1.5", "1 1/2|1½|3/2", "1|2|1/2"),
    ("-5", "The answer is −5|–5", "5"),
    ("18", r"It costs \$18|It costs $18.|18 apples", "$1|8"),
    ("1000", r"\boxed{1\,000}|\boxed{1{,}000}|1 000 or so", "1"),
    ("1024", "2^10|2**10", "210|2"),
    ("10", "4+6=10|x = 10|4 + 6 is 10", "4|6"),
    ("2", "x = 2|2 kg", "2k+2|The answer is 2k+2.|1/2 of it"),
    ("15", "it is 15 liters of water out of the 24 liters", "so 24 l"),
    ("7", "There are 7 apples in 3 boxes.|4 and 3 more is 7 in all", "a 3"),
    ("460", "$400 + $60 = $460|$40 + $420 = $460 for 5 rides in all", "$40"),
    ("125", "it sells for $375, a profit of $125\n#### 125|#### $125", "$375"),
    ("109", "2 * 50 + 9 = 109\n#### 109|\n#### 109\n\n", "2 + 107 = 109\n#### 9"),
    ("73", "437 + 2*234 = 905\n\n✅ Final Answer: **73**", "905"),
    ("12", "I count 12 apples\nand thus 12 it is: 12", "1"),
    ("4210_5", r"\boxed{4210_{5}}|It is 4210_5.", r"\boxed{4210_7}|4210"),
    (r"\frac{1}{2^{98}}", r"\boxed{2^{-98}}", r"\boxed{\frac{1}{2^{99}}}|0"),
    ("1/3", "0.333333333", "0.333"),
    (r"90^\circ", "90|90°|90 degrees", "9"),
    ("C", "not A, but C|It is C and not A|Is 7 not even? C", "not C|It isn't C|nor C"),
    ("B", "I think, B|B. 42|It is (B) 42|so B is correct", "A, B|B or A|B) 3 C) 4"),
    ("Yes", "Yes, it is.|Well, yes!|Not no, but yes", "Yes, no|yes and no"),
    ("No", "No, it is not.", "Not so, yes|No one is|Yes or no"),
    ("42", "It is 42 or so|42 or less", "It is 42 or 43.|It's either 42 or 43."),
    ("1000", "1'000", "1'0"),
    ("6", "As 7 is not even the answer is 6|6, not 7", "It is not 6|6 is not it"),
    ("not guilty", "It is not guilty.", "guilty"),
    ("Monday", r"It is Monday.|\boxed{\text{monday}}|monday", "Sunday|day|M"),
    (r"\text{(C)}", r"The answer is (C).|C|\textbf{(C)}", r"B|\boxed{B, C}"),
    ("True", "true|It is True", "False|e|t"),
    ("None", "none", "n|e"),
    ("a cat", "It is a cat.|a  cat", "cat|tac a"),
    ("No", r"The answer is no.|**No**|\text{No}", r"Yes|\boxed{on}|N"),
    ("OK", "OK|It is OK.", "K"),
    ("Apollo 11", "It was: Apollo 11.", "11|Apollo 12"),
    ("A, C", r"A, C|\boxed{A, C}", "A|C, B"),
    ("0.25", ".25|It is .25|$.25", "25|.52"),
    ("50", "50|50%", ".50|$.50"),
    ("0.5", r"50%|50 %|\boxed{50\%}", "0.5%|5%"),
    ("60", r"60 km/h|60km/h.|60 m/s²|60 cm^2|\boxed{60 km/h}", "61 km/h|60^2"),
    ("2", "2 m", "2m^2|2m+1|2m/s^2-1"),
    ("1.6e-19", r"1.6 \times 10^{-19}", "1.7e-19|-1.6e-19|9.1e-31|0"),
    ("0.000001", "1e-6|0.00000100001", "0.0000014"),
    (r"\pm 5", "±5", "5|-5"),
    ("5", "5|<answer> **5** </answer>", "x = ±5"),
    ("8", "4^1.5|8\n---", "4^15"),
    ("π", r"\pi|\boxed{\pi}", "p|3"),
    ("A", "It is A|a|The answer is a|(a)", "I cannot give you a|B"),
    # the last tag or box counts, and the end of what is long
    ("8", "<think>maybe 7</think><answer>8</answer>|<answer>8</answer> 9", "7"),
    ("8", r"<think><answer>7</answer></think>\boxed{8}", "<answer>7</answer> or 8"),
    ("8", "<think>in <answer> and </answer>, so</think>The answer is 8.", "7"),
    ("8", r"\boxed{3}, wait, no: \boxed{8}", r"\boxed{8}, wait, no: \boxed{3}"),
    ("8", "x" * 9000 + r"\boxed{8}", r"it is 8: \boxed{}|<think>so \boxed{8}? Wait"),
    ("8", r"\boxed{8}" + " " * 9000, "8 " + "or 7 " * 9000),
]
WRITTEN = [
    # an equation in unknowns says more than the value on its right side
    ("1", "x = 1|a - b = 1|f(3)=1", r"\boxed{x^2+y^2=1}|$xy+3x=1$|e^x = 1"),
    ("0", "n = 0", r"\boxed{2x+3y-7=0}|\boxed{x^2-4=0}|I(0)|\boxed{I(0)}"),
    ("6", "2 * 3 = 6|AB = 6|P(2) = 6", "The line is 2x + 3y = 6.|2x = 6|x + 1 = 6"),
    ("2x+1", r"\boxed{y = 2x+1}", r"\boxed{y^2 = 2x+1}"),
    ("2x+3y=6", r"\boxed{2x+3y-6=0}|$4x + 6y = 12$", "6|2x+3y=7"),
    # a product of brackets
    ("12", r"\boxed{3(4)}|$(3)(4)$|\boxed{\left(-3\right)(-4)}", r"\boxed{5(7)}"),
    ("7", "7", r"\boxed{3(4)}|$(3)(4)$"),
    # no number is picked out of a formula that cannot be read
    ("0", "0", r"\boxed{x \geq -3, x \frac 0}|\boxed{\{x \mid x \ne 0\}}"),
    ("(2)(3)", r"\boxed{(2)(3)}|②③", r"\boxed{(1)(6)}|\boxed{(1)(4)}|6|5|(2)"),
    # units
    ("3", "3 g|2 g + 1 g = 3 g|v = 3m/s", "y = 3x|3x|$3x$"),
    ("0.2", r"$P(A \cap B) = 0.2$|P(X=2) = 0.2", r"P(X=0.2)"),
    ("12.5", "It is 12.5m².|12.5cm³|12.5m2|12.5 °C|12.5kg|12.5 ft²", "12.5² m|2.5m²"),
    ("1000.99", "1,000.99m²|1000,99 €", "1000,9"),
    # a sentence after an equation, and after the answer
    ("5", "12 - 5 = 7. So she has 5 left.|12 g - 7 g = 5 g. I hope it helps.", "2+3=4"),
    ("7", "The answer is 7. As 3 + 7 is 10, it fits.", "12 - 5 = 7. So 5 are left."),
    ("Monday", "The final answer is Monday. I hope it is correct.", "Monday or Friday"),
    # several boxes
    ("{1,2}", r"\boxed{1} and \boxed{2}|$\boxed{2}$, $\boxed{1}$", r"\boxed{2}"),
    ("{1,2}", r"\boxed{1, 2}", r"\boxed{1}, no: \boxed{2}"),
    ("5", "5", r"x = \boxed{3} or x = \boxed{5}"),
    ("30", r"First: \boxed{12}. Final answer: 30", r"\boxed{30}. The answer is 12"),
    ("44", r"\boxed{44}. So the answer is correct: 2 * 22 = 44", r"\boxed{4}"),
    # letters
    ("(D) Marta", r"D|(D)|Marta|\boxed{D: Marta}|Option D is correct.", "B|D or E"),
    ("B", "The answer is option B because A is wrong.|So it is (B).", "B and C|A"),
    (
        "B",
        "$\\boxed{\\textbf{(B)}\\ 12}$|Answer: (B).\n\nParis is big.",
        r"\boxed{A, B}",
    ),
    ("12", r"$\boxed{\textbf{(B)}\ 12}$|$\textbf{(B) }12$", r"$\textbf{(B) }13$"),
    ("A", "A is correct. B is incorrect.", "B is correct. A is incorrect."),
    # a reason is no answer
    ("B", "B because A is 12", "A because B is 12"),
    ("5", "It has risen 5 since 1990.|5 (since 2 + 3 = 5)", "3, because 5 is larger."),
    # ranges, and a letter for a sign
    ("12", "The answer is 12 to one.|3 x 4 = 12", "It takes 10 to 12 days."),
    ("12", "It is between them: 12", "It is between 10 and 12.|10 to 12|from 10 to 12"),
    # Chinese and Japanese
    ("3/4", "答案是3/4。|答えは3/4です。|概率为 0.75", "答案不是3/4|3/4或1"),
    ("3, 8", "答案是3或8。|The answer is 3 or 8.", "8|答案是3"),
    ("①③", r"正确的有①③。|\textcircled{1}\textcircled{3}|①、③", r"①|\boxed{13}|13"),
    ("B", "故选B。|选项B正确|B不是A", "选A"),
    # references as they stand in data sets
    ("$x=2,y=-1$.", r"\boxed{x=2,y=-1}", r"\boxed{x=2,y=1}"),
    (r"$(-\infty,2)\cup\{5\}$.", r"$(-\infty, 2) \cup \{5\}$", r"$(-\infty,2)$"),
    ("Solution is: $2, 5$", r"\boxed{5, 2}", "5"),
    ("$3$ or $8$", r"\boxed{3,8}|The answer is $8$ or $3$.", r"\boxed{8}"),
    ("<answer>84</answer>", r"84|\boxed{84}", "8"),
    (r"k=\frac{8}{4}=2", r"\boxed{2}|k=2|\boxed{k=\frac{8}{4}=2}", "4"),
    (r"16.\overline{6}", r"\boxed{\frac{50}{3}}", "16.6"),
    (r"\frac{1}{4}E_{1}", r"\boxed{\frac{1}{4} E_1}", r"\boxed{E_1}"),
    (r"$\{x \mid x<0\}$", r"\boxed{\{x\mid x < 0\}}", r"\boxed{\{x \mid x>0\}}"),
    ("b > a > c", r"\boxed{b>a>c}", r"\boxed{a>b>c}"),
    ("2024-01-31", "It is 2024-01-31.", "1992|2024-01-30"),
]


@pytest.mark.parametrize(("reference", "right", "wrong"), TYPED + WRITTEN)
def test_an_answer_is_paid_as_people_and_models_write_it(reference, right, wrong):
    """And no lone number of a formula is."""
    needs("math_verify")
    given = [*right.split("|"), *wrong.split("|")]
    scores = answers.math_correct([], given, answer=[reference] * len(given))
    wanted = [1.0] * (right.count("|") + 1) + [0.0] * (wrong.count("|") + 1)
    assert dict(zip(given, scores)) == dict(zip(given, wanted))


@pytest.mark.parametrize("reference", ["", r"\frac{", "x^", "???"])
def test_a_reference_that_can_never_be_paid_is_named_with_its_row(reference):
    needs("math_verify")
    with pytest.raises(UserError, match=r"reference in row 2, .*cannot be compared"):
        answers.math_correct([], ["7"] * 3, answer=["7", "x", reference])


def test_every_reference_that_is_accepted_is_paid():
    """Also where math-verify reads nothing; in a box, and after `answer is`."""
    needs("math_verify")
    own = (
        r"E_1,E_2|\bigcup_{k=1}^{n}(k, 2k)|\emptyset|H_2O|\alpha|11,\! 111|"
        r"若x减小,则y也减小|Yes. F(x, y)=x y^{2}+x^{3}|C. {x \mid-3<x<4}"
    )
    references = [row[0] for row in WRITTEN] + own.split("|")
    for form in (r"\boxed{%s}", "<answer>%s</answer>", "The answer is $%s$."):
        if "answer is" in form:
            references = [one for one in references if ". " not in one]
        own = [form % answers._reference(one).replace("$", "") for one in references]
        scores = answers.math_correct([], own, answer=references)
        assert scores == [1.0] * len(own), [o for o, s in zip(own, scores) if s != 1]


HOSTILE = [
    *("(" * 3000, r"\boxed{" * 900, r"$\frac{" * 600),
    *(r"\boxed{10^{10^{10}}}", r"\boxed{100000000!}", r"\boxed{(x+1)^{10000}}"),
    *("1e999999999", "9" * 4000, "x" * 10**6, "not " * 2000, "是" * 2000),
    *(r"\boxed{" + "{" * 2000 + "}" * 2001, "7\x00\ud800", None),
]


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
def test_no_answer_takes_another_ones_verdict_or_more_than_its_time():
    needs("math_verify")
    given = [text for hostile in HOSTILE for text in (hostile, "It is 42.")]
    began = time.monotonic()
    scores = answers.math_correct([], given, answer=["42"] * len(given))
    assert scores == [0.0, 1.0] * len(HOSTILE)
    assert time.monotonic() - began < 2 * len(HOSTILE) + 20  # and what is started


def test_references_are_read_before_anything_is_sampled(monkeypatch):
    needs("math_verify")

    class Unreadable(Arithmetic):
        def sample(self, n, seed):
            return [{**row, "answer": r"\frac{"} for row in super().sample(n, seed)]

    monkeypatch.setattr(import_module("refimpl.loop"), "collect", None)
    config = TrainConfig(rollouts=1, device="cpu")
    for reward in (answers.math_correct, Sum({"right": answers.math_correct})):
        with pytest.raises(UserError, match="reference in row 0"):
            train("grpo", config=config, task=Unreadable(), reward=reward)


PIECES = r"<answer> </answer> \boxed{ $ { 1, 1,111 ½ = sqrt( 1·000· 1·1/ _111 \text{ -"
PIECES += r" pi a- \, ↵ ^1 is· :·"


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
@pytest.mark.parametrize("piece", PIECES.split())
def test_a_long_text_of_any_piece_is_read_at_once(piece):
    needs("math_verify")
    piece = piece.replace("·", " ").replace("↵", "\n")
    text, began = piece * (200_000 // len(piece)), time.process_time()
    for reference in ("7", "12345", "2k+2", "Monday", "a b\nc d", "[1, 2]"):
        for how in ("whole", "last", "tag"):
            answers.extracted(text, reference, how)
    references = ["7", "12345", "2k+2", "Monday", "a b c", "[1, 2]"]
    answers.math_correct([], [text] * 6, answer=references, time_limit=0.2)
    assert time.process_time() - began < 20  # what backtracks takes hours
