"""`read-log`: logs of runs with a fault in them, of healthy ones, and of no run.

The logs are real ones, of our trainer and TRL's: seed 2, which the limits never saw.
"""

import json
import math
import random
import re
from collections import defaultdict
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.store import DATA
from experiments.store import read as stored
from refimpl.cli import main
from refimpl.interop import logs, symptoms
from refimpl.validation import UserError

LOGS = Path(__file__).parent / "logs"
TRLS = {
    "rate": {"the ratio explodes", "reward falls"},
    "verifier": {"reward stays where it began", "a reward function never rewards"},
    "hack": {"reward rises, accuracy does not", "length grows"},
    "sign": {"reward falls"},
    "short": {"many answers are cut off"},
    "healthy": {},
}
OURS = TRLS | {
    "dead": {"most groups are dead"},
    "temperature": {"the ratio explodes"},
    "nucleus": {"… everywhere, much"},
    "stale": {"… more with every update"},
    "end": {},  # sixteen rollouts do not show that EOS is missing
    **{name: {} for name in "grpo ppo bfloat16".split()},
}
FILES = {f"trl_{name}.json": rows for name, rows in TRLS.items()}
FILES |= {f"{name}.csv": rows for name, rows in OURS.items() if name != "healthy"}
"""Logs, and the rows whose cause is the fault that was put in."""


def named(log) -> list[str]:
    return [one.row["symptom"] for one in symptoms.findings(log) if not one.harmless]


def log_of(**columns) -> logs.Log:
    """A log of these columns, under this course's names ('/' written as '__')."""
    cells = {name.replace("__", "/"): x for name, x in columns.items()}
    steps = [float(i) for i in range(len(next(iter(cells.values()))))]
    return logs.Log("log", steps, cells, {name: name for name in cells})


@pytest.mark.parametrize("file", FILES)
def test_a_fault_is_among_the_first_two_and_of_a_healthy_run_nothing_is_named(file):
    first = named(logs.read(LOGS / file))[:2]
    assert {*FILES[file]} & {*first} if FILES[file] else not first


@pytest.mark.ci
def test_the_stored_runs_at_the_default_rate_are_healthy_and_those_at_16_times_not():
    """All but those of GSPO with the published ε, of which a row says just that."""
    runs, rows = stored(DATA / "evidence")
    runs = runs.query("updates == 4 and world == 'sums'").set_index("run")
    cells, found = dict(iter(rows.groupby("run"))), defaultdict(list)
    for line in runs[runs["rate"].isin((2e-4, 32e-4))].itertuples():
        own = cells[line.Index].drop(columns=["run", "step"]).astype(object)
        columns = own.where(own.notna(), None).to_dict("list")
        found[line.rate, line.arm == "GSPO 3e-4"].append(named(log_of(**columns)))
    assert len(found[2e-4, False]) == 270
    assert sum(map(bool, found[2e-4, False])) <= 3
    assert all(x == ["clipped share very high"] for x in found[2e-4, True])
    fast = found[32e-4, False] + found[32e-4, True]
    assert all("the ratio explodes" in x[:2] for x in fast) and len(fast) == 100


# The table


