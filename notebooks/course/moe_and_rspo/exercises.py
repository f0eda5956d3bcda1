"""Exercises of chapter 09: γ, RSPO's loss, replayed experts, the clip's anchor."""

from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl import History, TrainConfig, collect, prepare, updates


def router_shift(new, old, floor=0.7):
    """exp of minus the mean absolute change of log-probability, or the floor."""
    drift = (new - old).abs().mean((-1, -2))  # over layers and experts
    return (-drift).exp().clamp(min=floor).detach()  # a constant


def rspo_loss(logp, old_logp, advantages, mask, gamma, bound=0.4):
    """GMPO's loss with γ r in place of r."""
    A = advantages[:, None]
    z = logp - old_logp + gamma.log()
    z = torch.where(A > 0, z.clamp(max=bound), z.clamp(min=-bound))
    s = ((z * mask).sum(1) / mask.sum(1)).exp()
    return -(s * advantages).mean()


_GAMMA = 0.7 + 0.3 * torch.arange(20.0).mul(7).remainder(4).div(3).view(4, 5).double()


def _routers() -> tuple:
    """Log-probs of two tokens: two layers, and two experts in each."""
    old = torch.tensor([[[0.5, 0.3], [0.4, 0.2]], [[0.6, 0.1], [0.5, 0.3]]]).double()
    new = torch.tensor([[[0.45, 0.36], [0.42, 0.15]], [[0.2, 0.02], [0.7, 0.1]]])
    return new.double().log(), old.log()


TYPED = (
    Exercise(
        "09.router_shift",
        solution=router_shift,
        cases=(_routers(), (*_routers(), 0.1)),
        gradient=True,
        mistakes={
            "γ is a constant: detach it, or the router is rewarded for moving.": {
                ".detach()": ""
            },
            "You forgot the floor.": {".clamp(min=floor)": ""},
            "The floor bounds γ from below: clamp(min=floor).": {"min=": "max="},
            "Average over layers and experts. A sum grows with both.": {
                ".mean((-1, -2))": ".sum((-1, -2))"
            },
            "Average over the experts *and* over the layers.": {
                ".mean((-1, -2))": ".mean(-1).sum(-1)"
            },
            "Without the absolute value changes cancel, and γ can exceed 1.": {
                "(new - old).abs()": "(old - new)"
            },
            "The arguments are log-probs already. You compare probabilities.": {
                "(new - old)": "(new.exp() - old.exp())"
            },
            "Every token has its own γ. You average over the tokens as well.": {
                ".mean((-1, -2))": ".mean()"
            },
        },
    ),
    Exercise(
        "09.rspo_loss",
        solution=rspo_loss,
        cases=((*batch(), _GAMMA), (*batch(), _GAMMA, 0.2)),
        gradient=True,
        mistakes={
            **usual(rspo_loss),
            "You forgot γ: that is GMPO.": {" + gamma.log()": ""},
            "You multiply by γ after the clip: that is the other placement.": {
                " + gamma.log()": "",
                "((z * mask)": "(((z + gamma.log()) * mask)",
            },
            "You divide by γ: drift would then make the ratio larger.": {
                "+ gamma": "- gamma"
            },
            "γ makes every push smaller, including that of a bad answer. Do not "
            "invert it with the sign of Â.": {"+ gamma": "+ A.sign() * gamma"},
            "Add the logarithm of γ: log(γ r) = log γ + log r.": {
                "gamma.log()": "gamma"
            },
            "You multiply the log-ratio by γ. It is the ratio that shrinks.": {
                "logp - old_logp + gamma.log()": "(logp - old_logp) * gamma"
            },
            "The clip is one-sided, and looks at the sign of Â.": {
                "max=bound": "-bound, bound",
                "min=-bound": "-bound, bound",
            },
            "Nothing is clipped here: GMPO's ±0.4 comes after γ.": {
                "torch.where(A > 0, z.clamp(max=bound), z.clamp(min=-bound))": "z"
            },
            "That is the arithmetic mean of the ratios.": {
                "(z * mask)": "(z.exp() * mask)",
                "mask.sum(1)).exp()": "mask.sum(1))",
            },
            "Padding counts in your mean. Multiply by the mask.": {"(z * mask)": "z"},
        },
    ),
)


def replayed_weights(logits: torch.Tensor, experts: list[int]) -> torch.Tensor:
    """9.3: softmax of the live logits over the replayed experts only."""
    return logits[experts].softmax(-1)


_LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.0])
_CHOICES = ((_LOGITS, [0, 3]), (_LOGITS, [1, 2]), (-_LOGITS, [3, 0]))


