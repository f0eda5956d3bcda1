"""Credit for turns: GiGPO and differences of state scores, by hand and by rules."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

import refimpl as rl
from refimpl import UserError
from refimpl.advantages import Scored, group_centred, group_relative
from refimpl.rollout import turn_index
from refimpl.tasks import Calculator
from refimpl.turns import gigpo, returns, seen, state_differences
from tests.losses.batches import EXACT

pytestmark = pytest.mark.usefixtures("float64")
WORLD = Calculator()
S0, A, B, C, D = range(5)
"""Four answers to one prompt, and what the environment shows before each turn."""
STATES = [[S0, A, B], [S0, A, C], [S0, D, -1], [S0, A, B]]
PAID = [1.0, 0, 1, 0]


def scored(states=STATES, paid=PAID, scores=None, gamma=0.95, group=None) -> Scored:
    """Turns of two tokens, with one of the tool between them."""
    there = tensor(states) >= 0
    turn = tensor([1.0, 1, 0])
    mask = (there[:, :, None] * turn).flatten(1)
    group = torch.zeros(len(there), dtype=torch.long) if group is None else group
    given = {"gamma": gamma, "states": tensor(states)}
    if scores is not None:
        given["state_scores"] = tensor(scores)
    return Scored(tensor(paid).double(), group, mask, **given)


def by_turn(function, given: Scored, **settings) -> torch.Tensor:
    """(B, n): the number of each turn, which all of its tokens have; 0 elsewhere."""
    estimate, turns = function(given, **settings), turn_index(given.mask)
    assert not estimate[turns < 0].any()
    each = []
    for k in range(given.states.shape[1]):
        of_turn = torch.where(turns == k, estimate, 0.0)
        each.append(of_turn.amax(-1) + of_turn.amin(-1))
        assert_close(of_turn, each[-1][:, None] * (turns == k))
    return torch.stack(each, -1)


EPS = {"rtol": 0, "atol": 1e-4}
"""The numbers have four digits, and eps is 1e-6."""


def test_gigpo_by_hand():
    """Returns at s0 are .9025 0 .95 0; at a .95 0 0; at b 1 0; c and d are alone."""
    of_turn = by_turn(gigpo, scored()) - group_relative(scored())[:, None]
    there = tensor(STATES) >= 0
    wanted = [
        [0.8211, 1.1547, 0.7071],
        [-0.8655, -0.5773, 0],
        [0.9098, 0, 0],
        [-0.8655, -0.5773, -0.7071],
    ]
    assert_close(of_turn * there, tensor(wanted), **EPS)
    found = by_turn(gigpo, scored())
    assert_close(found[1], tensor([-1.7315, -1.4434, -0.8660]), **EPS)
    found = by_turn(gigpo, scored(), std=False)
    assert_close(found[1], tensor([-0.9631, -0.8167, -0.5]), **EPS)


@pytest.mark.parametrize("function", [gigpo, state_differences])
@pytest.mark.parametrize("std", [True, False])
def test_without_its_own_part_it_is_the_groups_advantage(function, std):
    scores = torch.rand(4, 4).tolist()
    given = scored(scores=scores)
    whole = (group_relative if std else group_centred)(given)[:, None]
    found = function(given, omega=0.0, std=std)
    assert_close(found, whole * given.mask, **EXACT)


def test_an_equal_number_of_another_prompt_is_another_state():
    given = scored(gamma=0.9, group=tensor([0, 0, 1, 1]))
    alone = [scored(STATES[i : i + 2], PAID[i : i + 2], gamma=0.9) for i in (0, 2)]
    parts = [gigpo(one) for one in alone]
    assert_close(gigpo(given), torch.cat(parts), **EXACT)


def test_the_order_of_rows_does_not_matter():
    order, scores = tensor([2, 0, 3, 1]), torch.rand(4, 4)
    group = tensor([0, 1, 0, 1])
    for function in (gigpo, state_differences):
        whole = function(scored(scores=scores.tolist(), group=group))
        states, paid = tensor(STATES)[order].tolist(), tensor(PAID)[order].tolist()
        moved = scored(states, paid, scores[order].tolist(), group=group[order])
        assert_close(function(moved), whole[order], **EXACT)


def test_returns_are_discounted_by_turns_and_not_by_tokens():
    given = scored()
    paid = torch.zeros_like(given.mask)
    paid[0, [0, 4, 7]] = tensor([0.5, 0.25, 1.0])  # one in each turn
    paid[0, 2] = 7.0  # of the tool's token, which nobody earned
    found = returns(replace(given, rewards=paid))
    third, second = 1.0, 0.25 + 0.95
    assert_close(found[0], tensor([0.5 + 0.95 * second, second, third]), **EXACT)
    whole = replace(given, rewards=tensor([1, 0, 1, 0]))  # as a verifier may pay
    assert_close(returns(whole)[0], tensor([0.9025, 0.95, 1.0]).float())


SCORES = [0.2, 0.2, 0.2, 0.8, 0.6]
"""Before the first turn, and after each of four."""
FOUR = [[0, 1, 2, 3], [0, 1, -1, -1]]


def differences(scores, gamma=0.5, states=FOUR, paid=(0.0, 0.0)):
    """c of each turn, not centred: beside an answer of as many turns that stays 0."""
    given = scored(states, list(paid), scores, gamma)
    return by_turn(state_differences, given, std=False)


def test_differences_by_hand():
    """d = 0 0 .6 −.2; a turn and those before it share each, by weights 1 ½ ¼ ⅛."""
    c = tensor([0.0724, 0.1448, 0.2895, -0.1067])
    mean = 0.4 / 6  # over the six turns of the group
    found = differences([SCORES, [0.5] * 5])
    assert_close(found[0], c - mean, **EPS)
    assert_close(found[1], tensor([-mean, -mean, 0, 0]), **EPS)
    # A score after the end of an answer is not looked at.
    again = differences([SCORES, [0.5, 0.5, 0.5, 9.0, 9.0]])
    assert_close(again, found, **EXACT)


def test_differences_telescope_and_reward_no_stay():
    """Wrong: to pay Φ itself, with which a good state pays for every further turn."""
    for gamma in (0.0, 0.3, 1.0):
        found = differences([SCORES, [0.5] * 5], gamma)
        c = found[0] - found[1, 0]  # the other one's c is 0
        assert c.sum().item() == pytest.approx(0.4)
        stays = differences([[0.8] * 5, [0.5] * 5], gamma)
        assert not stays.any()
    found = differences([SCORES, [0.5] * 5], 0.0)
    assert_close(found[0] - found[1, 0], tensor([0, 0, 0.6, -0.2]))


def test_a_state_is_all_that_was_written_before():
    model, tokenizer, _ = rl.warm_start(rl.WarmStart(world=WORLD))
    prompts = [row["prompt"] for row in WORLD.sample(32, 0) for _ in range(2)]
    given = {"group_size": 4, "observe": WORLD.observe, "max_turns": 7, "seed": 0}
    rollout = rl.sample(model.float(), tokenizer, prompts, **given)
    found = seen(WORLD, tokenizer, rollout)
    states, scores, named = found["states"], found["state_scores"], {}
    for row in range(len(rollout)):
        first = int(rollout.prompt_length[row])
        for k in range(int(rollout.turns[row].max()) + 1):
            begins = first + rollout.turns[row].tolist().index(k)
            text = tokenizer.decode(rollout.ids[row, :begins])
            assert named.setdefault(int(states[row, k]), text) == text
        prompt = tokenizer.decode(rollout.ids[row, :first])
        turns = [turn + "]" for turn in rollout.texts(tokenizer)[row].split("]")]
        turns = [*turns[:-1], turns[-1][:-1]] if turns[-1] != "]" else turns[:-1]
        each = [WORLD.progress(prompt, turns[:k]) for k in range(len(turns) + 1)]
        assert scores[row, : len(each)].tolist() == pytest.approx(each)
        assert (states[row] >= 0).sum() == len(turns)
        assert (scores[row, len(each) :] == scores[row, len(each) - 1]).all()
    assert len(set(named.values())) == len(named)  # one number each


@pytest.mark.parametrize("function", [gigpo, partial(state_differences, omega=2.0)])
def test_a_run_trains_with_it(function):
    method = replace(rl.ALGORITHMS["grpo"], advantages=function)
    config = rl.TrainConfig(
        rollouts=1, prompts_per_rollout=4, group_size=8, eval_problems=4, gamma=0.95
    )
    turns = []

    def look(run, step):
        numbers, mask = run.batch.advantages, run.batch.mask.bool()
        each = zip(numbers, mask, strict=True)
        turns.append(max(len(row[m].unique()) for row, m in each))

    rl.train(method, config=config, task=WORLD, hooks=[look], progress=False)
    assert turns[0] >= 2  # turns of one answer differ
    with pytest.raises(UserError, match="needs state"):
        rl.train(method, config=config, progress=False)
