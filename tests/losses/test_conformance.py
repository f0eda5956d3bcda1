"""The conformance kit: its cases are right, and its table tells what is wrong."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from refimpl import UserError
from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS, CISPO, GRPO
from refimpl.interop.conformance import adapters, cases, loader, readings, table
from refimpl.interop.conformance.cases import answer, loss_of

EVERY = list(cases.cases())


def one(algorithm, part="the paper's", what="typical"):
    return next(
        c for c in EVERY if (c.algorithm, c.part, c.what) == (algorithm, part, what)
    )


# The cases


def test_there_are_at_least_two_hundred_of_every_kind():
    assert len(EVERY) >= 200
    assert len({case.name for case in EVERY}) == len(EVERY)
    assert {case.algorithm for case in EVERY} == set(ALGORITHMS)
    kinds = Counter(case.part.split(",")[0].split(" ")[0] for case in EVERY)
    assert min(kinds[k] for k in ("averaged", "TIS", "KL", "γ", "the")) >= 10


@pytest.mark.parametrize(
    "what",
    ["typical", "ratios far from 1", "one token", "an empty row", "no advantage"],
)
def test_grpos_answer_is_the_papers_sum(what):
    case, total = one("grpo", what=what), 0.0
    i = case.inputs
    for row, mask in enumerate(i["mask"]):
        for t in mask.nonzero()[:, 0]:
            r = math.exp(i["logp"][row, t] - i["old_logp"][row, t])
            a = i["advantages"][row].item()
            value = min(r * a, min(max(r, 0.8), 1.2) * a)
            total -= value / mask.sum().item() / len(i["mask"])
    assert case.loss == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.surrogate])
def test_gradients_are_the_slopes_of_the_losses(name):
    """By central differences."""
    gradient, step = one(name).gradient, 1e-6
    case = one("gspo") if name == "gspo_token" else one(name)  # its value is GSPO's
    for row, t in ((0, 0), (0, 6), (2, 3)):
        ends = []
        for sign in (1, -1):
            logp = case.inputs["logp"].clone()
            logp[row, t] += sign * step
            inputs = {**case.inputs, "logp": logp}
            ends.append(loss_of(ALGORITHMS[case.algorithm], inputs, case.settings).loss)
        slope = (ends[0] - ends[1]).item() / (2 * step)
        assert gradient[row, t].item() == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("cap", [1, 2])
def test_tis_weighs_by_the_capped_ratio_of_policy_to_sampler(cap):
    plain, capped = one("grpo"), one("grpo", f"TIS, cap {cap}")
    i = plain.inputs
    weight = (i["old_logp"] - i["rollout_logp"]).exp().clamp(max=cap)
    assert_close(capped.gradient, plain.gradient * weight)


def test_kl_adds_beta_times_its_mean():
    plain, with_kl = one("grpo"), one("grpo", "KL in the loss, k1")
    i = plain.inputs
    each = ((i["logp"] - i["ref_logp"]) * i["mask"]).sum(-1) / i["mask"].sum(-1)
    assert with_kl.loss - plain.loss == pytest.approx(0.1 * each.mean().item())


def test_metrics_say_where_it_clips():
    case = one("grpo", what="ratios far from 1")
    z = (case.inputs["logp"] - case.inputs["old_logp"])[case.inputs["mask"].bool()]
    largest = z.expm1().abs().max().item()
    assert case.metrics["ratio/max_deviation"] == pytest.approx(largest)
    assert case.metrics["clip_ratio/region_mean"] > 0.2


def every_token(mask):
    return mask / len(mask)


def by_age(mask, age):
    return mask / age


def test_a_method_of_ones_own_is_asked_under_its_own_normaliser(monkeypatch):
    """What no case can ask for is left out alone, and the table says why."""
    plain = replace(GRPO, name="plain", normaliser=every_token)
    old = replace(CISPO, name="old", normaliser=by_age)
    monkeypatch.setattr(cases, "ALGORITHMS", {"plain": plain, "old": old})
    monkeypatch.setattr(readings, "ALGORITHMS", {"plain": plain})
    every = list(cases.cases())
    assert {c.algorithm for c in every} == {"plain"}
    assert {c.settings["normaliser"] for c in every} > {"every_token", "token_mean"}
    right = (one("grpo").inputs["mask"].sum(-1) * one("grpo").gradient.T).T
    assert_close(every[0].gradient, right)
    mine = type("Mine", (), {"plain": lambda i, s: i["logp"].sum()})
    text = table.shown(list(table.compare(mine, every[:1])), "mine", cases.left_out())
    assert text.splitlines()[-1].split(maxsplit=3)[:3] == ["old", "left", "out"]
    assert "by_age needs age" in text
    assert "by_age" in cases.as_json(every)["left_out"]["old"]


# The file


def test_the_loader_reads_what_the_command_prints(tmp_path, capsys):
    assert main(["conformance"]) == 0
    path = tmp_path / "cases.json"
    path.write_text(capsys.readouterr().out, encoding="ascii")  # any console's
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity
    for case, (name, inputs, settings, loss, gradient) in zip(
        EVERY, loader.load(path), strict=True
    ):
        assert name == case.name and loss == case.loss
        assert torch.equal(gradient, case.gradient)
        assert all(torch.equal(inputs[k], v) for k, v in case.inputs.items())
        again = answer(ALGORITHMS[case.algorithm], inputs, settings)
        assert torch.equal(again[1], gradient)


def test_another_schema_is_refused(tmp_path):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"schema": 2, "cases": []}))
    with pytest.raises(ValueError, match="schema 2, this reads schema 1"):
        list(loader.load(path))


# The table


def asked(tmp_path, source, name=None):
    """What came of an adapter's file, of one method's cases or of all."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    every = [c for c in EVERY if name in (None, c.algorithm)]
    return list(table.compare(table.adapters(path), every))


