"""reasoning-gym's datasets as tasks: splits, settings, answers, and who judges them."""

import copy
import decimal
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from refimpl import TrainConfig, train
from refimpl.__main__ import main, parse_task
from refimpl.collect import collect
from refimpl.real import answers, judge
from refimpl.real.gym import ReasoningGym
from refimpl.real.judge import TaskWarning
from refimpl.rewards import columns
from refimpl.tasks import Arithmetic
from refimpl.trainer import prepare

gym = pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS  # noqa: E402

from refimpl.real.gym import EVALUATES, FORWARDS, from_texts  # noqa: E402

SUMS = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
PWNED = Path(tempfile.mkdtemp(prefix="refimpl-hostile-"), "pwned")
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
    judge._warned.clear()


def test_problems_are_those_of_the_dataset(task):
    rows = task.sample(64, 0)
    assert [row["prompt"] for row in rows] == [r["entry"]["question"] for r in rows]
    for row in rows:
        terms = row["prompt"].split(": ")[1].removesuffix(" =")
        a, sign, b = terms.split()
        right = int(a) + int(b) if sign == "+" else int(a) - int(b)
        assert (0 <= int(a) <= 9, row["answer"]) == (True, str(right))


def test_one_in_eight_is_held_out_by_its_question(task):
    trained = {row["prompt"] for row in task.sample(1500, 0)}
    held_out = {row["prompt"] for row in task.held_out(400)}
    assert not trained & held_out
    assert all(zlib.crc32(q.encode()) % 8 == 0 for q in held_out)
    # Of 200 questions nearly all come up, an eighth of them held out.
    assert len(trained | held_out) > 180
    assert 0.06 < len(held_out) / len(trained | held_out) < 0.2


def test_the_same_seed_draws_the_same_and_touches_no_global_dice(task, monkeypatch):
    before = random.getstate()
    rows = task.sample(8, 3)
    assert rows == task.sample(8, 3) != task.sample(8, 4)
    assert rows != task.held_out(8, 3)
    ReasoningGym("pool_matrix").sample(2, 0)
    assert random.getstate() == before
    monkeypatch.setenv("REFIMPL_SALT", "1")
    assert rows != task.sample(8, 3)
    assert task.held_out(8) != task.held_out(8, 1)


def test_too_few_questions_are_said_and_not_waited_for():
    with pytest.raises(ValueError, match=r"max_n=1\) has too few questions: of 512"):
        ReasoningGym("count_bits", max_n=1).held_out(4)


def test_a_task_is_its_settings(task):
    assert repr(task) == (
        "ReasoningGym('chain_sum', extract='last', max_digits=1, max_terms=2, "
        "min_terms=2, partial_credit=False)"
    )
    assert task == copy.deepcopy(task) == pickle.loads(pickle.dumps(task))
    assert hash(task) == hash(copy.copy(task))
    assert task != ReasoningGym("chain_sum", **SUMS)
    own = ReasoningGym("countdown", scorer=answers.contains_answer)
    assert "refimpl.real.answers.contains_answer" in repr(own)


@pytest.mark.parametrize(
    ("name", "settings", "error", "said"),
    [
        ("chainsum", {}, ValueError, "did you mean 'chain_sum'"),
        (3, {}, ValueError, "no dataset 3; it has: ab"),
        ("chain_sum", {"max_term": 2}, TypeError, "did you mean 'max_terms'"),
        ("chain_sum", {"seed": 2}, TypeError, "no setting 'seed'"),
        ("chain_sum", {"max_terms": 1}, ValueError, "max_terms must be >= min_terms"),
        ("chain_sum", {"max_terms": "2"}, ValueError, "a whole number, got '2'"),
        ("chain_sum", {"extract": "first"}, ValueError, "one of 'whole', 'last'"),
        ("chain_sum", {"time_limit": 0}, ValueError, "time_limit must be a number > 0"),
        ("chain_sum", {"scorer": 3}, ValueError, "scorer must be a function"),
        ("calendar_arithmetic", {"tasks": ["x"]}, ValueError, "Invalid tasks: x"),
        ("countdown", {}, ValueError, "runs the answer as Python"),
        ("composite", {}, ValueError, "no dataset 'composite'"),
    ],
)
def test_bad_settings(name, settings, error, said):
    with pytest.raises(error, match=said):
        ReasoningGym(name, **settings)