UP = [i / 40 for i in range(40)]
FLAT = [0.5 + 0.02 * math.sin(i * i) for i in range(40)]
WAVES = [0.4, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4, 0.5]
DOWN = [0.8, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.28]
BIT, PART = (
    "sampler and trainer differ: everywhere, a little, from the start",
    "one reward falls while their sum rises",
)
CASES = [  # a row, a log that it fits, and one that it does not
    ("the ratio stays exactly 1", {"ratio__max_deviation": [1e-6]}, [0.1]),
    ("clipped share very high", {"clip_ratio__region_mean": [0.5]}, [0.1]),
    ("entropy collapses", {"entropy": DOWN[:2] + [0.05] * 6, "reward": WAVES}, DOWN),
    ("entropy grows without end", {"entropy": DOWN[::-1]}, WAVES),
    ("length shrinks", {"completions__mean_length": DOWN, "reward": WAVES}, WAVES),
    ("KL to the reference grows", {"kl": DOWN[::-1], "reward": DOWN}, WAVES),
    (
        "KL to the reference grows",
        {"objective__kl": [5 * 1.02**i for i in range(200)], "reward": UP * 5},
        [5 + math.sin(i) for i in range(200)],
    ),
    ("gradient norm spikes, or NaN", {"grad_norm": WAVES[:6] + [math.nan] * 2}, WAVES),
    ("gradient norm spikes, or NaN", {"grad_norm": [*WAVES[:7], 9.0]}, WAVES),
    ("gradient norm spikes, or NaN", {"reward": [0.5] * 7 + [math.nan]}, WAVES),
    ("gradient norm spikes, or NaN", {"entropy": [math.nan] * 8}, WAVES),
    ("the critic does not follow", {"explained_var": [0.02]}, [0.7]),
    ("the critic does not follow", {"value_loss": DOWN[::-1]}, WAVES),
    ("most groups are dead", {"reward_spread": [0.0]}, [1.0]),
    ("most groups are dead", {"reward_std": [0.0]}, WAVES),
    ("reward rises, then falls", {"reward": UP[:24] + DOWN}, [*DOWN, *UP[:24]]),
    ("reward stays where it began", {"reward": FLAT}, UP),
    ("held-out accuracy falls", {"accuracy": DOWN, "reward": WAVES}, WAVES),
    ("held-out accuracy falls", {"eval_reward": [-x for x in UP]}, UP),
    ("reward rises, accuracy does not", {"accuracy": DOWN, "reward": UP}, UP),
    ("reward rises, accuracy does not", {"eval_reward": FLAT, "reward": UP}, UP),
    ("KL to the reference is not 0 at the start", {"kl": [1.1]}, [0.0, 0.3, 1.0, 2.0]),
    (BIT, {"sampling__sampling_logp_difference__mean": [0.002]}, [0.0005]),
    ("KL or loss spikes", {"kl": [0.03] * 20 + [0.93, 0.03]}, UP),
    ("KL or loss spikes", {"kl": [0.03] * 20 + [math.inf]}, UP),
    ("KL or loss spikes", {"kl": UP + [math.nan] * 9}, [*UP[:9], math.nan, *UP[9:]]),
    ("KL or loss spikes", {"loss": [0.01, -0.02] * 10 + [-3.0]}, [0.01, -0.05]),
    (
        "right answers grow, wrong ones shrink",
        {"length__correct": DOWN[::-1], "length__wrong": DOWN},
        WAVES,
    ),
]


@pytest.mark.parametrize(("symptom", "columns", "other"), CASES)
def test_a_row_fits_what_it_describes_and_no_other(symptom, columns, other):
    def all_named(**columns):
        rows = max(8, *map(len, columns.values()))
        log = log_of(**{name: (rows * x)[:rows] for name, x in columns.items()})
        return [one.row["symptom"] for one in symptoms.findings(log)]

    assert symptom in all_named(**columns)
    assert symptom not in all_named(**columns | {next(iter(columns)): other})


def test_a_log_of_every_row_is_here():
    judged = {row["symptom"] for row in logs.DATA["row"] if "checks" in row}
    seen = {PART, *(case[0] for case in CASES)}.union(*OURS.values())
    assert seen == judged


def test_facts_are_these_by_hand():
    """A window of eight rows has two. First differences are 1 and 2 in turn, second
    ones 1: the smaller estimate is σ = 1/1.652. The end is 10, the start 0, and the
    difference of two rows' mean and one row has the error σ √1.5."""
    c = symptoms.Column([0.0, 1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 11.0])
    assert (c.k, c.few, c.start, c.late, c.best) == (2, 1, 0, 10, 10)
    assert math.isclose(symptoms.noise(c.x), 1 / 1.652)
    assert math.isclose(c.error(2, 1), math.sqrt(1.5) / 1.652)
    assert c.proven(1.5, 2, 1, 2) == 1.5 / 11 and c.proven(1.4, 2, 1, 2) == 0
    assert symptoms.monotone([1.0, 3.0, 2.0, 1.0, 5.0]) == [1.0, 2.0, 2.0, 2.0, 5.0]
    assert symptoms.fall(symptoms.Column([8.0, 4.0, 4.0, 2.0])) == 0.75
    (ratio,) = symptoms.findings(log_of(log_ratio__q01=[0.0, -0.5, -4.0, -2.0]))
    assert ratio.since == 2 and "is at most -4, at step 2" in ratio.words


