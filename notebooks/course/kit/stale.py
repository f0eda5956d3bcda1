"""A stale rollout, stored: every chapter shows the same tokens, on every machine.

One rollout of GRPO at the hard rate (`experiments.grid.STALE`), seed 6, from the
shipped warm start: 8 of its prompts with 8 responses each, all groups with a gradient.
K = 16 updates were taken on the whole rollout, and after each of them the log-probs of
all tokens were computed again. Another processor rounds differently, so the rollout is
stored in a file.

    rollout = stale.load()
    r = rollout.z[16].exp()          # (64, T): every token's ratio after 16 updates
    good_and_bad = stale.example()   # the two answers that the chapters show
"""

import json
from typing import NamedTuple

from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from course import DATA

FILE = DATA / "stale.safetensors"
TENSORS = ("z", "mask", "advantages", "rewards", "group")
END = "■"
"""How the token that ends a response is written."""


class Stale(NamedTuple):
    """B responses of at most T tokens, and how far each token drifted in K updates.

    `z[k]` is log π_θ − log π_old in nats after k updates, so `z[0]` is 0; it is 0
    outside `mask`, too. `advantages` are group-relative, (R − mean) / std, each over
    its group of 8; `rewards` are 0 or 1; `group` numbers the prompts from 0. `prompts`
    has the prompt of each response, and `tokens` its characters, `END` included.
    """

    z: Float[Tensor, "K+1 B T"]
    mask: Float[Tensor, "B T"]
    advantages: Float[Tensor, " B"]
    rewards: Float[Tensor, " B"]
    group: Int[Tensor, " B"]
    prompts: list[str]
    tokens: list[list[str]]

    def rows(self, index: list[int]) -> "Stale":
        """These responses, with the padding that they no longer need cut off."""
        longest = max(len(self.tokens[i]) for i in index)
        return Stale(
            self.z[:, index, :longest],
            self.mask[index, :longest],
            self.advantages[index],
            self.rewards[index],
            self.group[index],
            [self.prompts[i] for i in index],
            [self.tokens[i] for i in index],
        )


def load() -> Stale:
    """The whole file: 17 × 64 × T log-ratios."""
    return _read()[0]


def example(k: int = 16) -> Stale:
    """Two answers to one prompt, a good one (row 0) and a bad one (row 1).

    They differ in one character. `z` has shape (k + 1, 2, T): `z[-1]` is after k
    updates.
    """
    every, rows = _read()
    two = every.rows(rows)
    return two._replace(z=two.z[: k + 1])


def _read() -> tuple[Stale, list[int]]:
    with safe_open(FILE, "pt") as file:
        known = file.metadata()
        parts = {name: file.get_tensor(name) for name in TENSORS}
    parts["z"] = parts["z"].float()  # stored with three digits
    lengths = parts["mask"].sum(-1).long().tolist()
    texts = json.loads(known["texts"])
    tokens = [[*text, *END][:length] for text, length in zip(texts, lengths)]
    prompts = json.loads(known["prompts"])
    stale = Stale(**parts, prompts=prompts, tokens=tokens)
    return stale, json.loads(known["example"])
