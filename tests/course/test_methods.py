"""`notebooks/methods.toml`: its entries reach who asks, and a slip has a sentence."""

import pytest

from course.kit import methods

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


SLIPS = {
    "Expected .* table": "\n[engines",
    r"method.dapo.look.*: Field required": '\n[method.dapo]\nlook = ["#fff"]',
    "method: no 'grpo2' is known .did you mean 'grpo'": "\n[method.grpo2]",
    "grpo.engines.TRL: give one of": '\nabsent = "b"',
    "grpo.engines.TRL: no word 'pag'": '\nsource = "{pag}"',
    "grpo has two entries for verl": '\n[method.grpo.engines.verl]\nabsent = "b"',
}


@pytest.mark.parametrize(("said", "slip"), SLIPS.items(), ids=[*SLIPS])
def test_a_slip_is_named_with_its_place(said, slip):
    with pytest.raises(ValueError, match=f"methods.toml.*{said}"):
        methods.read(ENGINES + slip)