def test_what_never_rose_has_not_risen_before_it_fell():
    assert named(log_of(reward=[1 - i / 64 for i in range(64)])) == ["reward falls"]


def test_a_spike_is_measured_by_the_rows_before_it_alone():
    """Not by itself, nor by later ones, nor by zeros. What one row in four reaches is
    usual."""
    assert symptoms.spikes([1.0, -1.0, 1.0, 1.0, 9.0, 1.0])[3:5] == [1.0, 9.0]
    assert symptoms.spikes([1.0, 2.0, 3.0, 4.0, 1.0])[4] == 1 / 4
    assert symptoms.spikes([1.0, 1.0, 1.0, 6.0, 12.0, 1.0, 1.0])[3:5] == [6.0, 2.0]
    assert symptoms.spikes([0.0, 0.0, 0.0, 2.0]) == [1.0, 1.0, 1.0, 1.0]
    assert symptoms.spikes([1.0, 9.0, 1.0, 1.0] * 4)[9] == 1.0


def test_noise_alone_is_no_finding_about_held_out_problems():
    dice = random.Random(0)
    runs = [[0.5 + 0.05 * dice.gauss(0, 1) for _ in range(10)] for _ in range(200)]
    fallen = [named(log_of(accuracy=x)) for x in runs]
    assert sum(map(bool, fallen)) <= 8


FLAT_REWARD = {"reward": FLAT, "frac_reward_zero_std": [0.02] * 40}


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"reward": FLAT}, "groups are all right or all wrong"),
        (FLAT_REWARD | {"frac_reward_zero_std": [0.9] * 40}, "groups are all right"),
        (FLAT_REWARD, "groups do differ in this log"),
        (FLAT_REWARD | {"kl": [x / 1000 for x in UP]}, "the policy hardly moves"),
        (
            FLAT_REWARD
            | {"learning_rate": [1e-9] * 40, "frac_reward_zero_std": [0.4] * 40},
            "the rate is too small",
        ),
        (FLAT_REWARD | {"kl": UP}, "the policy moves, but not towards the reward"),
        ({"reward": DOWN, "kl": [1e-5] * 8}, "other prompts or another reward"),
        (
            {"reward": DOWN, "accuracy": DOWN[::-1]},
            "a part of the reward that punishes",
        ),
        ({"entropy": DOWN[::-1], "ppo_kl": [0.0] * 8}, "an entropy bonus; a high temp"),
    ],
)
def test_no_cause_is_named_that_another_column_denies(columns, cause):
    found = symptoms.findings(log_of(**columns))
    assert any(cause in one.row["cause"] for one in found)


def test_what_began_first_comes_first_and_of_equals_the_cause():
    log = log_of(frac_reward_zero_std=[1.0] * 12, accuracy=[0.5] * 8 + DOWN[4:])
    assert named(log) == ["most groups are dead", "held-out accuracy falls"]
    log = log_of(
        frac_reward_zero_std=[0, 0, 0, 1, 1, 1, 1, 1],
        log_ratio__q99=[2.0, *[3.0] * 7],
        length__correct=DOWN,
        reward=WAVES[:3] + [0.0] * 5,
    )
    said = ["the ratio explodes", "reward falls", "most groups are dead"]
    assert named(log)[:3] == said
    assert "is at most 3, at step 1" in symptoms.findings(log)[0].words
    missing = symptoms.unjudged(log)
    assert "right answers grow, wrong ones shrink" in missing  # no wrong ones' length
    assert missing["entropy collapses"] == ["entropy"]
    assert not {"the ratio explodes", "most groups are dead"} & missing.keys()


def test_who_has_solved_nearly_all_is_sure_and_that_is_said_to_be_fine():
    log = log_of(reward=[0.2, 0.6, *[0.95] * 30], entropy=[0.6, 0.2, *[0.01] * 30])
    (sure,) = symptoms.findings(log)
    assert sure.harmless and "nearly all answers are right" in sure.row["cause"]
    (stuck,) = symptoms.findings(log_of(**log.columns | {"reward": [0.2, *[0.5] * 31]}))
    assert not stuck.harmless


