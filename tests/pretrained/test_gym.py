"""reasoning-gym's datasets as tasks: splits, settings, answers, and who judges them."""

import decimal
import os
import random
import signal
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from refimpl import UserError
from refimpl.pretrained import judge
from refimpl.pretrained.gym import EVALUATES, WHY, ReasoningGym
from refimpl.rewards import columns
from refimpl.tasks import TaskWarning
from tests.apart import scratch
from tests.worlds import needs

DATASETS = needs("reasoning_gym").factory.DATASETS
SUMS = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
SEVEN = {"answer": "7", "metadata": {}}
SUM_SCORER = ("reasoning_gym", "chain_sum", {})
PWNED = Path(scratch("hostile"), "pwned")
HOSTILE = (
    f"__import__('os').system('touch {PWNED}')",
    "().__class__.__base__.__subclasses__()",
    "[x for x in ()]",
    "9**9**9",
    "1e999999",
    "9" * 4000,
    "[" * 2000 + "]" * 2000,
    '{"a":' * 600 + "1" + "}" * 600,
    "\\boxed{7}",
    "nan",
    "7\x00",
    "",
)


@pytest.fixture
def task():
    return ReasoningGym("chain_sum", extract="last", partial_credit=False, **SUMS)


@pytest.fixture(autouse=True)
def forget_warnings():
    judge.failed.clear()


def process():
    return judge._open[os.getpid(), "reasoning_gym"]


# Problems


def test_problems_are_those_of_the_dataset_with_what_the_reward_needs(task):
    rows = task.sample(64, 0)
    assert [row["prompt"] for row in rows] == [r["entry"]["question"] for r in rows]
    for row in rows:
        a, sign, b = row["prompt"].split(": ")[1].removesuffix(" =").split()
        right = int(a) + int(b) if sign == "+" else int(a) - int(b)
        assert (0 <= int(a) <= 9, row["answer"]) == (True, str(right))
    right = [row["answer"] for row in rows]
    assert task.reward([], right, **columns(rows)) == [1.0] * 64


def test_one_in_eight_is_held_out_by_its_question(task):
    trained = {row["prompt"] for row in task.sample(800, 0)}
    held_out = {row["prompt"] for row in task.held_out(200)}
    assert not trained & held_out
    assert all(zlib.crc32(q.encode()) % 8 == 0 for q in held_out)
    # Of 200 questions nearly all come up, an eighth of them held out.
    assert len(trained | held_out) > 180
    assert 0.06 < len(held_out) / len(trained | held_out) < 0.2
    task.held_out(2)[0]["prompt"] = "mine"  # who writes in a row writes in a copy
    assert task.held_out(2)[0]["prompt"] != "mine"


def test_the_same_seed_draws_the_same_and_touches_no_global_state(task, monkeypatch):
    def state():
        numpy = str(np.random.get_state())  # noqa: NPY002
        return random.getstate(), numpy, decimal.getcontext().prec

    before, rows = state(), task.sample(8, 3)
    assert rows == task.sample(8, 3) != task.sample(8, 4)
    assert rows != task.held_out(8, 3)
    ReasoningGym("pool_matrix").sample(2, 0)  # which seeds both generators
    ReasoningGym("decimal_arithmetic", precision=9).sample(1, 0)
    assert state() == before
    settings = "extract='last', max_digits=1, max_terms=2, min_terms=2"
    assert repr(task) == f"ReasoningGym('chain_sum', {settings}, partial_credit=False)"
    monkeypatch.setenv("REFIMPL_SALT", "1")
    assert rows != task.sample(8, 3)
    assert task.held_out(8) != task.held_out(8, 1)
    monkeypatch.setattr(ReasoningGym, "_entries", lambda *_: iter(()))
    with pytest.raises(UserError, match="of 384 problems only 0 can be used for train"):
        task.sample(2, 0)


# Settings


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("chainsum", {}, "did you mean 'chain_sum'"),
        ("chain_sum", {"max_term": 2}, "unexpected keyword argument 'max_term'"),
        ("chain_sum", {"extract": "first"}, "must be 'whole' or 'last'"),
        ("countdown", {}, "runs the answer as Python"),
        ("game_of_life_halting", {}, "rewards one text for nearly all problems"),
    ],
)
def test_bad_settings(name, settings, words):
    with pytest.raises(UserError, match=words):
        ReasoningGym(name, **settings)


# Rewards