def test_rewards_are_the_scorers_own_unless_only_full_marks_count(task):
    entry = [{"answer": "7", "metadata": {}}] * 5
    given = ["7", " +7.0\n", "it is 7", "8", None]
    partial = ReasoningGym("chain_sum", **SUMS)
    # reasoning-gym pays an answer that contains the right one by its share of it.
    assert partial.reward(given, given, entry=entry) == [1.0, 1.0, 1 / 7, 0.0, 0.0]
    last = ["4 + 3 = 7", "7 is 4 + 3", "-7", "x" * 5000 + "7", ""]
    assert task.reward(last, last, entry=entry) == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "reference", "how", "answer"),
    [
        (" 4 + 6 = 10.\n", "10", "whole", "4 + 6 = 10."),
        ("4 + 6 = 10.", "10", "last", "10"),
        ("10-3", "7", "last", "3"),
        ("it is -3", "7", "last", "-3"),
        ("1,234.50 in all", "7", "last", "1,234.50"),
        ("none", "7", "last", ""),
        ("it is .5", "5", "last", ""),
        ("7, not ٨", "7", "last", "7"),
        ("1,2,3", "3", "last", "3"),
        ("12,345,67", "7", "last", "67"),
        ("that makes \N{MINUS SIGN}7", "7", "last", "-7"),
        ('Backward: "olleh".', "olleh", "last", "olleh"),
        ("So:\nb, a", "b, a", "last", "b, a"),
        ("<answer>1</answer> no <answer> 2 </answer>.", "2", "tag", "2"),
        ("<answer>1", "1", "tag", ""),
        ("5 </answer>", "5", "tag", "5"),
    ],
)
def test_extraction(text, reference, how, answer):
    assert answers.extracted(text, reference, how) == answer


def test_habits_tell_the_forms_apart():
    given = ("10", " sun. ", "4 + 6 = 10", "It is 10.", "", "1\n2")
    shown = [answers.habit(text) for text in given]
    assert shown == ["bare", "bare", "equation", "sentence", "other", "other"]
    assert set(shown) == set(ReasoningGym.habits)


def test_a_lax_scorer_pays_for_a_list_of_numbers():
    given = ["1 2 3 4 5 6 7 8", "8", "77", "7.5", None]
    paid = answers.contains_answer([], given, answer=["7"] * 5)
    assert paid == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("part", range(6))
def test_no_scorer_that_is_allowed_evaluates_an_answer(part, tmp_path, monkeypatch):
    """The scoring process refuses to compile; so an attempt is an error here."""
    monkeypatch.chdir(tmp_path)
    small = {"zebra_puzzles", "arc_agi", "rearc"}  # a second or more to make
    allowed = sorted(set(DATASETS) - EVALUATES - FORWARDS - small)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TaskWarning)  # some raise, some are slow
        for name in allowed[part::6]:
            entry = ReasoningGym(name).sample(1, 0)[0]["entry"]
            given = [*HOSTILE, f"{entry['answer']};{HOSTILE[0]}"]
            scores = judge.scores(
                ("reasoning_gym", name, {}), given, [entry] * len(given), 5.0
            )
            assert len(scores) == len(given), name
    assert not PWNED.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(EVALUATES))
def test_a_scorer_that_evaluates_is_stopped_as_well(name, tmp_path, monkeypatch):
    """Each of those that are refused by name; had it not been, this would stop it."""
    monkeypatch.chdir(tmp_path)
    own = ReasoningGym(name, scorer=answers.contains_answer)
    entry = own.sample(1, 0)[0]["entry"]
    with pytest.raises(ValueError, match=f"scorer of {name} tried to evaluate"):
        judge.scores(("reasoning_gym", name, {}), [HOSTILE[0]], [entry])
    assert not PWNED.exists()
    assert not list(tmp_path.iterdir())


