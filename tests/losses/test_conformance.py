"""The conformance kit: its cases are right, and its table tells what is wrong."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS, GRPO
from refimpl.interop.conformance import cases, loader, readings, table
from refimpl.interop.conformance.cases import answer

EVERY = list(cases.cases())


def every_token(mask):
    return mask / len(mask)


def test_a_method_of_ones_own_is_asked_under_its_own_normaliser(monkeypatch):
    mine = replace(GRPO, name="mine", normaliser=every_token)
    for module in (cases, readings):
        monkeypatch.setattr(module, "ALGORITHMS", {"mine": mine})
    every = list(cases.cases())
    assert {c.algorithm for c in every} == {"mine"}
    assert {c.settings["normaliser"] for c in every} > {"every_token", "token_mean"}
    grpo = next(c for c in EVERY if c.name == "grpo | the paper's | typical")
    length = grpo.inputs["mask"].sum(-1, keepdim=True)
    assert_close(every[0].gradient, length * grpo.gradient)


def test_the_loader_reads_what_the_command_prints(tmp_path, capsys):
    assert main(["conformance"]) == 0
    path = tmp_path / "cases.json"
    text = capsys.readouterr().out
    path.write_text(text, encoding="ascii")  # any console's
    json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity
    read = zip(EVERY, loader.load(path), strict=True)
    for case, (name, inputs, settings, loss, gradient) in read:
        assert name == case.name and loss == case.loss
        assert all(torch.equal(inputs[k], v) for k, v in case.inputs.items())
        again = answer(ALGORITHMS[case.algorithm], inputs, settings)
        assert torch.equal(again[1], gradient) and torch.equal(gradient, case.gradient)
    path.write_text(json.dumps({"schema": 2, "cases": []}))
    with pytest.raises(ValueError, match="schema 2, this reads schema 1"):
        list(loader.load(path))


OURS = """
import os, sys, torch
from refimpl.algorithms import ALGORITHMS
from refimpl.interop.conformance.cases import loss_of
def {name}(inputs, settings):
    {first}
    loss = loss_of(ALGORITHMS[{name!r}], inputs, settings).loss
    logp, mask = inputs["logp"], inputs["mask"]
    {then}
    return loss
"""


def asked(tmp_path, source, name, part=""):
    """What came of one method's cases with these adapters."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    every = [c for c in EVERY if c.algorithm == name and c.part.startswith(part)]
    return list(table.compare(table.adapters(path), every))


@pytest.mark.parametrize(
    "then",
    [
        "loss += 1e-5 * (logp - logp.detach())[0, 0]",  # the gradient of one token
        "loss += torch.where(mask > 0, 1.0, 0 * logp).sqrt().sum() - mask.sum()",
        "loss += 1e-5",
        "loss = loss / 0.0 * 0.0",
    ],
    ids=["one token", "NaN gradients at padding", "the value", "NaN"],
)
def test_one_wrong_number_differs(then, tmp_path):
    source = OURS.format(name="grpo", first="", then=then)
    answers = asked(tmp_path, source, "grpo", part="the paper's")
    wrong = [a.reading for a in answers if a.outcome == "differs"]
    # One case has no padding, in one the loss is of the size of 1e9.
    assert len(wrong) >= len(answers) - 1 >= 8 and set(wrong) == {None}


NO_CAP = "settings['cap'] = None"
UGLY = r"raise ValueError('a\n\x1b[2Jb' + 5000 * 'c')"
PRINTED = [
    ("grpo", "", 0, ["agrees +33 .*"]),
    ("dapo", NO_CAP, 1, ["agrees .*", "differs +2 .* there is no truncated weight"]),
    ("gspo", "raise NotImplementedError", 1, ["not implemented +21"]),
    ("gspo", "return 0.5", 1, [".* a tensor with a single number +21"]),
    ("gspo", UGLY, 1, [r"ValueError: a \\x1b\[2Jbc{80,101} +21"]),
    ("gspo", "raise SystemExit(3)", 1, ["SystemExit: 3 +21"]),
]


@pytest.mark.parametrize(("name", "first", "code", "lines"), PRINTED)
def test_the_command_fails_where_a_loss_does(
    name, first, code, lines, tmp_path, capsys
):
    path = tmp_path / "mine.py"
    path.write_text(OURS.format(name=name, first=first, then=""))
    assert main(["conformance", "--against", str(path)]) == code
    printed = capsys.readouterr().out.splitlines()
    of_method = [line for line in printed if line.startswith(f"{name} ")]
    assert len(lines) == len(of_method)
    for line, pattern in zip(of_method, lines):
        assert re.fullmatch(f"{name} +{pattern}", line)


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


# TRL's and verl's losses, frozen by tests/bridges/report.py


FROZEN = json.loads((Path(__file__).parent / "references.json").read_text())
CASES = {case.name: case for case in EVERY}
IDS = [f"{known['framework']} | {known['case']}" for known in FROZEN]


@pytest.mark.parametrize("known", FROZEN, ids=IDS)
def test_loss_and_gradient_are_the_frameworks(known):
    """Every setting that they have: normalisers, bounds, truncated weights, KL."""
    case = CASES[known["case"]]
    gradient = torch.tensor(known["gradient"], dtype=torch.float64)
    assert case.loss == pytest.approx(known["loss"], rel=0, abs=1e-6)
    assert_close(case.gradient, gradient, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3  # there was something to agree on
