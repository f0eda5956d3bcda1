"""top_k and top_p: what may be drawn, and what its log-probs are."""

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from refimpl import sample
from refimpl.sampling import Sampling, log_distribution
from tests.worlds import PROMPTS, TOKENIZER, llama

FOUR = [0.5, 0.25, 0.15, 0.1]

BY_HAND = {
    "top_k 2": ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
    "top_k 1": ({"top_k": 1}, [1, 0, 0, 0]),
    "more than there are": ({"top_k": 9}, FOUR),
    "top_p 0.7": ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
    "top_p 0.8: 0.75 is too little": ({"top_p": 0.8}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
    "top_p 0.01: one is always left": ({"top_p": 0.01}, [1, 0, 0, 0]),
    # Of the three that top_k leaves two hold 0.83; of the four, 0.75.
    "top_p after top_k": ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),
    # p² / Σ p²: 0.725, 0.181, …; of them one holds enough.
    "top_p after the temperature": ({"top_p": 0.7, "temperature": 0.5}, [1, 0, 0, 0]),
    "none": ({"top_p": 1.0}, FOUR),
}


@pytest.mark.parametrize(("keep", "wanted"), BY_HAND.values(), ids=BY_HAND)
def test_four_tokens_by_hand(keep, wanted):
    """Whatever their order, in two rows at once; those that tie with the k-th stay."""
    logits = torch.tensor(FOUR).log() + 3.0
    order = torch.tensor([[0, 1, 2, 3], [2, 0, 3, 1]])
    prob = log_distribution(logits[order], Sampling(**keep)).exp()
    assert torch.allclose(prob, torch.tensor(wanted, dtype=prob.dtype)[order])
    half = log_distribution(torch.zeros(4), Sampling(top_p=0.5))  # two hold just enough
    assert half.isfinite().sum() == 2
    tied = log_distribution(torch.tensor([1.0, 2.0, 1.0, 0.0]), Sampling(top_k=2))
    assert tied.isfinite().tolist() == [True, True, True, False]


KEEP = {"top_k": 3}, {"top_p": 0.9}, {"top_p": 0.3}, {"top_k": 7, "top_p": 0.8}
BY_KEEP = pytest.mark.parametrize("keep", KEEP, ids=str)


@BY_KEEP
def test_what_is_drawn_and_its_log_prob_and_entropy(keep):
    """From a plain pass and the processors of transformers; float64."""
    model = llama().double()  # it has clear preferences
    settings = {"group_size": 12, "max_new_tokens": 20, "temperature": 1.3, "seed": 3}
    rollout = sample(model, TOKENIZER, PROMPTS, **settings, **keep)
    rows, real = torch.arange(len(rollout))[:, None], rollout.mask.bool()
    assert real.sum() > 300
    with torch.no_grad():
        logits = model(rollout.ids, use_cache=False).logits
    policy = (logits[rows, rollout.positions - 1][real] / 1.3).log_softmax(-1)
    left = policy
    if "top_k" in keep:
        left = TopKLogitsWarper(keep["top_k"])(None, left)
    if "top_p" in keep:
        left = TopPLogitsWarper(keep["top_p"])(None, left)
    left = left.log_softmax(-1)
    logp = left.gather(1, rollout.tokens[real][:, None])[:, 0]
    assert (logp - rollout.logp[real]).abs().max() < 1e-9  # so none was removed
    entropy = torch.distributions.Categorical(left.exp()).entropy()
    assert (entropy - rollout.entropy[real]).abs().max() < 1e-6
    # Something was removed, and would have been drawn.
    removed = policy.exp()[left.isneginf()].sum() / len(policy)
    assert removed > 0.02
    assert rollout.entropy[real].mean() < 0.98 * -(policy.exp() * policy).sum(-1).mean()
