"""Sample the stale rollout that the chapters draw: `python -m tests.tools.make_stale`.

Writes `figures/data/stale.safetensors`: one rollout from the shipped warm start, and
the log-ratios of all its tokens after each of K = 16 GRPO updates at the hard setting.
Another processor rounds differently, so the file is stored and not made again by a
test; figures that show it are to be drawn anew afterwards.
"""

import json
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file

from experiments import grid
from refimpl import collect, prepare, updates, warm_start

FILE = Path(__file__).parents[2] / "figures" / "data" / "stale.safetensors"
CONFIG = replace(grid.settings(grid.STALE["hard"]), seed=6)
GOOD, BAD = "9+2=11;11+9=20;#20", "9+2=11;11+9=20;#24"
"""Two answers to `9+2+9=` that differ in one character."""

PROMPTS = 8
"""The example's prompt, and the first ones beside it that have a gradient."""


def main() -> None:
    model, tokenizer, _ = warm_start()
    run = prepare("grpo", CONFIG, model, tokenizer)
    batch, _ = collect(run, 0)
    rollout, texts = batch.rollout, batch.rollout.texts(tokenizer)

    @torch.no_grad()
    def log_probs(*_):
        seen.append(run.read(run.model, rollout).logp)

    seen: list[torch.Tensor] = []
    log_probs()
    run.optimizer.register_step_post_hook(log_probs)
    updates(run, batch, 0)

    advantages = batch.advantages[:, 0]
    live = rollout.group[advantages != 0].unique().tolist()
    example = rollout.group[texts.index(BAD)].item()
    live.remove(example)
    groups = torch.tensor([example, *live[: PROMPTS - 1]])
    rows = torch.isin(rollout.group, groups).nonzero()[:, 0]
    kept, texts = rollout.rows(rows), [texts[i] for i in rows]
    z = (torch.stack(seen) - seen[0])[:, rows, : kept.mask.shape[1]]
    write(kept, texts, z, advantages[rows], tokenizer)


def write(rollout, texts, z, advantages, tokenizer) -> None:
    prompts = [
        tokenizer.decode(ids[:length])
        for ids, length in zip(rollout.ids, rollout.prompt_length)
    ]
    first = rollout.group.unique()
    tensors = {
        "z": z.half(),  # three digits; the file is half as large
        "mask": rollout.mask,
        "advantages": advantages,
        "rewards": (advantages > 0).float(),
        "group": torch.searchsorted(first, rollout.group),
    }
    metadata = {
        "what": "one rollout and its log-ratios after 0 to 16 GRPO updates",
        "algorithm": "grpo",
        "settings": json.dumps(asdict(CONFIG), default=str),
        "torch": version("torch"),
        "prompts": json.dumps(prompts),
        "texts": json.dumps(texts),
        "example": json.dumps([texts.index(GOOD), texts.index(BAD)]),
    }
    save_file({k: x.contiguous() for k, x in tensors.items()}, FILE, metadata)
    FILE.chmod(0o644)
    print(f"{FILE}  {FILE.stat().st_size / 1e3:.0f} kB  {len(texts)} responses")


if __name__ == "__main__":
    main()