def test_a_solved_run_does_not_stay_where_it_began_because_its_prompts_are_hard():
    log = log_of(reward=[0.95 + x / 25 for x in FLAT], frac_reward_zero_std=[0.75] * 40)
    found = symptoms.findings(log)
    said = ["most groups are dead", "reward stays where it began"]
    assert [one.row["symptom"] for one in found] == said
    assert all(one.harmless and "easier" not in one.row["first"] for one in found)


def test_a_reward_that_creeps_on_does_not_hide_dead_groups_or_a_policy_that_is_sure():
    """Even one that rises on a straight line to the end does not."""
    creeps = [0.4 + i / 1000 + 0.02 * (-1) ** i for i in range(200)]
    late = [max(0, i - 100) / 30 for i in range(200)]
    dead = {"frac_reward_zero_std": [min(0.85, 0.2 + x / 2) for x in late]}
    assert named(log_of(reward=creeps, **dead)) == ["most groups are dead"]
    gone = [0.5 * math.exp(-2.7 * (1 - math.exp(-x))) for x in late]
    (sure,) = symptoms.findings(log_of(reward=creeps, entropy=gone))
    assert sure.harmless and sure.row["symptom"] == "entropy collapses"
    assert not symptoms.findings(log_of(reward=creeps, entropy=[x**0.6 for x in gone]))


def test_the_spread_over_all_answers_is_not_that_within_groups():
    """A flat reward and a spread over all answers say nothing on the groups."""
    (flat,) = symptoms.findings(log_of(reward=FLAT, reward_spread=[5.0] * 40))
    assert "a rate ten times" not in flat.row["first"]
    assert logs.ours("rewards/std") == logs.ours("critic/score/std") == "reward_spread"


@pytest.mark.parametrize("sign", [1, -1])
def test_what_rises_or_falls_is_dated(sign):
    """A jump to the row, a slope nearly; through noise to a twentieth of the log."""

    def dated(x) -> int:
        return symptoms.Column([sign * v for v in x]).onset(sign)

    assert dated([0.0] * 40 + [1.0] * 60) == 40 and dated([0.5, 0.51] * 20) == 0
    assert abs(dated([max(0, i - 30) for i in range(100)]) - 30) < 4
    assert dated([abs(i - 30) for i in range(100)]) in (30, 31), "after the lowest"
    dice = random.Random(0)
    for rows, part, takes in product((200, 600), (0.3, 0.5, 0.7), (0.02, 0.3)):
        ways = (min(1, max(0, i / rows - part) / takes) for i in range(rows))
        found = dated([0.2 + way / 2 + dice.gauss(0, 0.04) for way in ways])
        assert abs(found / rows - part) < 0.05


# Files


def in_form(form: str, rows: list[dict]) -> str:
    """Rows as they stand in a file of each form."""
    if form == "state":
        return json.dumps({"log_history": [*rows, {"train_runtime": 1.0}], "epoch": 1})
    if form == "cut state":
        return json.dumps({"log_history": rows}, indent=2)[:-40]
    if form == "columns":
        return json.dumps({n: [row.get(n) for row in rows] for n in rows[0]})
    if form == "lines":
        return "\n".join(map(json.dumps, rows))
    if form == "verl's file":
        lines = [{"step": i, "data": row} for i, row in enumerate(rows)]
        return "\n".join([*map(json.dumps, lines), '{"step": 16, "da'])
    if form == "verl's console":
        lines = [" - ".join(f"{n}:np.float64({x})" for n, x in r.items()) for r in rows]
        return "\n".join(
            f"\x1b[36m(Task)\x1b[0m step:{i} - {x}" for i, x in enumerate(lines)
        )
    if form == "printed":
        lines = [{n: str(x) for n, x in row.items()} for row in rows]
        return "{'a': {'config': 1}}\r" + " 3%|#| 3/9 [00:02]\r".join(map(str, lines))
    if form == "slime":  # two lines a rollout, and two steps
        halves = [({**r}, dict([r.popitem()])) for r in map(dict, rows)]
        return "\n".join(
            f"[10:51] rollout {i}: {a | {n: 9.9 for n in b if b[n] is not None}}\n"
            f"step {2 * i}: {{'train/loss': 1.0}}\nstep {2 * i + 1}: {b}"
            for i, (a, b) in enumerate(halves)
        )
    if form == "OpenRLHF":
        return "\n".join(f"✨ Global step {i}: {row}" for i, row in enumerate(rows))
    names, sign = [*rows[0]], "\t" if form == "notebook" else ","
    if form in ("notebook", "bars"):  # TRL's table
        names = ["Step", *(name.replace("/", " / ") for name in names)]
    elif form == "W&B":
        names = ["Step", *(f"run-1 - train/{n}" for n in names), "run-1 - reward__MIN"]
    cells = [[*row.values()] for row in rows]
    if len(names) > len(rows[0]):
        cells = [[i, *x, 0.5][: len(names)] for i, x in enumerate(cells)]
    lines = [["" if x is None else str(x) for x in line] for line in [names, *cells]]
    if form == "bars":
        lines.insert(1, ["---"] * len(names))
        return "The run:\n\n" + "\n".join(f"| {' | '.join(x)} |" for x in lines)
    return "\n".join(map(sign.join, lines))