def test_rewards_are_the_scorers_own_unless_only_full_marks_count(task):
    given = ["7", " +7.0\n", "it is 7", "8", ""]
    partial = ReasoningGym("chain_sum", **SUMS)
    # reasoning-gym pays an answer that contains the right one by its share of it.
    paid = partial.reward(given, given, entry=[SEVEN] * 5)
    assert paid == [1.0, 1.0, 1 / 7, 0.0, 0.0]
    last = ["4 + 3 = 7", "7 is 4 + 3", "-7", "x" * 5000 + "7", ""]
    assert task.reward(last, last, entry=[SEVEN] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]
    entry = [{"answer": "123", "metadata": {}}]
    full = ReasoningGym("chain_sum", partial_credit=False, **SUMS)
    paid = [one.reward([], ["12345"], entry=entry) for one in (partial, full)]
    assert paid == [[0.6], [0.0]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "scores", lambda *_: [0.995, 0.985])
        assert full.reward([], ["1", "2"], entry=entry * 2) == [1.0, 0.0]


def test_a_slow_answer_halves_the_time_of_the_next_down_to_a_sixteenth(monkeypatch):
    times = []

    def slow(scorer, answer, entry, limit):
        times.append(limit)
        return {"fate": "slow"}

    monkeypatch.setattr(judge, "verdict", slow)
    with pytest.warns(TaskWarning, match="sloth"):
        judge.scores(("reasoning_gym", "sloth", {}), ["7"] * 7, [SEVEN] * 7, 16.0)
    assert times == [16, 8, 4, 2, 1, 1, 1]


def test_the_scorer_has_the_settings_and_the_time_of_its_task():
    """decimal_arithmetic forgives one unit of the last decimal place it was set to."""
    entry, paid = [{"answer": "0.5", "metadata": {}}], []
    for n in (1, 4):
        places = {"min_num_decimal_places": 1, "max_num_decimal_places": n}
        one = ReasoningGym("decimal_arithmetic", **places)
        paid += one.reward([], ["0.55"], entry=entry)
    assert paid == [1.0, 0.0]
    # Fraction('1e999999999') computes 10**999999999 in C, deaf to any signal.
    slow, before = ("reasoning_gym", "coin_flip", {}), judge.failed.total()
    given = ["0.5", "1e999999999", "1/2", "1e999999998"]
    with pytest.warns(TaskWarning, match="coin_flip took longer than 0.4 s") as warned:
        assert judge.scores(slow, given, entry * 4, 0.4) == [1.0, 0.0, 1.0, 0.0]
    assert len(warned) == 1 and judge.failed["coin_flip", "slow"] >= 2
    assert judge.failed.total() == before + 2


@pytest.mark.parametrize("part", range(3))
def test_every_dataset_pays_its_own_answer_however_it_is_read(part):
    """A thought before it and a box around it take nothing away."""
    thought = f"<think>{'1, 2 or 3? ' * 500}</think>\n"
    for name in sorted({*DATASETS} - {*WHY})[part::3]:
        entry = next(e for e in ReasoningGym(name)._entries(99, 1))
        own = entry["answer"]
        if own is None:  # many are right
            continue
        tagged = f"{thought}<answer>{own}</answer>"
        read = {"whole": str(own), "last": f"{thought}{own}", "tag": tagged}
        for how, text in read.items():
            paid = ReasoningGym(name, extract=how).reward([], [text], entry=[entry])
            assert paid[0] >= 0.99, (name, how, text[-300:])


# What a model wrote is never run


@pytest.mark.parametrize("part", range(3))
def test_no_scorer_that_is_allowed_evaluates_an_answer(part, tmp_path, monkeypatch):
    """The scoring process refuses to compile; so an attempt is an error here."""
    monkeypatch.chdir(tmp_path)
    small = {"zebra_puzzles", "arc_agi", "rearc"}  # a second or more to make
    allowed = sorted({*DATASETS} - {*WHY} - small)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TaskWarning)  # some raise, some are slow
        for name in allowed[part::3]:
            entry = ReasoningGym(name).sample(1, 0)[0]["entry"]
            given = [*HOSTILE, f"{entry['answer']};{HOSTILE[0]}"]
            scorer = ("reasoning_gym", name, {})
            scores = judge.scores(scorer, given, [entry] * len(given), 5.0)
            turned = judge.scores(scorer, given[::-1], [entry] * len(given), 5.0)
            assert scores == turned[::-1], name  # none by those before it in its fork
    assert not PWNED.exists() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(EVALUATES))
def test_a_scorer_that_evaluates_is_stopped_as_well(name, tmp_path, monkeypatch):
    """Each of those that are refused by name; had it not been, this would stop it."""
    monkeypatch.chdir(tmp_path)
    dataset = ReasoningGym(name, scorer=lambda **given: [])
    entry = dataset.sample(1, 0)[0]["entry"]
    with pytest.raises(UserError, match=f"scorer of {name} tried to evaluate"):
        judge.scores(("reasoning_gym", name, {}), [HOSTILE[0]], [entry])
    assert not PWNED.exists() and not list(tmp_path.iterdir())


