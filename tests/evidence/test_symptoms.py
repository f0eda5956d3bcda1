"""`read-log`: logs of runs with a fault in them, of healthy ones, and of no run.

The logs are real ones (tests/tools/make_logs.py): seed 2, which the limits never saw.
"""

import csv
import gzip
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import pytest

from refimpl.cli import main
from refimpl.interop import logs, symptoms
from refimpl.validation import UserError

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LOGS = HERE / "logs"
NAMED = {  # the rows whose cause is the fault that was put in
    "rate": {"the ratio explodes", "reward falls"},
    "verifier": {"reward stays where it began"},
    "dead": {"most groups are dead"},
    "end": {"right answers grow, wrong ones shrink"},
    "temperature": {"the ratio explodes"},
    "nucleus": {"… everywhere, much"},
    "hack": {"reward rises, accuracy does not", "length grows"},
    "stale": {"… more with every update"},
    "sign": {"reward falls"},
    "short": {"many answers are cut off"},
}
UNSEEN = {"end"}
"""Sixteen rollouts do not show it: there nothing may be named."""
HEALTHY = ["grpo", "ppo", "dr_grpo", "dapo", "cispo", "sapo", "bfloat16"]


def named(log) -> list[str]:
    return [one.row["symptom"] for one in symptoms.findings(log) if not one.harmless]


def log_of(**columns) -> logs.Log:
    """A log of these columns, under this course's names ('/' written as '__')."""
    cells = {name.replace("__", "/"): x for name, x in columns.items()}
    steps = [float(i) for i in range(len(next(iter(cells.values()))))]
    return logs.Log("log", steps, cells, {name: name for name in cells})


@pytest.mark.parametrize("fault", NAMED)
def test_the_fault_is_among_the_first_two(fault):
    first = named(logs.read(LOGS / f"{fault}.csv"))[:2]
    assert bool(NAMED[fault] & {*first}) == (fault not in UNSEEN), first
    assert first or fault in UNSEEN


@pytest.mark.parametrize("fault", ["rate", "verifier", "hack", "sign", "short"])
def test_the_fault_in_trls_trainer_is_among_the_first_two(fault):
    assert NAMED[fault] & {*named(logs.read(LOGS / f"trl_{fault}.json"))[:2]}


@pytest.mark.parametrize(
    "run", [*(f"{name}.csv" for name in HEALTHY), "trl_healthy.json"]
)
def test_of_a_healthy_run_nothing_is_named(run):
    assert named(logs.read(LOGS / run)) == []