FORMS = (
    "state", "cut state", "columns", "lines", "verl's file", "verl's console",
    "printed", "slime", "OpenRLHF", "csv", "notebook", "bars", "W&B",
)  # fmt: skip


NUMBERS = st.floats(-1e6, 1e6).map(lambda x: x + 0.0) | st.just(math.nan) | st.none()
HISTORIES = st.integers(5, 9).flatmap(
    lambda n: st.fixed_dictionaries(
        {"reward": st.lists(st.floats(-9, 9), min_size=n, max_size=n)}
        | {
            name: st.lists(NUMBERS, min_size=n, max_size=n)
            for name in ("grad_norm", "rewards/a/mean", "rewards/b/mean", "loss")
        }
    )
)


@pytest.mark.parametrize("form", FORMS)
@given(history=HISTORIES)
def test_a_known_history_is_read_back_equal_from_every_form(
    tmp_path_factory, form, history
):
    """Of a file that is cut off, up to the row in which it ends."""
    rows = [dict(zip(history, cells)) for cells in zip(*history.values())]
    whole = len(rows) - (form == "cut state")
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text(in_form(form, rows))
    log = logs.read(path)
    assert log.steps == [*range(whole)]
    names = {"rewards/a/mean": "rewards: rewards/a/mean"}
    names |= {"rewards/b/mean": "rewards: rewards/b/mean"}
    for name, cells in history.items():
        given = log.columns.get(names.get(name, name), [None] * whole)
        assert str(given) == str(cells[:whole]), name  # nan is not equal to itself
    report = symptoms.report(log)
    assert "\n1. " in report or "No symptom was found" in report


RISES = [round(0.2 + 0.015 * i, 3) for i in range(40)]
STEPS = [{"step": 5 * i, "reward": x} for i, x in enumerate(RISES)]
EVALS = [{"step": 40 * i, "eval_reward": 0.5 - 0.08 * i} for i in range(5)]
VERL = [{"critic/score/mean": x} for x in RISES]
for at, x in ((0, 0.62), (10, 0.45), (20, 0.45), (30, 0.45)):
    VERL[at]["val-core/openai/gsm8k/acc/mean@1"] = x
del VERL[0]["critic/score/mean"]  # an evaluation before the first update
PARTS = [
    row
    | {"rewards/format/mean": 0.0, "rewards/overlong_penalty/mean": 0.0}
    | {"rewards/short": 0.9 - row["reward"], "rewards/short/std": 0.0}
    for row in STEPS
]
PPO = {"objective/rlhf_reward": 0.1, "objective/kl": 3.0, "loss/value_avg": 1.0}
PPO |= {"policy/clipfrac_avg": 0.4, "policy/entropy_avg": 1.9, "val/ratio": 1.0}
RLHF = [{**PPO, "objective/scores": x} for x in RISES]
NOT = "reward rises, accuracy does not"