OURS = """
import os, sys, torch
from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance.cases import loss_of
def {name}(inputs, settings):
    loss = loss_of(ALGORITHMS[{name!r}], inputs, settings).loss
    logp, mask = inputs["logp"], inputs["mask"]
    {then}
    return loss
"""


@pytest.mark.parametrize("name", ["grpo", "cispo", "rspo"])
def test_our_own_losses_agree(name, tmp_path):
    for c in asked(tmp_path, OURS.format(name=name, then="")):
        here = c.case.algorithm == name
        assert c.outcome == ("agrees" if here else "not implemented")


WRONG = {
    "the gradient of one token": "loss += 1e-5 * (logp - logp.detach())[0, 0]",
    "NaN gradients at padding": (
        "loss += torch.where(mask > 0, 1.0, 0 * logp).sqrt().sum() - mask.sum()"
    ),
    "a value without its gradient": "loss += 1e-5",
    "no number": "loss = loss / 0.0 * 0.0",
}


@pytest.mark.parametrize("what", WRONG)
def test_one_wrong_number_differs(what, tmp_path):
    answers = asked(tmp_path, OURS.format(name="grpo", then=WRONG[what]), "grpo")
    wrong = [c for c in answers if c.outcome == "differs"]
    # One case has no padding, in one the loss is of the size of 1e9.
    assert len(wrong) >= len(answers) - 1 and {c.reading for c in wrong} == {None}


def test_a_cap_of_one_plus_is_named_in_a_loss_written_by_hand(tmp_path):
    source = """
import torch
def cispo(inputs, settings):
    given, mask = settings["hyperparameters"], inputs["mask"]
    if settings["normaliser"] != "token_mean" or len(settings) > 3:
        raise NotImplementedError
    if given["mask_epsilon_high"]:
        raise NotImplementedError
    r = (inputs["logp"] - inputs["old_logp"]).exp().detach()
    r = torch.minimum(r, torch.tensor(1 + given["max_ratio"]).double())
    each = r * inputs["advantages"][:, None] * inputs["logp"] * mask
    return -each.sum() / mask.sum()
"""
    answers = asked(tmp_path, source, "cispo")
    wrong = {c.case.name: c.reading for c in answers if c.outcome == "differs"}
    assert set(wrong.values()) == {"the cap is 1 + max_ratio"}
    assert "cispo | max_ratio 1.28 | ratios far from 1" in wrong
    assert sum(c.outcome == "agrees" for c in answers) > 5


def test_the_command_fails_where_a_loss_differs(tmp_path, capsys):
    path = tmp_path / "mine.py"
    for then, code in (("", 0), ("return asked(inputs, settings)", 1)):
        source = OURS.format(name="dapo", then=then)
        path.write_text(
            f"{source}\ndef asked(inputs, settings):\n    settings['cap'] = None\n"
            "    return loss_of(ALGORITHMS['dapo'], inputs, settings).loss\n"
        )
        assert main(["conformance", "--against", str(path)]) == code
    lines = [x for x in capsys.readouterr().out.splitlines() if "differs" in x]
    assert len(lines) == 1 and lines[0].split()[:3] == ["dapo", "differs", "2"]
    assert lines[0].endswith("there is no truncated weight")


