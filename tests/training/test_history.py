"""What a run measured: in numbers that keep every digit, in samples to read, and where
the guide's hooks send them."""

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import refimpl as rl
from refimpl import History
from refimpl.history import Meter
from refimpl.hooks import Samples, line
from refimpl.rollout import Batch
from refimpl.tasks import Arithmetic
from refimpl.validation import UserError
from tests.worlds import rollout_of, small_run


def example() -> History:
    return History(
        "grpo",
        [
            {"step": 0.0, "reward": 0.1, "accuracy": None, "step_time": 1.5},
            {"step": 1.0, "reward": 1 / 3, "accuracy": 0.75, "step_time": 1.25},
            {"step": 2.0, "reward": -5e-324, "accuracy": 0.5, "step_time": 0.1},
        ],
    )


def changed(row: int, name: str, value) -> History:
    history = example()
    history.rows[row][name] = value
    return history


def test_a_column_has_one_number_a_rollout_and_nan_where_there_is_none():
    history = changed(2, "kl", 0.25)
    assert len(history) == 3 and history["reward"] == [0.1, 1 / 3, -5e-324]
    assert math.isnan(history["accuracy"][0])
    assert history["accuracy"][1:] == [0.75, 0.5]
    assert history.columns == ["step", "reward", "accuracy", "step_time", "kl"]
    assert [math.isnan(value) for value in history["kl"]] == [True, True, False]
    with pytest.raises(KeyError, match=r"'rewards'.*step, reward, accuracy"):
        history["rewards"]
    with pytest.raises(KeyError, match="'reward'"):
        History("run.csv")["reward"]  # for History.load("run.csv")


def test_accuracy_is_the_last_one_measured():
    history = example()
    assert history.accuracy == 0.5
    assert changed(2, "accuracy", None).accuracy == 0.75
    with pytest.raises(ValueError, match=r"no accuracy was measured in 0 rollouts"):
        History("grpo").accuracy  # noqa: B018


def test_all_but_time_samples_and_the_model_counts_for_equality():
    same = History("grpo", example().rows, model=object(), samples=[{"step": 0}])
    assert example() == same == changed(1, "step_time", 99.0)
    others = [changed(1, "reward", math.nextafter(1 / 3, 1)), changed(0, "new", None)]
    others += [History("ppo", example().rows), History("grpo", example().rows[:2])]
    assert all(example() != other for other in others)


OTHER = st.sampled_from([np.float32(0.5), torch.tensor(2.0), 3, True, None])
"""A hook may write these into a row."""
NUMBERS = st.tuples(st.floats(allow_nan=False) | OTHER, st.floats(0, 1e-300) | OTHER)


@given(values=st.lists(NUMBERS, min_size=1, max_size=5))
def test_csv_keeps_every_digit(values, tmp_path_factory):
    """Also with the mark that Excel puts before it."""
    path = tmp_path_factory.mktemp("csv") / "run.csv"
    rows = [{"a": a, "b/c": b, "step": 0.0} for a, b in values]
    History("ppo", rows).save(path)
    known = [{k: x if x is None else float(x) for k, x in r.items()} for r in rows]
    for text in (path.read_bytes(), b"\xef\xbb\xbf" + path.read_bytes()):
        path.write_bytes(text)
        assert History.load(path).rows == known


def test_a_text_in_a_row_is_refused_by_the_name_of_its_column(tmp_path):
    with pytest.raises(UserError, match="'note' must hold numbers, got 'good'"):
        History("ppo", [{"step": 0.0, "note": "good"}]).save(tmp_path / "run.csv")


def test_a_file_that_is_no_history_is_refused(tmp_path):
    path = tmp_path / "bad.csv"
    for content in (
        "step,reward\n0.0,0.5\n",  # no algorithm
        "algorithm,step,reward\ngrpo,0.0,0.5\ngrpo,1.0\n",  # cut off
        "algorithm,step\ngrpo,0.0\nppo,1.0\n",  # two runs
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"bad\.csv is not a history"):
            History.load(path)


def part_of(z, mask, tokens, passed=None):
    """A micro-batch whose log-ratios are z; `passed`: what the model read of it."""
    z, mask = torch.tensor(z), torch.tensor(mask)
    rollout = rollout_of(mask if passed is None else passed)
    old_logp, tokens = torch.full_like(z, -1), torch.tensor(tokens)
    return Batch(rollout, mask, old_logp, 0 * z, token_count=tokens), z - 1