COLLAPSE = [{"step": i, "mean_reward": 0.6 / i, "accuracy": 0.64} for i in range(1, 21)]
COLLAPSE = [{"step": 0, "mean_reward": None, "accuracy": 0.98}, *COLLAPSE]
NEVER = [{"step": i, "reward": x, "rewards/correct": 0} for i, x in enumerate(RISES)]
PERCENT = [{"reward": i / 20, "accuracy": f"{70 - 2 * i}%"} for i in range(20)]
RANKS = [{"step": 4 * i, "eval": True, "ndcg@10": 0.4 - i / 90} for i in range(10)]
TRUNCATED = [{"reward": x, "truncated": 0.5} for x in RISES]
TINKERS = [
    {"progress/batch": i, "env/all/reward/total": x, "env/all/by_group/frac_mixed": 0.1}
    for i, x in enumerate(FLAT)
]


@pytest.mark.parametrize(
    ("rows", "form", "first", "words"),
    [
        (VERL, "verl's file", NOT, "gsm8k/acc/mean@1 falls from 0.62"),
        (RLHF, "state", "clipped share very high", "policy/clipfrac_avg reaches 0.4"),
        (COLLAPSE, "lines", "reward falls", "mean_reward falls from 0.6"),
        (COLLAPSE, "lines", "held-out accuracy falls", "from 0.98"),
        (NEVER, "notebook", "a reward function never rewards", "rewards / correct is"),
        (PERCENT, "csv", NOT, "accuracy falls from 0.7"),
        ([*NEVER, *RANKS], "lines", NOT, "ndcg@10 falls from 0.4"),
        (TRUNCATED, "OpenRLHF", "many answers are cut off", "truncated is 0.5"),
        (TINKERS, "lines", "most groups are dead", "is 0.9 in the median row"),
    ],
)
def test_what_others_have_logged_is_read(tmp_path, rows, form, first, words):
    (tmp_path / "log").write_text(in_form(form, rows))
    found = symptoms.findings(logs.read(tmp_path / "log"))
    assert any(words in one.words for one in found if one.row["symptom"] == first)


def test_nan_between_evaluations_is_a_gap_and_nan_that_stays_is_not(tmp_path):
    """As pandas saves it, and where an evaluation is of a step that training logged."""
    trained = {"reward": 0.5, "entropy": 0.4, "grad_norm": 1.0}
    gap, nothing = dict.fromkeys(trained, math.nan), {"eval/accuracy": math.nan}
    rows = [{"step": i, **trained, "reward": x, **nothing} for i, x in enumerate(UP)]
    rows += [
        {"step": i, **gap, "eval/accuracy": 0.5 + i / 99} for i in (9, 20.5, 40, 41)
    ]
    (tmp_path / "log").write_text(in_form("csv", rows))
    log = logs.read(tmp_path / "log")
    assert log.columns["reward"][9] == UP[9] and len(log.steps) == 43
    assert log.steps[21] == 20.5 and math.isnan(log.columns["reward"][21])
    assert symptoms.findings(log) == []
    for row in rows[30:40]:
        row |= {"grad_norm": math.nan}
    (tmp_path / "log").write_text(in_form("csv", rows))
    (found,) = symptoms.findings(logs.read(tmp_path / "log"))
    assert found.since == 31 and found.words.startswith("grad_norm is no finite")


def test_an_evaluation_joins_the_row_of_its_step(tmp_path):
    (tmp_path / "log").write_text(in_form("state", [*STEPS, *EVALS]))
    log = logs.read(tmp_path / "log")
    assert log.columns["reward"] == RISES
    assert [log.steps[i] for i, _ in log.seen("eval_reward")] == [0, 40, 80, 120, 160]
    assert named(log) == [NOT]


def test_the_parts_of_a_reward_are_named_and_a_penalty_of_0_is_not(tmp_path):
    (tmp_path / "log").write_text(in_form("state", PARTS))
    nothing, falls = symptoms.findings(logs.read(tmp_path / "log"))
    assert nothing.row["symptom"] == "a reward function never rewards"
    assert falls.row["symptom"] == PART
    assert nothing.words.startswith("rewards/format/mean is at most 0")
    assert falls.words.startswith("rewards/short falls from 0.6")


def test_a_reward_has_many_names():
    names = "reward_mean mean_reward reward_avg rewards/reward/mean rollout/raw_reward "
    names += "Reward train/reward objective/scores critic/score/mean"
    assert {logs.ours(name) for name in names.split()} == {"reward"}


