"""Measure which habits a policy shows, and how often each of them is right."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import sample
from refimpl.tasks import Arithmetic
from refimpl.tasks.arithmetic import HABITS, habit


class Survey(NamedTuple):
    """Shares and accuracies by habit; the accuracy of an absent habit is NaN."""

    shares: dict[str, float]
    accuracies: dict[str, float]
    right: float  # the share of all answers that is right
    answers: list[tuple[str, str, bool]]  # prompt, answer, whether it is right


def survey(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    temperature: float = 1.0,
    seed: int = 0,
) -> Survey:
    """One sampled answer to each problem of `rows`, sorted by habit."""
    prompts = [row["prompt"] for row in rows]
    rollout = sample(model, tokenizer, prompts, temperature=temperature, seed=seed)
    texts = rollout.texts(tokenizer)
    paid = Arithmetic().reward(None, texts, answer=[row["answer"] for row in rows])
    return sorted_by_habit(prompts, texts, [p > 0 for p in paid])


def sorted_by_habit(prompts: list[str], texts: list[str], right: list[bool]) -> Survey:
    shares, accuracies = {}, {}
    for name in HABITS:
        of_habit = [ok for text, ok in zip(texts, right) if habit(text) == name]
        shares[name] = len(of_habit) / len(texts)
        accuracies[name] = sum(of_habit) / len(of_habit) if of_habit else float("nan")
    answers = list(zip(prompts, texts, right))
    return Survey(shares, accuracies, sum(right) / len(right), answers)


def by_temperature(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    temperatures: list[float],
    problems: int = 128,
) -> dict[int, dict[float, Survey]]:
    """`surveys[terms][temperature]`: a survey for sums of 2, 3, 4 and 5 terms."""
    problems_of = {}
    for terms in (2, 3, 4, 5):
        world = replace(Arithmetic(), min_terms=terms, max_terms=terms)
        problems_of[terms] = world.held_out(problems)
    every = [row for rows in problems_of.values() for row in rows]
    at = {t: survey(model, tokenizer, every, t).answers for t in temperatures}
    parts = dict(zip(problems_of, range(0, len(every), problems)))
    return {
        terms: {
            t: sorted_by_habit(*map(list, zip(*answers[i : i + problems])))
            for t, answers in at.items()
        }
        for terms, i in parts.items()
    }


def more_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    steps: int = 30,
    batch: int = 32,
    learning_rate: float = 3e-4,
    pay_padding: bool = False,
) -> list[float]:
    """Train `model` on demonstrations of the usual mix; the loss of every step.

    With `pay_padding` the loss includes the padding, which is a bug (0.4).
    """
    world = Arithmetic()
    batches = (world.demonstrations(batch, seed=1000 + step) for step in range(steps))
    return imitate(model, tokenizer, batches, learning_rate, pay_padding)


def imitate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[list[dict]],
    learning_rate: float,
    pay_padding: bool = False,
) -> list[float]:
    """Train `model` to write the `completion` of each row; the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    model.train()
    for rows in batches:
        texts = [row["prompt"] + row["completion"] + "<eos>" for row in rows]
        ids = tokenizer(
            texts, padding=True, padding_side="right", return_tensors="pt"
        ).input_ids
        prompt = torch.tensor([[len(row["prompt"])] for row in rows])
        unpaid = torch.arange(ids.shape[1]) < prompt
        if not pay_padding:
            unpaid |= ids == tokenizer.pad_token_id
        labels = ids.masked_fill(unpaid, -100)
        loss = model(ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses
