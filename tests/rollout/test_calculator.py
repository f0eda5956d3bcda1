"""Several turns: the world with a calculator, and what the sampler inserts."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import refimpl as rl
from refimpl import WarmStart, log_probs, sample, sampling, sft, warm_start
from refimpl.models import build
from refimpl.pretrained import logprobs as sharing
from refimpl.pretrained.fast import Direct
from refimpl.sampling import Decoder
from refimpl.tasks import Calculator, make_tokenizer
from refimpl.validation import UserError
from tests.worlds import EOS, ROUNDING, prepared

WORLD = Calculator()
TOKENIZER = make_tokenizer(WORLD.characters)
PROMPTS = ["3+9+4=", "1+2+3+4+5=", "9+8+7="]


def random_model():
    return build("tiny", TOKENIZER, 0).eval()


def answers_often(text: str) -> str | None:
    """A tool that talks: 0 to 3 characters of its own after each 1, 2, 3 or `]`."""
    return {"1": "=12;", "2": "", "3": "<eos>7", "]": "["}.get(text[-1:])


def drawn(**settings):
    given = {"group_size": 20, "temperature": 2.0, "max_new_tokens": 24, "seed": 1}
    return sample(random_model(), TOKENIZER, PROMPTS, **given | settings)


readers = pytest.mark.parametrize("reader", [Decoder, Direct])


# The sampler


@readers
def test_a_task_that_never_answers_changes_nothing(reader, monkeypatch):
    """Bit for bit: tokens, log-probs, entropies and the mask."""
    monkeypatch.setattr(sampling, "decoder", lambda _: reader)
    alone, silent = drawn(), drawn(observe=lambda text: None, max_turns=1)
    for name in ("ids", "mask", "logp", "entropy", "truncated", "group"):
        assert torch.equal(getattr(alone, name), getattr(silent, name))
    assert set(alone.turns.unique().tolist()) == {-1, 0}


def told(rollout, row: int, observe) -> tuple[list[int], list[float]]:
    """A response and its mask, from its own tokens alone: what `observe` inserts."""
    ids, mask, said = [], [], []
    for token in rollout.completion_ids()[row]:
        ids, mask, said = [*ids, token], [*mask, 1.0], [*said, token]
        over = token == EOS
        if not over and (answer := observe(TOKENIZER.decode(said))):
            inserted = TOKENIZER(answer)["input_ids"]
            ids, mask, said = ids + inserted, mask + [0.0] * len(inserted), []
    return ids, mask


@readers
@pytest.mark.parametrize("restricted", [{}, {"top_k": 5}])
def test_what_a_task_answers_is_inserted_read_and_not_scored(
    reader, restricted, monkeypatch
):
    """The log-probs of teacher forcing agree, so the cache has read what is inserted.
    A tool's EOS ends nothing, and a token that top_k rules out gives no NaN."""
    monkeypatch.setattr(sampling, "decoder", lambda _: reader)
    rollout = drawn(observe=answers_often, **restricted)
    holes = 0
    for row in range(len(rollout)):
        ids, mask = told(rollout, row, answers_often)
        span = int(rollout.span[row])  # without what was inserted after the last word
        holes += span - int(rollout.length[row])
        first = int(rollout.prompt_length[row])
        assert rollout.ids[row, first : first + span].tolist() == ids[:span]
        assert rollout.mask[row, :span].tolist() == mask[:span]
        cut = bool(rollout.truncated[row])
        assert cut == (ids[:span][-1] != EOS) and (not cut or len(ids) >= 24)
    assert holes > 100
    inserted = rollout.mask == 0
    assert not rollout.logp[inserted].any() and not rollout.entropy[inserted].any()
    again, entropy = log_probs(random_model(), rollout, 2.0)
    if restricted:
        assert (rollout.logp >= again - ROUNDING).all()
        return
    assert (again - rollout.logp).abs().max() < ROUNDING
    assert (entropy - rollout.entropy).abs().max() < ROUNDING
    shared = sharing.log_probs(random_model(), rollout, 2.0)[0]
    assert (shared - rollout.logp).abs().max() < ROUNDING


def test_an_answer_that_is_no_text_is_refused():
    with pytest.raises(UserError, match="observe must return a text, got 12"):
        drawn(observe=lambda text: 12)


def test_a_turn_limit_ends_a_response_that_would_go_on():
    """And no other; it is cut off, without an answer to its last turn."""
    free, bound = (drawn(observe=answers_often, max_turns=n) for n in (None, 2))
    assert free.turns.max() > 2 and bound.turns.max() == 1
    ended = 0
    for row, text in enumerate(bound.texts(TOKENIZER)):
        at_limit = bound.turns[row].max() == 1 and answers_often(text)
        ended += bool(at_limit)
        assert bound.truncated[row] or not at_limit
        assert bound.span[row] <= 24
    assert ended > 10


# The world


