"""The conformance kit: its cases are right, and its table tells what is wrong."""

import json
import math
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance import cases, loader, readings, table
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


def grpo_by_hand(case, low=0.2, high=0.2):
    """A loop over tokens."""
    i, total = case.inputs, 0.0
    for row, mask in enumerate(i["mask"]):
        for t in mask.nonzero()[:, 0]:
            r = math.exp(i["logp"][row, t] - i["old_logp"][row, t])
            a = i["advantages"][row].item()
            value = min(r * a, min(max(r, 1 - low), 1 + high) * a)
            total -= value / mask.sum().item() / len(i["mask"])
    return total


@pytest.mark.parametrize(
    "what",
    ["typical", "ratios far from 1", "one token", "an empty row", "no advantage"],
)
def test_grpos_answer_is_the_papers_sum(what):
    case = one("grpo", what=what)
    assert case.loss == pytest.approx(grpo_by_hand(case), abs=1e-12)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n != "cispo"])
def test_gradients_are_the_slopes_of_the_losses(name):
    """By central differences, where the loss is no surrogate of a gradient."""
    case = one(name)
    if name == "gspo_token":  # its value is GSPO's, and so is its slope
        case = one("gspo")
    i, step = case.inputs, 1e-6
    for row, t in ((0, 0), (0, 6), (2, 3)):
        ends = []
        for sign in (1, -1):
            logp = i["logp"].clone()
            logp[row, t] += sign * step
            asked = {**i, "logp": logp.requires_grad_()}
            ends.append(loss_of(ALGORITHMS[case.algorithm], asked, case.settings).loss)
        slope = (ends[0] - ends[1]).item() / (2 * step)
        assert one(name).gradient[row, t].item() == pytest.approx(slope, abs=1e-7)


def test_tis_weighs_by_the_capped_ratio_of_policy_to_sampler():
    plain, capped = one("grpo"), one("grpo", "TIS, cap 1")
    i = plain.inputs
    weight = (i["old_logp"] - i["rollout_logp"]).exp().clamp(max=1.0)
    assert_close(capped.gradient, plain.gradient * weight)


def test_kl_adds_beta_times_its_mean():
    plain, with_kl = one("grpo"), one("grpo", "KL in the loss, k1")
    i = plain.inputs
    each = ((i["logp"] - i["ref_logp"]) * i["mask"]).sum(-1) / i["mask"].sum(-1)
    assert with_kl.loss - plain.loss == pytest.approx(0.1 * each.mean().item())


def test_metrics_say_where_it_clips():
    case = one("grpo", what="ratios far from 1")
    z = (case.inputs["logp"] - case.inputs["old_logp"])[case.inputs["mask"].bool()]
    assert case.metrics["ratio/max_deviation"] == pytest.approx(
        z.expm1().abs().max().item()
    )
    assert case.metrics["clip_ratio/region_mean"] > 0.2


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


def asked(tmp_path, source):
    path = tmp_path / "mine.py"
    path.write_text(source)
    return list(table.compare(table.adapters(path), EVERY))


OURS = """
from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance.cases import loss_of
def {name}(inputs, settings):
    return loss_of(ALGORITHMS[{name!r}], inputs, settings | {changed}).loss
"""


@pytest.mark.parametrize("name", ["grpo", "cispo", "rspo"])
def test_our_own_losses_agree(name, tmp_path):
    found = asked(tmp_path, OURS.format(name=name, changed={}))
    for f in found:
        assert f.said == ("agrees" if f.case.algorithm == name else "not implemented")


def test_the_command_fails_where_a_loss_differs(tmp_path, capsys):
    for changed, code in (({}, 0), ({"cap": None}, 1)):
        path = tmp_path / "mine.py"
        path.write_text(OURS.format(name="dapo", changed=changed))
        assert main(["conformance", "--against", str(path)]) == code
    assert "there is no truncated weight" in capsys.readouterr().out


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
    own = [f for f in asked(tmp_path, source) if f.case.algorithm == "grpo"]
    assert {f.said for f in own} == {"differs"}
    assert torch.equal(one("grpo").inputs["mask"], before)
    assert one("grpo").settings["hyperparameters"]


