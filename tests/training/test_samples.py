"""Responses that a person reads along a run: which, where, and without harm."""

import io
import json
import os
import sys
from dataclasses import replace

import pytest
import torch

from refimpl import checkpoint
from refimpl import collect as collecting
from refimpl.__main__ import main
from refimpl.history import History
from refimpl.rewards import columns
from refimpl.samples import chosen, line, question, show
from refimpl.tasks import Arithmetic
from refimpl.trainer import DynamicSamplingError, train
from tests.training.test_checkpoint import identical
from tests.worlds import SMALL, TOKENIZER, Drying, small_run, warm_model

NASTY = "a\x1b[31mred\x1b[0m\r\n\x07\u202eback\u2028\ud800\x9b2J\t\x7f語"
CPU = torch.device("cpu")


def sample_of(completion="#3", prompt="1+2=", step=0, reward=1.0) -> dict:
    return {"step": step, "prompt": prompt, "completion": completion, "reward": reward}


# Which


def test_the_first_response_to_each_of_four_prompts():
    prompts = [p for p in "abcdef" for _ in range(3)]
    texts = [f"{p}{i % 3}" for i, p in enumerate(prompts)]
    found = chosen(7, prompts, texts, range(18), 3)
    assert [s["completion"] for s in found] == ["a0", "b0", "c0", "d0"]
    assert found[1] == sample_of("b0", "b", 7, 3.0)


def test_with_fewer_prompts_second_responses_follow():
    found = chosen(0, list("aaabbb"), "a0 a1 a2 b0 b1 b2".split(), [0] * 6, 3)
    assert [s["completion"] for s in found] == ["a0", "b0", "a1", "b1"]
    assert len(chosen(0, ["a", "a"], ["a0", "a1"], [0, 0], 2)) == 2


# On the terminal


CHAT = "<|im_start|>user\nBe brief.\n\n8 + 9 = ?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("3+9+4=", "3+9+4="),
        ("Add these.\n3 + 4\n\n", "3 + 4"),
        (CHAT, "8 + 9 = ?"),
        ("<|im_start|>user", "user"),
        ("\n", "\n"),
    ],
)
def test_the_last_line_that_says_something(prompt, said):
    assert question(prompt, ["<|im_start|>", "<|im_end|>"]) == said


def test_a_line_by_hand():
    shown = line(sample_of("3+9=12;#12", "Now\n3+9=", 5, 0.25))
    assert shown == "step 5  reward 0.25  '3+9=' → '3+9=12;#12'"


def test_no_control_character_gets_through():
    shown = line(sample_of(NASTY, f"x\n{NASTY[:9]}"))
    assert shown.isprintable()
    assert r"\x1b[31mred" in shown and r"\u202eback" in shown and r"\ud800" in shown


def test_a_long_answer_is_cut_in_the_middle():
    text = "".join(f"{n} " for n in range(500))
    shown = line(sample_of(text))
    assert len(shown) < 280
    assert "'0 1 2 " in shown and " … " in shown and "498 499 '" in shown
    assert text[:200] in line(sample_of(text[:200])) and "…" not in shown[:100]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_terminal_can_show_it(encoding, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, newline="\n"))
    show([sample_of(NASTY), sample_of()])
    sys.stdout.flush()
    lines = raw.getvalue().decode(encoding).split("\n")
    assert len(lines) == 3 and all(map(str.isprintable, lines))
    assert ("語" in lines[0]) == (encoding == "utf-8")