def anchored_at(anchor: str, model, tokenizer, rollouts: int = 4) -> History:
    """GRPO with K = 1 and a noisy sampler; the ratio is over π_old or μ."""
    config = TrainConfig(
        epochs=1, minibatches=1, allow_on_policy=True, router_noise=0.5
    )
    run, history = prepare("grpo", config, model, tokenizer), History("grpo")
    for step in range(rollouts):
        batch, metrics = collect(run, step)
        if anchor == "μ":
            batch = replace(batch, old_logp=batch.rollout.logp)
        history.rows.append({**metrics, **updates(run, batch, step)})
    return history


EXERCISES = (
    Exercise(
        "9.1",
        solution=2,
        decimals=0,
        why="s is multiplied by 0.7^(1/20) = 0.982, for every token alike.",
        mistakes={
            "That is GRPO with γ: there the drifted token alone is weakened.": 30,
            "1.5 is the arithmetic mean's answer, 30 / 20. RSPO's mean is "
            "geometric.": 1.5,
            "The push falls by a positive number of percent: leave out the minus.": -2,
            "That is the share. The question asks for percent.": 0.02,
            "It falls, though not by much: s is multiplied by 0.7^(1/20).": 0,
            "0.7^(1/20) = 98 % is what is left; the question asks by how much it "
            "falls.": 98,
        },
    ),
    Exercise(
        "9.2",
        solution=("first", "both"),
        why="R2 gives π_θ the experts of π_old, so those two no longer differ in "
        "their experts, while μ keeps its own. R3 gives μ's experts to both "
        "passes of the trainer.",
        parts=("R2", "R3"),
        choices=(("first", "second", "both", "neither"),) * 2,
        mistakes={
            "R3 hands the sampler's experts to both passes of the trainer, so π_θ and "
            "π_old visit the same ones as well.": ("first", "second"),
            "R2 replays the choice of the training engine. The sampler may have chosen "
            "others.": ("both", "both"),
            "R2 acts on the updates: it gives π_θ the experts of π_old. It changes "
            "nothing before the first update.": ("second", "both"),
            "It is the other way round: R3 knows the sampler's experts, R2 does not.": (
                "both",
                "first",
            ),
        },
    ),
    Exercise(
        "9.3",
        solution=replayed_weights,
        cases=_CHOICES,
        gradient=True,
        mistakes={
            "Normalise over the replayed experts only; yours do not sum to 1.": {
                "logits[experts].softmax(-1)": "logits.softmax(-1)[experts]"
            },
            "You took the router's own top experts. Replay visits the given ones.": {
                "logits[experts]": "logits.topk(len(experts)).values"
            },
            "The weights are not equal shares: they come from the live logits.": (
                lambda logits, experts: [1 / len(experts)] * len(experts)
            ),
            "The numbers are right, but no gradient reaches `logits`. Replay freezes "
            "the *choice* of experts; the router keeps its gradient. Return a tensor "
            "that was not detached.": {".softmax(-1)": ".detach().softmax(-1)"},
            "Those are the logarithms of the weights. Take the softmax itself.": {
                ".softmax": ".log_softmax"
            },
            "Those are the logits. A softmax turns them into weights.": {
                ".softmax(-1)": ""
            },
            "You softmax the logits twice: over all experts, and again over the "
            "replayed ones.": {"logits[experts]": "logits.softmax(-1)[experts]"},
            "Those are the weights in ascending order of the experts. Keep the order "
            "of `experts`.": {"logits[experts]": "logits[sorted(experts)]"},
        },
    ),
    Exercise(
        "9.4",
        solution=0.7,
        decimals=1,
        why="e^(−d/2) = 0.7 at d = −2 log 0.7 = 0.713.",
        mistakes={
            "That is k = 1: here the mean halves the drift of the one expert.": 0.4,
            "That is k = 8: here two experts share the mean.": 2.9,
            "1 − 0.7 is where a straight line would be; γ is an exponential.": 0.3,
            "1.4 would be right for four experts.": 1.4,
        },
    ),
    Exercise(
        "9.5",
        solution="6b",
        why="The sampler's log-probs are not π_old's. The rollout has to be scored "
        "again: old_logp = log_probs(policy, batch).detach(), without the noise. Then "
        "r is 1 at K = 1; the sampler is corrected by a weight, if at all. (A clip "
        "that is meant to see a late sampler, with two policies, is chapter 15's.)",
        lines=10,
        mistakes={
            "That is the line, but for another reason: the log-probs belong to the "
            "tokens that were drawn, and their order is right.": "6a",
            "That is the line, but for another reason: a constant belongs there.": "6c",
            "That is the line, but for another reason: line 9 computes the clip.": "6d",
            "Line 3 is right: the noise stands for the other engine and is "
            "intended.": "3b",
            "Line 7 is right: π_θ is scored by the training engine, without "
            "noise.": "7b",
            "Line 8 is right: log π_θ − log π_old. But which policy is old_logp "
            "of?": "8b",
            "Line 9 is right: PPO's clip. With K = 1 it should find nothing to clip, "
            "so its ratio is wrong before it gets there.": "9d",
        },
    ),
)
