"""verl's configurations, as far as that can be tried without verl."""

from dataclasses import replace

import pytest
import yaml

from course import newer
from refimpl import UserError
from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS, DAPO
from refimpl.interop.configs import missing, yaml_of


def test_the_command_prints_the_file(capsys):
    assert main(["verl-config", "sapo"]) == 0
    text = capsys.readouterr().out
    assert text == yaml_of("sapo") and text.isascii()  # any console's
    assert [name for name, a in ALGORITHMS.items() if missing(a)] == ["rspo"]
    assert main(["verl-config", "rspo"]) == 2
    assert "rspo needs the routing of two passes" in capsys.readouterr().err


def test_a_method_of_ones_own_has_a_file_if_verl_can_average_it():
    mine = replace(DAPO, name="mine", title="Mine", advantages=newer.maxrl)
    settings = yaml.safe_load(yaml_of(mine))["algorithm"]
    assert settings["adv_estimator"] == "maxrl" and settings["filter_groups"]["enable"]
    with pytest.raises(UserError, match="luspo is averaged by every_token, and verl"):
        yaml_of(newer.luspo())