def test_a_meter_by_hand():
    """Two updates; the first of two micro-batches with 3 and 1 of 8 tokens, which have
    parts of the same numbers: they add up. What was passed and has no loss, because it
    was filtered out (9.0), is in the quantiles and in nothing else."""
    meter, number = Meter(), torch.tensor
    passed = torch.ones(2, 2)
    part, logp = part_of([[0.1, -0.7], [0.3, 9.0]], [[1, 1], [1.0, 0]], 8.0, passed)
    critic = {"value_loss": number(0.25), "loss": number(-0.25)}
    clip = {"clip_ratio/low_mean": part.share * number(1 / 3)}
    meter.add(part, logp, number(1.0), clip | critic)
    part, logp = part_of([[-0.2, 5.0]], [[1.0, 0.0]], 8.0)
    clip = {"clip_ratio/low_mean": part.share * number(1.0)}
    meter.add(part, logp, number(0.5), clip | critic)
    meter.end_update(number(2.0))
    part, logp = part_of([[0.0, 0.2]], [[1.0, 1.0]], 2.0)
    none = {"clip_ratio/low_mean": number(0.0), "value_loss": number(0.0)}
    meter.add(part, logp, number(-1.0), none)
    meter.end_update(number(4.0))
    low, middle, high = torch.tensor([0.1, -0.7, 0.3, 9.0, -0.2, 0.0, 0.2]).quantile(
        torch.tensor([0.01, 0.5, 0.99])
    )
    assert meter.read() == pytest.approx(
        {
            "loss": (1.5 - 0.5 - 1.0) / 2,  # the critic's is apart
            "value_loss": 0.5 / 2,
            "grad_norm": 3.0,
            "clip_ratio/low_mean": (3 / 8 * 1 / 3 + 1 / 8) / 2,  # of all tokens
            "ratio/max_deviation": 1 - math.exp(-0.7),
            "log_ratio/q01": low.item(),
            "log_ratio/q50": middle.item(),
            "log_ratio/q99": high.item(),
        },
        abs=1e-6,
    )


NASTY = "a\x1b[31mred\x1b[0m\r\n\x07\u202eback\u2028\ud800\x9b2J\t\x7f語"


def sample_of(completion="#3", prompt="1+2=", step=0, reward=1.0) -> dict:
    return {"step": step, "prompt": prompt, "completion": completion, "reward": reward}


def test_no_control_character_gets_through_and_a_long_answer_is_cut():
    shown = line(sample_of(NASTY, f"x\n{NASTY[:9]}"))
    assert shown.isprintable()
    assert r"\x1b[31mred" in shown and r"\u202eback" in shown and r"\ud800" in shown
    text = "".join(f"{n} " for n in range(500))
    shown = line(sample_of(text))
    assert text[:130] in shown and " … " in shown and "498 499 '" in shown
    assert len(shown) < 280 and text[:200] in line(sample_of(text[:200]))
    assert " … " in line(sample_of(text[:201]))
    asked = sample_of(prompt="<s>user\n1+2?</s>\n \n<s>answer\n")
    assert "'1+2?' → '#3'" in line(asked, ("<s>", "</s>"))


def test_samples_are_what_was_sampled_and_paid_and_change_nothing():
    seen = []

    def spy(prompts, completions, **columns):
        rewards = Arithmetic.reward(prompts, completions, **columns)
        seen.append([*zip(prompts, completions, rewards)])
        return rewards

    history = small_run(hooks=[Samples(every=2)], reward=spy, prompts_per_rollout=2)
    assert history == small_run(prompts_per_rollout=2)
    kept = [(s["prompt"], s["completion"], s["reward"]) for s in history.samples]
    assert kept == [seen[step][row] for step in (0, 2) for row in (0, 4, 1, 5)]


def test_json_lines_give_the_samples_back(tmp_path):
    samples = [sample_of(NASTY, "語=", 3, -0.5), sample_of()]
    path = tmp_path / "new" / "samples.jsonl"
    History("grpo", samples=samples).save_samples(path)
    text = path.read_bytes().decode("ascii")
    assert text.count("\n") == 2 and text.replace("\n", "").isprintable()
    assert [json.loads(row) for row in text.splitlines()] == samples


PAGE = Path(__file__).parents[2] / "notebooks/guide/command_line.md"
SECTION = PAGE.read_text("utf-8").partition("\n## Curves in ")[2].partition("\n## ")[0]
WANDB, TENSORBOARD = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def train(monkeypatch):
    """Two short rollouts in place of ten; returns the histories."""
    histories, whole = [], rl.train

    def short(method, config, hooks):
        few = {"prompts_per_rollout": 4, "eval_problems": 4, "eval_every": 2}
        config = rl.TrainConfig(rollouts=2, **few)
        histories.append(whole(method, config=config, hooks=hooks))

    monkeypatch.setattr(rl, "train", short)
    return histories


def measured(history) -> dict[tuple[str, int], float]:
    rows = enumerate(history.rows)
    return {(k, n): x for n, row in rows for k, x in row.items() if x is not None}


def test_tensorboard_shows_what_the_history_holds(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(TENSORBOARD, {})
    events = EventAccumulator("runs/sapo").Reload()
    names = events.Tags()["scalars"]
    shown = {(k, e.step): e.value for k in names for e in events.Scalars(k)}
    expected = measured(train[0])
    assert ("accuracy", 0) not in shown and ("accuracy", 1) in shown
    assert shown == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_wandb_receives_what_the_history_holds(train, monkeypatch):
    """Here an object with the three calls stands in for W&B and for Trackio."""
    calls = []
    wandb = SimpleNamespace(
        init=lambda project: calls.append(project),
        log=lambda row, step: calls.append({(k, step): x for k, x in row.items()}),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    exec(WANDB, {})
    project, first, second, finished = calls
    assert (project, finished) == ("sums", "finished")
    assert first | second == pytest.approx(measured(train[0]), nan_ok=True)