@pytest.fixture
def scored_by(tmp_path, monkeypatch):
    """What a stand-in for reasoning-gym pays, whose one scorer is `source`."""

    def scores(source, given=("7", "8"), entry=SEVEN):
        (package := tmp_path / "reasoning_gym").mkdir()
        (package / "__init__.py").write_text("")
        (package / "factory.py").write_text(
            "import os, time\n"
            "class Data:\n"
            "    def __init__(self, config): pass\n"
            f"    def score_answer(self, answer, entry): {source}\n"
            "DATASETS = {'mine': (Data, dict)}\n"
        )
        scorer = ("reasoning_gym", "mine", {})
        return judge.scores(scorer, given, [entry] * len(given), 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(judge, "_open", {})  # the others' process is left alone
        patch.syspath_prepend(tmp_path)
        yield scores
        judge.close()


@pytest.mark.parametrize(
    "source",
    [
        "return float(eval(answer) == 7)",
        "exec(f'x = {answer}'); return 1.0",
        "return float(eval(compile(answer, '<mine>', 'eval')) == 7)",
    ],
)
def test_only_a_whole_text_of_the_task_is_evaluated(source, scored_by):
    """The task wrote 3 + 4; a piece of that may come from anywhere."""
    metadata = {"solution": " 3 + 4", "code": "x = 3 + 4", "steps": 2}
    entry = {"answer": "7", "metadata": metadata}
    with pytest.raises(UserError, match=r"tried to evaluate .* got '3'"):
        assert scored_by(source, ("3 + 4 ", "3"), entry)


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
def test_a_process_scores_until_it_ends_and_a_new_one_takes_its_place(scored_by):
    source = (
        "os.environ[answer] = ''; answer == '0' and os._exit(3);"
        "return len({*'789'} & {*os.environ}) / 9"
    )
    assert scored_by(source, "78098") == [1 / 9, 2 / 9, 0, 1 / 9, 2 / 9]


def test_a_scorer_that_changes_its_entry_does_so_for_one_answer(scored_by):
    """The answers to one problem come with one entry."""
    source = "return float(entry.pop('answer', None) == answer)"
    assert scored_by(source, "787") == [1.0, 0.0, 1.0]


# No answer holds up training


@pytest.mark.parametrize(
    ("source", "words", "paid"),
    [
        ("return {}[answer]", "raised KeyError: '7' on the answer '7'", 0.0),
        ("os._exit(3)", "ended its process", 0.0),
        # 1.5 s would pass the default of 2 s
        ("return float(time.sleep(1.5 * (answer == '7')) is None)", "than 1 s", 1.0),
        ("raise SystemExit", "raised SystemExit", 0.0),
        pytest.param(
            "return float(len(bytes(5 * 2**30)) > 0)",
            *("raised MemoryError", 0.0),
            marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux alone"),
        ),
    ],
)
def test_a_failing_scorer_costs_the_answer(source, words, paid, scored_by):
    with pytest.warns(TaskWarning, match=words) as warned:
        assert scored_by(source) == [0.0, paid]
    assert len(warned) == 1


@pytest.mark.parametrize("value", ["1.5", "-0.1", "float('nan')"])
def test_a_score_outside_0_and_1_is_refused(value, scored_by):
    with pytest.raises(UserError, match=r"scorer of mine returned .* for the answer"):
        scored_by(f"return {value}")


def test_the_clock_stops_with_the_verdict_and_ctrl_c_does_not_reach_the_process():
    """One that waits for the next answer is not one that takes too long; and a
    terminal sends Ctrl-C to both, but a run ends where it wants, with its scores. Then
    the process ends as well."""
    judge.scores(SUM_SCORER, ["7"], [SEVEN])
    first = process()
    assert judge.scores(SUM_SCORER, ["7"], [SEVEN], 0.5) == [1.0]
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.7)
    first.send_signal(signal.SIGINT)
    assert judge.scores(SUM_SCORER, ["7"], [SEVEN]) == [1.0]
    assert process() is first
    judge.close()
    assert first.wait(5) < 0


def test_an_interrupted_answer_leaves_no_verdict_to_the_next(monkeypatch):
    """Ctrl-C in a notebook, while the verdict on 7 is awaited."""

    def interrupted():
        raise KeyboardInterrupt

    judge.scores(SUM_SCORER, ["7"], [SEVEN])
    with monkeypatch.context() as patch:
        patch.setattr(process().stdout, "readline", interrupted)
        with pytest.raises(KeyboardInterrupt):
            judge.scores(SUM_SCORER, ["7"], [SEVEN])
    assert judge.scores(SUM_SCORER, ["8", "7"], [SEVEN] * 2) == [0.0, 1.0]