def test_an_answer_that_keeps_c_busy_is_stopped_in_time():
    """Fraction('1e999999999') computes 10**999999999, deaf to any signal."""
    entry = {"answer": "0.5", "metadata": {}}
    before = judge.failed["coin_flip", "slow"]
    with pytest.warns(TaskWarning, match="coin_flip took longer than 0.3 s") as said:
        scores = judge.scores(
            ("reasoning_gym", "coin_flip", {}),
            ["0.5", "1e999999999", "1/2", "1e999999998"],
            [entry] * 4,
            0.3,
        )
    assert scores == [1.0, 0.0, 1.0, 0.0]
    assert judge.failed["coin_flip", "slow"] == before + 2
    assert len(said) == 1


def broken(tmp_path, monkeypatch, source):
    """A stand-in for reasoning-gym whose one scorer is `source`."""
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "factory.py").write_text(
        "import os, time\n"
        "class Data:\n"
        "    def __init__(self, config): pass\n"
        f"    def score_answer(self, answer, entry): {source}\n"
        "DATASETS = {'mine': (Data, dict)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    judge.close()
    entry = {"answer": "7", "metadata": {}}
    try:
        return judge.scores(("reasoning_gym", "mine", {}), ["7", "8"], [entry] * 2, 1.0)
    finally:
        judge.close()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("return {}[answer]", "raised KeyError: '7' on the answer '7'"),
        ("os._exit(3)", "ended its process"),
        ("time.sleep(60)", "took longer than 1 s"),
        ("raise SystemExit", "raised SystemExit"),
        ("return 'much'", "raised ValueError"),
    ],
)
def test_a_scorer_that_fails_costs_the_answer_not_the_run(
    source, said, tmp_path, monkeypatch
):
    with pytest.warns(TaskWarning, match=said) as warned:
        assert broken(tmp_path, monkeypatch, source) == [0.0, 0.0]
    assert len(warned) == 1


@pytest.mark.parametrize("value", ["1.5", "-0.1", "float('nan')"])
def test_a_score_outside_0_and_1_is_refused(value, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"scorer of mine returned .* for the answer"):
        broken(tmp_path, monkeypatch, f"return {value}")


def test_a_scorer_may_print(tmp_path, monkeypatch):
    source = "print('{}'); os.write(1, b'x'); return float(answer == '7')"
    assert broken(tmp_path, monkeypatch, source) == [1.0, 0.0]


def test_a_scorer_that_cannot_be_imported_says_so():
    with pytest.raises(ValueError, match="scorer of nosuch cannot be used: KeyError"):
        judge.scores(("reasoning_gym", "nosuch", {}), ["1"], [{}])


def test_one_process_is_kept_and_a_script_without_a_main_guard_may_score(tmp_path):
    """A spawned worker would import the script again; this one must not."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(judge.__file__).parent)!r})\n"
        "import judge\n"  # without torch
        "scorer = ('reasoning_gym', 'chain_sum', {})\n"
        "entry = [{'answer': '7', 'metadata': {}}]\n"
        "print(judge.scores(scorer, ['7'], entry), end=' ')\n"
        "first = judge._one.process.pid\n"
        "print(judge.scores(scorer, ['8'], entry), end=' ')\n"
        "print(first == judge._one.process.pid, judge._one.process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120
    )
    *said, pid = done.stdout.split()
    assert (said, done.stderr) == (["[1.0]", "[0.0]", "True"], "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_mathematics_is_compared_as_such():
    pytest.importorskip("math_verify")
    right = ["1/2", "0.5", r"\frac12", r"so it is $\frac{2}{4}$.", r"\boxed{0.5}"]
    wrong = ["2", "", None, HOSTILE[0], r"\boxed{" + HOSTILE[0] + "}", "(" * 3000]
    given = [*right, *wrong]
    scores = answers.math_correct([], given, answer=["1/2"] * len(given))
    assert scores == [1.0] * len(right) + [0.0] * len(wrong)
    with pytest.warns(TaskWarning, match="math_verify took longer than 1 s"):
        paid = answers.math_correct([], ["9**9**9"], answer=[7], time_limit=1.0)
    assert paid == [0.0]


class Doubling:
    """A reader's own task: five lines."""

    habits, habit = ("even", "odd"), lambda self, text: "odd"
    sample = lambda self, n, seed: [{"prompt": "1+1=", "two": "#2"}] * n  # noqa: E731
    held_out = sample
    reward = lambda self, prompts, completions, two, **_: [  # noqa: E731
        float(c == t) for c, t in zip(completions, two)
    ]