def test_a_misreading_is_named(tmp_path):
    found = asked(tmp_path, OURS.format(name="dapo", changed={"cap": None}))
    wrong = [f for f in found if f.said == "differs"]
    assert {f.reading for f in wrong} == {"there is no truncated weight"}
    assert {f.case.part for f in wrong} == {"TIS, cap 1", "TIS, cap 2"}
    assert min(f.largest for f in wrong) > 1e-3


@pytest.mark.parametrize("title", readings.READINGS)
def test_every_reading_is_told_from_the_paper_by_some_case(title):
    """And is recognised: the answer that it gives is called by its name."""
    differing, named = 0, 0
    for case in EVERY:
        logp = case.inputs["logp"].clone().requires_grad_()
        given = ALGORITHMS[case.algorithm], {**case.inputs, "logp": logp}
        try:
            loss = readings._read(*given, case.settings, [readings.READINGS[title]])
        except readings.DoesNotApply:
            continue
        (g,) = torch.autograd.grad(loss, logp)
        if readings.alike(case.loss, case.gradient, loss.item(), g, 1e-6):
            continue
        differing += 1
        named += readings.matches(case, loss.item(), g, 1e-6) == title
        if named:
            return
    assert differing and named


def test_two_misreadings_at_once_are_both_named():
    case = one("grpo", what="an empty row")
    i = case.inputs
    given = case.settings["hyperparameters"] | {"epsilon_low": 0.2}
    full = i["mask"].sum(-1) > 0
    logp = i["logp"].clone().requires_grad_()
    rows = {k: (logp if k == "logp" else v)[full] for k, v in i.items()}
    changed = {"normaliser": "constant", "hyperparameters": given}
    loss = loss_of(ALGORITHMS["grpo"], rows, case.settings | changed).loss
    (g,) = torch.autograd.grad(loss, logp)
    said = readings.matches(case, loss.item(), g, 1e-6)
    assert said == (
        "an empty response is left out of B, and divided by a constant, always"
    )


def test_what_is_no_known_reading_is_said_with_its_cases(tmp_path):
    source = "def sapo(inputs, settings):\n    return -inputs['logp'].sum()\n"
    found = asked(tmp_path, source)
    shown = table.shown(found, "mine")
    assert "no known reading: the paper's, typical; the paper's, another draw" in shown


def test_errors_and_what_is_missing_are_no_differences(tmp_path):
    source = (
        "def sapo(inputs, settings):\n    raise NotImplementedError\n"
        "def gspo(inputs, settings):\n    return inputs['nothing']\n"
    )
    said = Counter((f.case.algorithm, f.said) for f in asked(tmp_path, source))
    assert said["gspo", "KeyError: 'nothing'"] == 21
    assert not any(what == "differs" for _, what in said)
    assert said["grpo", "not implemented"] > 20


def test_a_loss_that_is_not_finite_differs(tmp_path):
    source = (
        "def grpo(inputs, settings):\n    return inputs['logp'].sum() / 0.0 * 0.0\n"
    )
    own = [f for f in asked(tmp_path, source) if f.case.algorithm == "grpo"]
    assert {f.said for f in own} == {"differs"}


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("none.py", None, "there is no .*none.py: start from a copy of refimpl/conf"),
        ("mine.py", "def gprpo(inputs, settings): ...", "did you mean 'grpo'"),
        ("mine.py", "x = 1", "no function named after an algorithm; one of: reinf"),
        ("mine.txt", "x = 1", r"must be a Python file, named \*\.py"),
    ],
)
def test_a_file_without_losses_is_refused(name, source, message, tmp_path, capsys):
    path = tmp_path / name
    if source is not None:
        path.write_text(source)
    with pytest.raises(ValueError, match=message):
        table.adapters(path)
    assert main(["conformance", "--against", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_adapters_to_fill_in_answer_nothing(capsys):
    from refimpl.interop.conformance import adapters

    assert main(["conformance", "--against", adapters.__file__]) == 0
    shown = capsys.readouterr().out
    assert "mine 0.1" in shown and "agrees" not in shown