def test_an_export_of_wandb_is_read(tmp_path):
    """Of several runs the first, without its extremes."""
    one = {"Step": 0, "a - reward__MAX": 9, "a - reward": 1, "b - reward": 2}
    text = in_form("csv", [one | {"Step": i} for i in range(4)])
    (tmp_path / "w.csv").write_text(text)
    columns = logs.read(tmp_path / "w.csv").columns
    assert columns["reward"] == [1.0] * 4 and columns["step"] == [0, 1, 2, 3]


def test_a_step_may_be_written_as_a_fraction_and_a_resumed_run_begins_late(tmp_path):
    rows = [{"kl": 1.1, "global_step/max_steps": f"{i}/99"} for i in range(50, 60)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    log = logs.read(tmp_path / "log")
    assert log.steps == [*range(50, 60)] and named(log) == []


@pytest.mark.parametrize("sign", ";\t,")
def test_rows_are_read_by_step_and_cells_between_what_lies_between_them(tmp_path, sign):
    """Newest first; logged anew from step 4 on by a run that was resumed there."""
    text = (LOGS / "sign.csv").read_text()
    head, *rows = text.splitlines()
    again = [f"{n},0.99" for n in range(4, 7)]
    for name, lines in (("newest", rows[::-1]), ("resumed", rows[:7] + rows[4:])):
        (tmp_path / name).write_text("\n".join([head, *lines]).replace(",", sign))
        assert (
            logs.read(tmp_path / name).columns == logs.read(LOGS / "sign.csv").columns
        )
    (tmp_path / "two").write_text("\n".join(["step, reward", *again, *again, "7,1"]))
    assert logs.read(tmp_path / "two").steps == [4, 5, 6, 7]


def test_verls_names_are_read(tmp_path):
    row = {"critic/score/mean": 0.5, "critic/score/max": 1, "critic/score/min": 1}
    row |= {"val-core/gsm8k/acc/mean@1": 0.4, "actor/ppo_kl": -0.3, "timing_s/gen": 1}
    (tmp_path / "log").write_text(in_form("verl's file", [row] * 4))
    log = logs.read(tmp_path / "log")
    assert [log.columns[key] for key in log.keys("accuracy")] == [[0.4] * 4]
    assert log.columns["reward_spread"] == [0] * 4
    assert {"the ratio explodes", "most groups are dead"} < {*named(log)}


SFT = [{"loss": 2.0, "eval_loss": 1.0, "entropy": 1.0, "eval_mean_token_accuracy": 0.8}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 rows with a reward, an accuracy or a KL, but at least 4"),
        ("", "its columns are no names; expected: TRL's"),
        ("loss,grad_norm\n1,2\n1,2\n1,2\n1,2\n", "columns are loss, grad_norm;"),
        (in_form("state", SFT * 9), "has 0 rows"),
        (json.dumps([{"rewards/chosen": 1.0, "rewards/margins": 1}] * 9), "has 0 rows"),
        ("step,reward\n0,1\n1,1\n", "has 2 rows with a reward"),
        ("step;reward\n" + "0;0,5\n" * 9, "such as 0.5 (a point, not 0,5)"),
        ("[1, 2]", "has 0 rows"),
        ("step,reward\n" + "0,1\n" * 9 + "\0", "is a binary file"),
        ("{[]: 1} {'reward': 1, 2: {3}} {'reward'}", "has 0 rows"),
        ("[" * 100_000, "has 0 rows"),
        ("{'a': " + "(" * 9999 + "}", "has 0 rows"),
        ('{"log_history": [{"reward": 1.0, "st', "has 0 rows"),
        ("a letter\nwith, a comma\n", "its columns are a letter;"),
        ("x" * 200_000 + "\n1\n", "its columns are no names;"),
        ('{"reward": 1' + "0" * 400 + "}", "has 0 rows"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, text, said):
    (tmp_path / "x").write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        logs.read(tmp_path / "x")


def test_the_command_prints_and_refuses(tmp_path, capsys):
    assert main(["read-log", str(LOGS / "short.csv")]) == 0
    said = capsys.readouterr().out
    assert "1. many answers are cut off  (from step 0)" in said and "kl" in said
    assert main(["read-log", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["read-log", str(LOGS / "grpo.csv")]) == 0
    assert "no proof that all is well" in capsys.readouterr().out
