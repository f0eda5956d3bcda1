"""verl's configurations, as far as that can be tried without verl."""

from dataclasses import replace

import pytest
import torch
import yaml

from refimpl import UserError
from refimpl.__main__ import main
from refimpl.advantages import group_centred, maxrl, reinforce_plus_plus
from refimpl.algorithms import ALGORITHMS, DAPO
from refimpl.interop.configs import missing, yaml_of
from refimpl.interop.scored import advantages_of


def test_the_command_prints_the_file(capsys):
    assert main(["verl-config", "sapo"]) == 0
    text = capsys.readouterr().out
    assert text == yaml_of("sapo") and text.isascii()  # any console's
    averaged = {n: a for n, a in ALGORITHMS.items() if hasattr(a.normaliser, "verl")}
    assert [name for name, a in averaged.items() if missing(a)] == ["rspo"]
    assert main(["verl-config", "rspo"]) == 2
    assert "rspo needs the routing of two passes" in capsys.readouterr().err


def test_a_method_of_ones_own_has_a_file_if_verl_can_average_it():
    mine = replace(DAPO, name="mine", title="Mine", advantages=maxrl)
    settings = yaml.safe_load(yaml_of(mine))["algorithm"]
    theirs = yaml_of(replace(mine, advantages=reinforce_plus_plus))
    assert "adv_estimator: reinforce_plus_plus\n" in theirs and "yours" not in theirs
    assert "loss_scale_factor: ${data.max" in yaml_of("dr_grpo")  # its constant
    assert settings["adv_estimator"] == "maxrl" and settings["filter_groups"]["enable"]
    assert "seq-mean-token-sum\n" in yaml_of("luspo")
    other = replace(DAPO, name="mine", normaliser=lambda mask: mask / len(mask))
    with pytest.raises(UserError, match="mine is averaged by <lambda>, but verl has"):
        yaml_of(other)


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if not missing(a)])
def test_the_std_is_left_out_where_the_method_leaves_it_out(name):
    """verl's `grpo` divides by it, unless it is told not to."""
    settings = yaml.safe_load(yaml_of(name))["algorithm"]
    centred = ALGORITHMS[name].advantages is group_centred
    assert settings.get("norm_adv_by_std_in_grpo", True) is not centred
    assert not centred or settings["adv_estimator"] == "grpo"


def test_what_could_not_be_scored_is_in_no_baseline():
    """For TRL, whose rewards may be NaN: the mean of the others is 0.5."""
    rewards = torch.tensor([1.0, torch.nan, 0.0, 0.5])
    found = advantages_of(group_centred, rewards, torch.ones(4, 3), 4)
    assert found.tolist() == [0.5, 0.0, -0.5, 0.0]
