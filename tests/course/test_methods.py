"""`notebooks/methods.toml`: its entries reach who asks, and a slip has a sentence."""

import re
from dataclasses import replace

import pytest
import yaml

from course.kit import methods
from refimpl.algorithms import ALGORITHMS
from refimpl.interop import configs
from web import flags

ENGINES = """
[engines.TRL]
read = "1.16"
source = "its {page}"
words.page = "trainer"
[engines.verl]
read = "0.9"
source = "core"
[[engines.verl.several]]
methods = ["ppo", "grpo"]
absent = "no list"
[papers]
[method.ppo]
[method.grpo.engines.TRL]
settings = "a=1"
"""


def test_an_entry_has_its_source_or_the_engines_with_its_words():
    found = methods.read(ENGINES).method
    entry = found["grpo"].engines["TRL"]
    assert (entry.key, entry.text, entry.source) == ("settings", "a=1", "its trainer")
    absent = {name: found[name].engines["verl"].text for name in ("ppo", "grpo")}
    assert absent == {"ppo": "no list", "grpo": "no list"}
    assert "TRL" not in found["ppo"].engines


VERSION = re.compile(r"@[0-9a-f]{10}|\d+\.\d+\.\d+|20\d\d-\d\d")


def test_every_method_and_engine_has_a_whole_cell_with_a_version():
    cells = [flags.cell(method, e) for method in ALGORITHMS for e in flags.ENGINES]
    assert all(text.strip() for one in cells for text in one)
    read = [one for one in cells if one.kind != "not read"]
    assert [one for one in read if not VERSION.search(one.source)] == []
    assert {one.kind for one in read} == {"settings", "partly", "absent", "not found"}


def test_a_method_that_is_new_is_a_state_in_every_engine(monkeypatch):
    """Also one with advantages and an average of its own, which verl cannot have."""
    new = replace(ALGORITHMS["gspo"], name="new")
    own = replace(new, name="own", advantages=lambda s: s.total, normaliser=lambda m: m)
    for method in (new, own):
        monkeypatch.setitem(ALGORITHMS, method.name, method)
    kinds = {m: [flags.cell(m, e).kind for e in flags.ENGINES] for m in ("new", "own")}
    others = ["not read"] * (len(flags.ENGINES) - 2)
    assert kinds["new"] == ["not read", "settings", *others]
    assert kinds["own"] == ["not read", "absent", *others]
    assert "`policy_loss.loss_mode=refimpl_new`" in flags.cell("new", "verl").settings
    assert "not read</a>" in flags.page("").body


@pytest.mark.parametrize("method", ALGORITHMS.values(), ids=lambda method: method.name)
def test_cells_of_trl_and_verl_are_what_the_bridges_say(method):
    verl, trl = (flags.cell(method.name, engine) for engine in ("verl", "TRL"))
    if why := configs.missing(method):
        assert verl[:3] == ("absent", "absent", why)
    else:
        ours = yaml.safe_load(configs.yaml_of(method))
        averaged = ours["actor_rollout_ref"]["actor"]["loss_agg_mode"]
        assert f"adv_estimator={ours['algorithm']['adv_estimator']}`" in verl.settings
        assert f"loss_agg_mode={averaged}`" in verl.settings
        bare = "norm_adv_by_std_in_grpo" in ours["algorithm"]
        assert ("norm_adv_by_std_in_grpo=False" in verl.settings) == bare
    named = re.findall(r"loss_type=(grpo|dr_grpo|dapo)\b", trl.settings)
    assert named in ([], [getattr(method.normaliser, "trl", None)])
