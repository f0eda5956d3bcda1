"""The curves come out of the real losses; the closed forms are the check."""

import csv
from dataclasses import replace

import pytest
import torch

from refimpl import curves
from refimpl.algorithms import ALGORITHMS, Objective, from_gate

RATIOS = torch.tensor([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 5.0]).double()


def expected_ppo(sign: int, low: float = 0.2, high: float = 0.2):
    """Objective and coefficient by hand: the latter is r where the gradient lives."""
    r = RATIOS
    if sign > 0:
        return r.clamp(max=1 + high), torch.where(r <= 1 + high, r, 0.0)
    return -r.clamp(min=1 - low), torch.where(r >= 1 - low, r, 0.0)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize("sign", [1, -1])
def test_clip_curves_match_the_closed_form(name, sign):
    found = curves.curve(name, sign, RATIOS)
    objective, coefficient = expected_ppo(sign)
    torch.testing.assert_close(found.objective, objective, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.coefficient, coefficient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_move_apart(sign):
    found = curves.curve("ppo", sign, RATIOS, epsilon_low=0.6, epsilon_high=1.5)
    objective, coefficient = expected_ppo(sign, 0.6, 1.5)
    torch.testing.assert_close(found.objective, objective, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.coefficient, coefficient, rtol=0, atol=1e-12)


def test_epsilon_alone_moves_both_bounds():
    found = curves.curve("dapo", 1, RATIOS, epsilon=0.2)
    assert torch.equal(found.coefficient, curves.curve("grpo", 1, RATIOS).coefficient)


def test_the_coefficient_does_not_depend_on_the_size_of_the_advantage():
    one, three = (curves.curve("ppo", a, RATIOS) for a in (1.0, 3.0))
    torch.testing.assert_close(one.coefficient, three.coefficient)
    torch.testing.assert_close(3 * one.objective, three.objective)


def test_dual_clip_stops_the_gradient_beyond_c():
    found = curves.curve("ppo", -1, RATIOS, dual_clip=3.0)
    assert found.objective[-1] == -3 and found.coefficient[-1] == 0
    assert found.coefficient[-2] == 2


def test_reinforce_has_coefficient_one_and_with_the_ratio_r():
    torch.testing.assert_close(
        curves.curve("reinforce", 1, RATIOS).coefficient, torch.ones_like(RATIOS)
    )
    corrected = curves.curve("reinforce", 1, RATIOS, correct=True)
    torch.testing.assert_close(corrected.coefficient, RATIOS)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_method_has_coefficient_one_on_policy(name, sign):
    """At r = 1 all gradients coincide: Â ∇log π."""
    found = curves.curve(name, sign, torch.ones(1).double())
    assert found.coefficient.item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_curve_is_the_loss_that_trains_and_its_slope(name, sign):
    """−loss of one-token responses of weight 1, and ∂/∂log π over the advantage."""
    algorithm, a = ALGORITHMS[name], sign * 2.0
    found = curves.curve(name, a, RATIOS)
    for i, r in enumerate(RATIOS):
        logp, one = r.log().view(1, 1).requires_grad_(), torch.ones(1, 1).double()
        batch = (logp, torch.zeros_like(logp), a * one, one, one)
        objective = -algorithm.policy_loss(*batch).loss
        (slope,) = torch.autograd.grad(objective, logp)
        assert found.objective[i].item() == pytest.approx(objective.item(), abs=1e-12)
        assert found.coefficient[i].item() == pytest.approx(slope.item() / a, abs=1e-12)


def test_a_curve_follows_an_objective_of_ones_own():
    """Of a registered method with another objective, or of a gate: no closed form."""

    def cubed(t):
        return Objective(t.z.exp() ** 3 * t.advantages)

    found = curves.curve(replace(ALGORITHMS["grpo"], objective=cubed), 1.0, RATIOS)
    torch.testing.assert_close(found.objective, RATIOS**3)
    torch.testing.assert_close(found.coefficient, 3 * RATIOS**3)
    half = curves.curve(from_gate(lambda r, a: 0.5 * torch.ones_like(r)), 1.0, RATIOS)
    torch.testing.assert_close(half.coefficient, RATIOS / 2)


def test_a_curve_takes_hyperparameters_and_nothing_else():
    with pytest.raises(TypeError, match="ppo has no setting 'router_shift'"):
        curves.curve("ppo", 1.0, RATIOS, router_shift=torch.ones(9, 1))
    with pytest.raises(ValueError, match="dual_clip must be a number > 1 or None"):
        curves.curve("ppo", 1.0, RATIOS, dual_clip=0.5)
    with pytest.raises(ValueError, match="unknown algorithm 'pop', did you mean 'ppo'"):
        curves.curve("pop")


def test_zero_advantage_is_refused():
    with pytest.raises(ValueError, match="must not be 0"):
        curves.curve("ppo", 0.0)


def test_csv_holds_the_curve(tmp_path):
    found = curves.curve("ppo", 1, RATIOS)
    curves.to_csv(tmp_path / "c.csv", {"up": found})
    with open(tmp_path / "c.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["coefficient"]) for row in rows] == pytest.approx(
        found.coefficient.tolist()
    )
    assert {row["name"] for row in rows} == {"up"}