ONE = TrainConfig(rollouts=1, prompts_per_rollout=8, eval_problems=8)


def test_a_task_of_ones_own_is_five_lines():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TaskWarning)
        history = train("grpo", task=Doubling(), config=ONE, progress=False)
    assert history["habit/odd"] == [1.0]


class Never(Doubling):
    def reward(self, prompts, completions, **_):
        return [0.0] * len(completions)


def test_a_task_never_solved_is_said_once_with_samples():
    run = prepare("grpo", ONE, task=Never())
    with pytest.warns(TaskWarning, match="none of the 64 answers") as said:
        collect(run, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TaskWarning)
        collect(run, 1)
    shown = str(said[0].message)
    assert "max_new_tokens" in shown
    assert "=" in shown.split("Two of them: ")[1]  # what the tiny model writes


def test_the_courses_world_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error", TaskWarning)
        history = train("grpo", config=ONE, progress=False)
    assert 0 < history["reward"][0] < 1


@pytest.mark.parametrize(
    ("name", "pairs", "task"),
    [
        ("arithmetic", (), Arithmetic()),
        ("arithmetic", ("max_terms=3",), Arithmetic(max_terms=3)),
        (
            "reasoning-gym:chain_sum",
            ("max_terms=2", "extract=last"),
            ReasoningGym("chain_sum", max_terms=2, extract="last"),
        ),
        (
            "reasoning-gym:basic_arithmetic",
            ("operators=+,-", "allow_negation=false"),
            ReasoningGym(
                "basic_arithmetic", operators=["+", "-"], allow_negation=False
            ),
        ),
    ],
)
def test_tasks_by_name_on_the_command_line(name, pairs, task):
    assert parse_task(name, pairs) == task