def test_a_reader_who_has_left_does_not_end_the_run(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    show([sample_of()])


def shown_by(capsys, **settings) -> list[str]:
    arguments = {"model": warm_model(), "tokenizer": TOKENIZER}
    progress = settings.pop("progress", True)
    train("grpo", config=replace(SMALL, **settings), progress=progress, **arguments)
    return capsys.readouterr().out.splitlines()


def test_a_run_prints_them_if_it_shows_progress(capsys):
    printed = shown_by(capsys, rollouts=3, samples_every=2)
    assert [text.split("  ")[0] for text in printed] == 4 * ["step 0"] + 4 * ["step 2"]
    assert shown_by(capsys, rollouts=1, samples_every=1, progress=False) == []
    assert shown_by(capsys, rollouts=1) == []


# In the history


def test_the_samples_are_what_was_sampled_and_paid(monkeypatch):
    seen, draw = [], collecting._draw

    def spy(run, step, *again):
        seen.append(draw(run, step, *again))
        return seen[-1]

    monkeypatch.setattr(collecting, "_draw", spy)
    history = small_run(rollouts=5, samples_every=2)
    assert [s["step"] for s in history.samples] == 4 * [0] + 4 * [2] + 4 * [4]
    for step in (0, 2, 4):
        own = [s for s in history.samples if s["step"] == step]
        first = range(0, 16, 4)
        assert [s["completion"] for s in own] == [seen[step].texts[i] for i in first]
        assert [s["reward"] for s in own] == seen[step].scores[::4].tolist()
        prompts = [s["prompt"] for s in own]
        rows = [
            {"prompt": p, "answer": sum(map(int, p[:-1].split("+")))} for p in prompts
        ]
        texts = [s["completion"] for s in own]
        assert Arithmetic.reward(prompts, texts, **columns(rows)) == [
            s["reward"] for s in own
        ]
    assert len({s["reward"] for s in history.samples}) > 1


def test_keeping_samples_changes_nothing_in_the_run():
    plain, kept = small_run(rollouts=2), small_run(rollouts=2, samples_every=1)
    assert plain == kept
    assert plain.samples == [] and len(kept.samples) == 8


def test_a_resumed_run_has_the_samples_of_the_whole_one(tmp_path):
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    settings = {"samples_every": 2, "eval_every": 2}
    whole = small_run(rollouts=4, checkpoint_dir=straight, **settings)
    small_run(rollouts=2, checkpoint_dir=parts, **settings)
    resumed = small_run(rollouts=4, checkpoint_dir=parts, resume=True, **settings)
    assert resumed.samples == whole.samples and len(whole.samples) == 8
    one, other = checkpoint.load(straight, CPU), checkpoint.load(parts, CPU)
    assert identical(one, other) and len(one["samples"]) == 8


def test_they_may_be_asked_for_on_resuming(tmp_path):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    settings = {"samples_every": 1, "checkpoint_dir": tmp_path, "resume": True}
    history = small_run(rollouts=2, **settings)
    assert [s["step"] for s in history.samples] == 4 * [1]


def test_a_checkpoint_without_samples_is_refused(tmp_path):
    """As those of earlier versions are."""
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    state = checkpoint.load(tmp_path, CPU)
    for change in ({"version": 3}, {"samples": None}):
        old = {
            k: v for k, v in (state | change).items() if v is not None or k != "samples"
        }
        torch.save(old, tmp_path / checkpoint.NAME)
        with pytest.raises(ValueError, match="not written by this version"):
            small_run(rollouts=2, checkpoint_dir=tmp_path, resume=True)


def test_the_rollout_that_ended_a_run_can_be_read(capsys):
    """Nothing was left to learn in rollout 1: its answers say why."""
    config = replace(SMALL, dynamic_sampling=True, samples_every=1, eval_problems=4)
    config = replace(config, rollouts=4, max_sampling_rounds=1)
    with pytest.warns(UserWarning, match="stopped after 1 of 4"):
        history = train(
            "grpo",
            config=config,
            model=warm_model(),
            tokenizer=TOKENIZER,
            reward=Drying(2),
        )
    assert isinstance(history.ended, DynamicSamplingError)
    assert [s["step"] for s in history.samples] == 4 * [0] + 4 * [1]
    assert capsys.readouterr().out.count("step 1") == 4


def test_with_dynamic_sampling_they_are_of_the_first_round():
    history = small_run(
        "dapo", rollouts=1, samples_every=1, max_sampling_rounds=4, group_size=2
    )
    assert history["sampling/rounds"][0] > 1 and len(history.samples) == 4


# In a file


def test_json_lines_give_the_samples_back(tmp_path):
    samples = [sample_of(NASTY, "語=", 3, -0.5), sample_of()]
    path = tmp_path / "new" / "samples.jsonl"
    History("grpo", samples=samples).samples_to_jsonl(path)
    text = path.read_bytes().decode("ascii")
    assert text.count("\n") == 2 and text.replace("\n", "").isprintable()
    assert [json.loads(row) for row in text.splitlines()] == samples
    assert os.listdir(path.parent) == ["samples.jsonl"]


def test_a_file_that_cannot_be_replaced_is_left_as_it_was(tmp_path):
    path = tmp_path / "samples.jsonl"
    History("grpo", samples=[sample_of()]).samples_to_jsonl(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        History("grpo", samples=[sample_of(reward=object())]).samples_to_jsonl(path)
    assert path.read_bytes() == before


# On the command line


def words(*more) -> list[str]:
    small = ["prompts_per_rollout=4", "group_size=4", "max_new_tokens=16"]
    small += ["minibatches=2", "eval_problems=4"]
    sets = [word for pair in small for word in ("--set", pair)]
    return ["train", "--algorithm", "grpo", "--rollouts", "3", *sets, *map(str, more)]


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ([], [0, 1, 2]),
        (["--set", "samples_every=2"], [0, 2]),
        (["--set", "samples_every=0"], [0, 1, 2]),
    ],
)
def test_the_command_writes_them(more, steps, tmp_path, capsys):
    path = tmp_path / "samples.jsonl"
    assert main(words("--samples", path, *more)) == 0
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [s for s in steps for _ in range(4)]
    *printed, last = capsys.readouterr().out.splitlines()
    assert len(printed) == len(rows) and "accuracy" in last


def test_the_command_writes_them_though_the_run_ends_early(tmp_path, monkeypatch):
    """Ctrl-C in the second rollout."""
    path, calls, draw = tmp_path / "samples.jsonl", [], collecting._draw

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw(*arguments)

    monkeypatch.setattr(collecting, "_draw", interrupted)
    history = tmp_path / "h.csv"
    assert main(words("--samples", path, "--history", history)) == 130
    assert len(path.read_text().splitlines()) == 4
    assert len(History.from_csv(history)) == 1


def test_the_command_says_pass_at_k_last(capsys):
    assert main(words("--set", "eval_samples=3")) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert "accuracy 0." in last and "pass@3 0." in last.split("accuracy")[1]


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys):
    assert main(words("--samples", tmp_path)) == 2
    assert "cannot write the samples to" in capsys.readouterr().err