def test_the_stored_runs_at_the_default_rate_are_healthy_and_those_at_16_times_not():
    """All but those of GSPO with the published ε, of which a row says just that."""
    data, rows = ROOT / "figures" / "data", defaultdict(list)
    with open(data / "evidence.runs.csv", encoding="utf-8") as file:
        specs = {row["run"]: json.loads(row["spec"]) for row in csv.DictReader(file)}
    chosen = {
        run: (spec["rate"], spec["arm"])
        for run, spec in specs.items()
        if spec["updates"] == 4 and spec["world"] == "sums"
        if spec["rate"] in (2e-4, 32e-4)
    }
    with gzip.open(data / "evidence.rows.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["run"] in chosen:
                rows[row["run"]].append(row)
    found = defaultdict(list)
    for run, (rate, arm) in chosen.items():
        names = [name for name in rows[run][0] if name not in ("run", "step")]
        cells = {n: [logs.number(row[n]) for row in rows[run]] for n in names}
        found[rate, arm == "GSPO 3e-4"].append(named(log_of(**cells)))
    assert len(found[2e-4, False]) == 270
    assert sum(map(bool, found[2e-4, False])) <= 3
    assert all(x == ["clipped share very high"] for x in found[2e-4, True])
    fast = found[32e-4, False] + found[32e-4, True]
    assert all("the ratio explodes" in x[:2] for x in fast) and len(fast) == 100


# The table


def test_chapter_11_shows_every_row():
    """Those that a log can show, and the others, each after the one that it names."""
    cells = json.loads((ROOT / "notebooks/11_one_surrogate.ipynb").read_text("utf-8"))
    outputs = [o for c in cells["cells"] for o in c.get("outputs", [])]
    shown = ["".join(o.get("data", {}).get("text/markdown", "")) for o in outputs]
    table = next(text for text in shown if "first action" in text)
    lines = [line.replace("\\|", "¦") for line in table.split("\n")]
    cells = [[c.strip().replace("¦", "|") for c in x.split("|")[1:-1]] for x in lines]
    every = logs.DATA["row"] + logs.DATA["other"]
    names = ("symptom", "look", "cause", "first", "chapter")
    assert sorted(cells[2:]) == sorted([row[n] for n in names] for row in every)
    first = [row[0] for row in cells]
    for one in logs.DATA["other"]:
        assert first.index(one["symptom"]) == first.index(one["after"]) + 1


WAVES = [0.4, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4, 0.5]
DOWN = [0.8, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.28]
CASES = [  # a row, a log that it fits, and one that it does not
    ("the ratio stays exactly 1", {"ratio__max_deviation": [1e-6]}, [0.1]),
    ("clipped share very high", {"clip_ratio__region_mean": [0.5]}, [0.1]),
    ("entropy collapses", {"entropy": DOWN[:2] + [0.05] * 6, "reward": WAVES}, DOWN),
    ("entropy grows without end", {"entropy": DOWN[::-1]}, WAVES),
    ("length shrinks", {"completions__mean_length": DOWN, "reward": WAVES}, WAVES),
    ("KL to the reference grows", {"kl": DOWN[::-1], "reward": DOWN}, WAVES),
    ("gradient norm spikes, or NaN", {"grad_norm": WAVES[:6] + [math.nan] * 2}, WAVES),
    ("gradient norm spikes, or NaN", {"grad_norm": [*WAVES[:7], 9.0]}, WAVES),
    ("gradient norm spikes, or NaN", {"reward": [0.5] * 7 + [math.nan]}, WAVES),
    ("gradient norm spikes, or NaN", {"entropy": [math.nan] * 8}, WAVES),
    ("the critic does not follow", {"explained_var": [0.02]}, [0.7]),
    ("most groups are dead", {"reward_range": [0.0]}, [1.0]),
    (
        "right answers grow, wrong ones shrink",
        {"length__correct": DOWN[::-1], "length__wrong": DOWN},
        WAVES,
    ),
]


@pytest.mark.parametrize(("symptom", "columns", "other"), CASES)
def test_a_row_fits_what_it_describes_and_no_other(symptom, columns, other):
    def all_named(**columns):
        log = log_of(**{name: (8 * x)[:8] for name, x in columns.items()})
        return [one.row["symptom"] for one in symptoms.findings(log)]

    assert symptom in all_named(**columns)
    assert symptom not in all_named(**columns | {next(iter(columns)): other})


def test_strength_and_noise_are_these_by_hand():
    """A quarter of eight rows is two. Neighbours differ by 1, so that the error is
    1.483 / √2; from 0.5 to 6.5 are 6. Dead: (0.8 − 0.5) / (1 − 0.5) of the way."""
    rising = [float(x) for x in range(8)]
    assert math.isclose(symptoms.late(symptoms.in_noise(rising)), 6 * 2**0.5 / 1.483)
    (dead,) = symptoms.findings(log_of(frac_reward_zero_std=[0.8] * 8))
    assert math.isclose(dead.strength, 0.6) and dead.since == 0
    (ratio,) = symptoms.findings(log_of(log_ratio__q01=[0.0, -0.5, -4.0, -2.0]))
    assert math.isclose(ratio.strength, 1 - 1 / 4) and ratio.since == 2
    assert "reaches -4 at step 2" in ratio.words
    assert symptoms.spikes([1.0, 1.0, 3.0, 6.0]) == [1.0, 1.0, 1.0, 6.0]


def test_what_leaves_a_constant_in_both_directions_neither_rises_nor_stays():
    assert named(log_of(reward=[0.5] * 12 + [0.6, 0.4, 0.5, 0.5])) == []


def test_what_began_first_is_named_first_and_what_is_missing_is_said():
    log = log_of(
        frac_reward_zero_std=[0, 0, 0, 1, 1, 1, 1, 1], log_ratio__q99=[3.0] * 8
    )
    assert named(log) == ["the ratio explodes", "most groups are dead"]
    missing = symptoms.unjudged(log)
    assert "right answers grow, wrong ones shrink" in missing  # no wrong ones' length
    assert missing["entropy collapses"] == ["entropy"]
    assert not {"the ratio explodes", "most groups are dead"} & missing.keys()


# Files


def test_every_format_says_the_same(tmp_path):
    """Our CSV, and its numbers as TRL's state and as verl's lines, the last cut off."""
    of = logs.read(LOGS / "sign.csv")
    rows = [dict(zip(of.columns, cells)) for cells in zip(*of.columns.values())]
    verls = {ours: name for name, ours in reversed(logs.DATA["names"].items())}
    lines = [{verls.get(n, n): x for n, x in row.items()} for row in rows]
    lines = [{"step": i, "data": row} for i, row in enumerate(lines)]
    state = {"log_history": [*rows, {"train_runtime": 1.0}], "global_step": 9}
    (tmp_path / "trl.json").write_text(json.dumps(state))
    text = "\n".join([*map(json.dumps, lines), '{"step": 16, "da'])
    (tmp_path / "verl.jsonl").write_text(text)
    verl = logs.read(tmp_path / "verl.jsonl")
    assert verl.called["reward"] == "critic/score/mean"
    assert verl.columns["entropy"] == of.columns["entropy"]
    assert named(logs.read(tmp_path / "trl.json")) == named(verl) == named(of)


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


def test_of_equal_rows_the_first_is_said():
    (ratio,) = symptoms.findings(log_of(log_ratio__q99=[2.0, *[3.0] * 7]))
    assert "reaches 3 at step 1" in ratio.words


def test_verls_names_are_read(tmp_path):
    row = {"critic/score/mean": 0.5, "critic/score/max": 1, "critic/score/min": 1}
    row |= {"val-core/gsm8k/acc/mean@1": 0.4, "actor/ppo_kl": -0.3, "timing_s/gen": 1}
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(json.dumps({"step": i, "data": row}) for i in range(4)))
    log = logs.read(file)
    assert (
        log.columns["accuracy"] == [0.4] * 4 and log.columns["reward_range"] == [0] * 4
    )
    assert {"the ratio explodes", "most groups are dead"} < {*named(log)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 rows with a reward, of 0 (with no names)"),
        ("loss,grad_norm\n1,2\n1,2\n1,2\n1,2\n", "(with loss, grad_norm)"),
        ('{"log_history": [{"loss": 1.0, "step": 1}]}', "of 1 (with loss, step)"),
        ("step,reward\n0,1\n1,1\n", "has 2 rows with a reward"),
        ("[1, 2]", "holds no rows, or is JSON that is cut off; expected is TRL's"),
        ('{"log_history": [{"reward": 1.0, "st', "or is JSON that is cut off"),
        ("a letter\nwith, a comma\n", "0 rows with a reward, of 1 (with a letter)"),
        ('{"reward": 1' + "0" * 400 + "}", "0 rows with a reward, of 1 (with reward)"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, text, said):
    (tmp_path / "x").write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        logs.read(tmp_path / "x")


def test_the_command_prints_draws_and_refuses(tmp_path, capsys):
    picture = tmp_path / "six.png"
    assert main(["read-log", str(LOGS / "short.csv"), "--figure", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "1. many answers are cut off  (strength" in said and "kl" in said
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["read-log", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["read-log", str(LOGS / "grpo.csv")]) == 0
    assert "no proof that all is well" in capsys.readouterr().out