def test_adapters_may_be_ordinary_files(tmp_path):
    """With a helper beside them, dataclasses, and hands that leave nothing alone."""
    (tmp_path / "helper_of_mine.py").write_text("SIGN = -1\n")
    source = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from helper_of_mine import SIGN\n"
        "@dataclass\nclass Seen:\n    n: int = 0\n"
        "def grpo(inputs, settings):\n"
        "    inputs['mask'].zero_()\n"
        "    settings['hyperparameters'].clear()\n"
        "    return SIGN * inputs['logp'].sum()\n"
    )
    before = one("grpo").inputs["mask"].clone()
    answers = asked(tmp_path, source, "grpo")
    assert {c.outcome for c in answers} == {"differs"}
    assert torch.equal(one("grpo").inputs["mask"], before)
    assert one("grpo").settings["hyperparameters"]
    shown = table.shown(answers, "mine")
    assert "no known reading: the paper's, typical; the paper's, another draw" in shown


@pytest.mark.parametrize("title", readings.READINGS)
def test_every_reading_is_told_from_the_paper_by_some_case(title):
    """And is recognised: the answer that it gives is called by its name."""
    for case in EVERY:
        try:
            loss, gradient = readings.read(case, [title])
        except readings.DoesNotApply:
            continue
        right = readings.alike(case.loss, case.gradient, loss, gradient, 1e-6)
        if not right and readings.matches(case, loss, gradient, 1e-6) == title:
            return
    pytest.fail("no case is told from the paper's")


def test_two_misreadings_at_once_are_both_named():
    case = one("grpo", what="an empty row")
    full = case.inputs["mask"].sum(-1) > 0
    logp = case.inputs["logp"].clone().requires_grad_()
    rows = {k: v[full] for k, v in (case.inputs | {"logp": logp}).items()}
    changed = case.settings | {"normaliser": "constant"}
    loss = loss_of(GRPO, rows, changed).loss
    (gradient,) = torch.autograd.grad(loss, logp)
    both = "an empty response is left out of B, and divided by a constant, always"
    assert readings.matches(case, loss.item(), gradient, 1e-6) == both


# What fails, or ends the program


@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ("raise NotImplementedError", "not implemented"),
        ("return inputs['nothing']", "KeyError: 'nothing'"),
        (r"raise ValueError('a\n\x1b[2Jb' + 5000 * 'c')", "ValueError: a [2Jbccc"),
        ("sys.exit(0)", "SystemExit: 0"),
        ("os._exit(0)", "SystemExit: 0"),
    ],
)
def test_errors_and_what_is_missing_are_no_differences(then, outcome, tmp_path):
    answers = asked(tmp_path, OURS.format(name="gspo", then=then), "gspo")
    assert len(answers) == 21
    assert all(c.outcome.startswith(outcome) for c in answers)
    assert max(len(c.outcome) for c in answers) <= 120


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        (
            "none.py",
            None,
            "there is no .*none.py: start from a copy of refimpl/interop",
        ),
        ("mine.py", "def gprpo(inputs, settings): ...", "did you mean 'grpo'"),
        ("mine.py", "x = 1", "no function named after an algorithm; one of: reinf"),
        ("mine.txt", "x = 1", r"must be a Python file, named \*\.py"),
        ("mine.py", "def grpo(", "cannot be imported: SyntaxError"),
        ("mine.py", "import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
        ("mine.py", "import os; os._exit(0)", "cannot be imported: SystemExit: 0"),
    ],
)
def test_a_file_without_losses_is_refused(name, source, message, tmp_path, capsys):
    path = tmp_path / name
    if source is not None:
        path.write_text(source)
    with pytest.raises(UserError, match=message):
        table.adapters(path)
    assert main(["conformance", "--against", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_adapter_that_ends_the_program_fails(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(OURS.format(name="ppo", then="os._exit(0)"))
    assert main(["conformance", "--against", str(path)]) == 1
    assert "SystemExit: 0" in capsys.readouterr().out


def test_the_adapters_to_fill_in_answer_nothing(capsys):
    assert main(["conformance", "--against", adapters.__file__]) == 0
    shown = capsys.readouterr().out
    assert "mine 0.1" in shown and "agrees" not in shown