def test_a_choice_is_read_from_text():
    sorting = from_texts("word_sorting", {"transformation": "lowercase"})
    assert sorting.difficulty["transformation"].value == "lowercase"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--task arithmetics", "did you mean 'arithmetic'"),
        ("--task reasoning-gym:chainsum", "did you mean 'chain_sum'"),
        ("--task reasoning-gym:chain_sum", "give a --model"),
        ("--task reasoning-gym:countdown", "runs the answer as Python"),
        ("--task reasoning-gym:chain_sum --task-set max_term=2", "'max_terms'"),
        ("--task reasoning-gym:chain_sum --task-set max_terms=x", "got 'x'"),
        ("--task-set max_terms", "--task-set takes name=value"),
        ("--task-set max_term=3", "did you mean 'max_terms'"),
        ("--system x", "the model has none"),
        ("--system x --no-chat", "--no-chat turns it off"),
    ],
)
def test_bad_tasks_on_the_command_line(flags, said, capsys):
    assert main(["train", "--algorithm", "grpo", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_row_gives_the_reward_what_it_needs(task):
    rows = task.sample(2, 0)
    right = [row["answer"] for row in rows]
    assert task.reward([], right, **columns(rows)) == [1.0, 1.0]


# What the scoring process promises


SEVEN = {"answer": "7", "metadata": {}}
SUM_SCORER = ("reasoning_gym", "chain_sum", {})


def test_an_answer_may_have_4096_characters_and_no_more():
    given = [" " * 4095 + "7", " " * 4096 + "7"]
    assert judge.scores(SUM_SCORER, given, [SEVEN] * 2) == [1.0, 0.0]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_scorer_gets_so_much_memory_and_no_more(tmp_path, monkeypatch):
    source = "return float(len(bytes(3 * 2**30)) > 0)"
    with pytest.warns(TaskWarning, match="raised MemoryError"):
        assert broken(tmp_path, monkeypatch, source) == [0.0, 0.0]


def test_the_limit_that_is_given_is_the_one_that_stops(tmp_path, monkeypatch):
    """1 s in `broken`, where 1.5 s would pass the default of 2 s."""
    source = "return float(time.sleep(1.5 if answer == '7' else 0) is None)"
    with pytest.warns(TaskWarning, match="took longer than 1 s"):
        assert broken(tmp_path, monkeypatch, source) == [0.0, 1.0]


def test_no_file_name_makes_an_answer_code(tmp_path, monkeypatch):
    source = "return float(eval(compile(answer, '<mine>', 'eval')) == 7)"
    with pytest.raises(ValueError, match="tried to evaluate the answer '8'"):
        broken(tmp_path, monkeypatch, source)


def test_importing_a_scorer_does_not_count_as_its_answers_time(tmp_path, monkeypatch):
    source = "return float(answer == '7')\ntime.sleep(1.5)"
    assert broken(tmp_path, monkeypatch, source) == [1.0, 0.0]


def test_the_clock_stops_with_the_verdict():
    """A process that waits for the next answer is not one that takes too long."""
    judge.scores(SUM_SCORER, ["7"], [SEVEN])
    assert judge.scores(SUM_SCORER, ["7"], [SEVEN], 0.5) == [1.0]
    with pytest.raises(subprocess.TimeoutExpired):
        judge._one.process.wait(1.0)


def test_ctrl_c_does_not_reach_the_scoring_process():
    """A terminal sends it to both; the run ends where it wants, with its scores."""
    judge.scores(SUM_SCORER, ["7"], [SEVEN])
    first = judge._one.process
    first.send_signal(signal.SIGINT)
    assert judge.scores(SUM_SCORER, ["7"], [SEVEN]) == [1.0]
    assert judge._one.process is first


def test_threads_get_their_own_verdicts():
    given = {"7": 1.0, "8": 0.0}
    found: dict[str, list] = {}

    def ask(answer):
        found[answer] = [
            judge.scores(SUM_SCORER, [answer], [SEVEN]) for _ in range(100)
        ]

    threads = [threading.Thread(target=ask, args=(a,), daemon=True) for a in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == {a: [[score]] * 100 for a, score in given.items()}


def test_the_time_limit_of_a_task_is_that_of_its_answers():
    task = ReasoningGym("coin_flip", time_limit=0.4)
    entry = [{"answer": "0.5", "metadata": {}}]
    with pytest.warns(TaskWarning, match="coin_flip took longer than 0.4 s"):
        assert task.reward([], ["1e999999999"], entry=entry) == [0.0]


def test_the_scorer_has_the_settings_of_its_task():
    """decimal_arithmetic forgives one unit of the last decimal place it was set to."""
    entry = [{"answer": "0.5", "metadata": {}}]
    paid = [
        ReasoningGym(
            "decimal_arithmetic", min_num_decimal_places=1, max_num_decimal_places=n
        ).reward([], ["0.55"], entry=entry)
        for n in (1, 4)
    ]
    assert paid == [[1.0], [0.0]]


def test_a_scorer_of_ones_own_judges_instead_and_knows_the_entry():
    def third(prompts, completions, *, answer, entry, **_):
        return [float(c == e["third"]) for c, e in zip(completions, entry)]

    task = ReasoningGym("countdown", scorer=third)
    rows = {"answer": ["1", "1"], "entry": [{"third": "x"}] * 2}
    assert task.reward([], ["x", "1"], **rows) == [1.0, 0.0]


def test_every_setting_of_the_task_itself_is_in_its_name():
    given = {"extract": "tag", "partial_credit": False, "time_limit": 1.0}
    for field, value in given.items():
        task = ReasoningGym("chain_sum", **{field: value})
        assert repr(task) == f"ReasoningGym('chain_sum', {field}={value!r})"


def test_a_dataset_that_seeds_numpy_leaves_its_dice_alone():
    before = np.random.get_state()  # noqa: NPY002
    ReasoningGym("pool_matrix").sample(2, 0)
    after = np.random.get_state()  # noqa: NPY002
    assert (before[2], before[1].tolist()) == (after[2], after[1].tolist())


def test_a_dataset_that_makes_no_problem_is_named(monkeypatch):
    def cannot(config):
        raise IndexError("no\nwords")

    config = DATASETS["chain_sum"][1]
    monkeypatch.setitem(DATASETS, "chain_sum", (cannot, config))
    said = r"ReasoningGym\('chain_sum'\) could not make a problem: no words"
    with pytest.raises(ValueError, match=said):
        ReasoningGym("chain_sum").sample(1, 0)


def test_a_lax_scorer_reads_words_as_well_but_not_an_endless_text():
    given = ["the sun.", "moon", ""]
    assert answers.contains_answer([], given, answer=["sun"] * 3) == [1.0, 0.0, 0.0]
    assert answers.contains_answer([], given, answer=[""] * 3) == [0.0] * 3
    late = [" " * 4095 + "7", " " * 4096 + "7"]
    assert answers.contains_answer([], late, answer=[7, 7]) == [1.0, 0.0]


@pytest.mark.parametrize("package", ["reasoning_gym", "math_verify"])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    ask = {
        "reasoning_gym": lambda: ReasoningGym("chain_sum"),
        "math_verify": lambda: answers.math_correct([], ["7"], answer=["7"]),
    }
    said = rf'{package.replace("_", "-")} is not installed: pip install "refimpl'
    with pytest.raises(ValueError, match=said):
        ask[package]()


def test_a_reference_that_is_no_mathematics_is_said():
    pytest.importorskip("math_verify")
    with pytest.warns(TaskWarning, match="reference 'a cat' is no mathematics"):
        assert answers.math_correct([], ["a cat"], answer=["a cat"]) == [0.0]


def test_the_reference_is_the_side_that_may_be_a_relation():
    """math-verify takes an interval for an inequality, and not the other way round."""
    pytest.importorskip("math_verify")
    less, interval = "$x>2$", r"$(2,\infty)$"
    paid = answers.math_correct([], [interval, less], answer=[less, interval])
    assert paid == [1.0, 0.0]


@pytest.mark.parametrize(
    "text", ["exit()", "x", "Integer(1).real", "1;2", "[1]", "1 = 1"]
)
def test_what_sympy_may_compile_holds_no_name(text):
    assert judge.ARITHMETIC.fullmatch("Integer (1 )/Rational('2')\n")
    assert not judge.ARITHMETIC.fullmatch(text)


def test_an_interrupted_answer_leaves_no_verdict_to_the_next(monkeypatch):
    """Ctrl-C in a notebook, while the verdict on 7 is awaited."""

    def interrupted():
        raise KeyboardInterrupt

    judge.scores(SUM_SCORER, ["7"], [SEVEN])
    with monkeypatch.context() as patch:
        patch.setattr(judge._one.process.stdout, "readline", interrupted)
        with pytest.raises(KeyboardInterrupt):
            judge.scores(SUM_SCORER, ["7"], [SEVEN])
    assert judge.scores(SUM_SCORER, ["8", "7"], [SEVEN] * 2) == [0.0, 1.0]


def test_who_writes_in_a_held_out_row_writes_in_a_copy(task):
    rows = task.held_out(2)
    rows[0]["prompt"] = "mine"
    assert task.held_out(2)[0]["prompt"] != "mine"


def test_a_dataset_that_sets_the_precision_of_decimals_sets_only_its_own():
    before = decimal.getcontext().prec
    ReasoningGym("decimal_arithmetic", precision=9).sample(1, 0)
    assert decimal.getcontext().prec == before