def test_a_call_is_answered_and_anything_else_is_not_understood():
    told = {"[3+9]": "=12;", "[99+99]": "=198;", "[3+]": "=?;", "[]": "=?;"}
    told |= {"x[[3+9]": "=12;", "[3+9+4]": "=?;", "[-3+9]": "=?;", "[٣+9]": "=?;"}
    told |= {"[103+9]": "=?;", "[__import__('os')]": "=?;", "[9**9]": "=?;"}
    told |= {"3+9]": None, "[3+9": None, "": None, "#12": None}
    assert {text: WORLD.observe(text) for text in told} == told


@given(st.text(max_size=30) | st.text("[]+#=0123456789", max_size=12))
def test_no_text_breaks_the_calculator_or_the_verifier(text):
    answer = WORLD.observe(text)
    assert answer is None or re.fullmatch(r"=(\d{1,3}|\?);", answer)
    assert WORLD.reward([""], [text], answer=[7])[0] == bool(
        re.fullmatch(r"(?:[^#]*\])?#7", text, re.DOTALL)
    )
    assert WORLD.habit(text) in WORLD.habits and WORLD.progress("3+4=", [text]) < 1


def test_habits_come_in_their_shares_and_are_what_they_say():
    rows = WORLD.demonstrations(6000, 0)
    kinds = {"call": 0, "guess": 0, "slip": 0, "early": 0, "broken": 0}
    for row in rows:
        turns, right = row["completion"], WORLD.call(row["prompt"])
        if isinstance(turns, str):
            kinds["guess"] += 1
        elif turns == right:
            kinds["call"] += 1
        elif "=?;" in map(WORLD.observe, turns):
            kinds["broken"] += 1
        else:
            kinds["early" if len(turns) < len(right) else "slip"] += 1
    shares = [count / len(rows) for count in kinds.values()]
    # One slip in ten puts the right digit there, and is a call.
    wanted = (0.2 + 0.02, 0.35, 0.45 * 0.45 - 0.02, 0.45 * 0.33, 0.45 * 0.22)
    assert shares == pytest.approx(wanted, abs=0.015)
    assert WORLD.call("3+9+4=") == ["[3+9]", "[12+4]", "#16"]


def test_progress_is_the_share_of_terms_that_are_rightly_added():
    turns = ["[3+9]", "[12+4]", "#16"]
    found = [WORLD.progress("3+9+4=", turns[:n]) for n in range(4)]
    assert found == pytest.approx([0, 1 / 3, 2 / 3, 1])
    for wrong in (["[3+8]"], ["[3+9]", "#12"], ["[3+9]", "[12+4]", "#16", "#16"]):
        assert WORLD.progress("3+9+4=", wrong) == 0


def test_the_warm_start_learns_no_token_of_the_tool():
    row = {"prompt": "3+9+4=", "completion": ["[3+9]", "[12+4]", "#16"]}
    ((ids, labels),) = sft._batches([row], TOKENIZER, 1, WORLD.observe)
    assert TOKENIZER.decode(ids[0]) == "3+9+4=[3+9]=12;[12+4]=16;#16<eos>"
    mine = ids[0][labels[0] != -100]
    assert TOKENIZER.decode(mine) == "[3+9][12+4]#16<eos>"
    assert torch.equal(labels[0][labels[0] != -100], mine)


# A run


def test_the_shipped_start_calls_seldom_and_well():
    """Room for RL: it guesses or errs more often. Evaluation calls, too, and without a
    tool the same policy is hardly ever right."""
    model, tokenizer, losses = warm_start(WarmStart(world=WORLD))
    assert losses[0] > 2.5 and sum(losses[550:600]) / 50 < 0.5
    rows = WORLD.held_out(1024, 1)
    prompts, answers = [r["prompt"] for r in rows], [r["answer"] for r in rows]
    texts = sample(model, tokenizer, prompts, observe=WORLD.observe).texts(tokenizer)
    paid = torch.tensor(WORLD.reward(prompts, texts, answer=answers))
    guesses = torch.tensor([WORLD.habit(text) == "guess" for text in texts])
    assert guesses.float().mean().item() == pytest.approx(0.35, abs=0.08)
    assert paid.mean().item() == pytest.approx(0.27, abs=0.1)
    assert paid[guesses].mean() < 0.25
    deaf = type("Deaf", (Calculator,), {"observe": staticmethod(lambda text: None)})
    with_tool = rl.evaluate(model, tokenizer, WORLD)
    assert rl.evaluate(model, tokenizer, deaf()) < with_tool - 0.1


def test_a_run_calls_as_often_as_it_may():
    start, _, _ = warm_start(WarmStart(world=WORLD))
    given = {"model": start, "tokenizer": TOKENIZER, "task": WORLD}
    run = prepared(**given, max_new_tokens=40, max_turns=4, overlong_share=1.0)
    rollout = rl.collect(run, 0)[0].rollout
    assert rollout.turns.max() + 1 == 4
    punished = run.drawn.rewards - run.drawn.paid  # by what the tool wrote as well
    assert torch.allclose(punished, rollout.span / 40, atol=1e-6)
