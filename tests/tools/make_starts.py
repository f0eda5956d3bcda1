"""Train the shipped warm starts anew: `python -m tests.tools.make_starts [NAME …]`.

Writes `refimpl/starts/`. Every committed notebook starts from these policies, so they
are to be executed again afterwards. A name of `EVIDENCE`, as sums-10, is written to
`figures/data/starts/`: runs that are stored with another one's digest cannot be
repeated from it.
"""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from course.distillation.distil import MIXED
from experiments.grid import FIVE, TEN, TWENTY, WORLDS
from refimpl import WarmStart, warm_start
from refimpl.sft import IN_A_CLONE, RECORD, SHIPPED, digest
from refimpl.tasks import Calculator, rare_careful

STARTS = {
    "dense": WarmStart(),
    "rare-careful": WarmStart(world=rare_careful()),
    "moe": WarmStart(preset="tiny-moe"),
    "calculator": WarmStart(world=Calculator()),
}


SEEDS = {"sums": TWENTY, "moe": TEN, "rare": TEN, "sorting": FIVE}
EVIDENCE = {
    f"{world}-{seed}": WORLDS[world](seed=seed)
    for world, seeds in SEEDS.items()
    for seed in seeds
}
EVIDENCE["mixed"] = MIXED
"""Those of the stored runs, beside those of the package."""


def main(names: tuple[str, ...] = tuple(STARTS), /, *, fresh: bool = True) -> None:
    """Args:
    fresh: train them again though the cache holds them.
    """
    for name in names:
        settings = (STARTS | EVIDENCE)[name]
        model, _, losses = warm_start(settings, fresh=fresh)
        folder = (SHIPPED if name in STARTS else IN_A_CLONE) / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        weights = folder / "model.safetensors"
        start = {
            "settings": asdict(settings),
            "sha256": digest(weights),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "losses": [round(loss, 4) for loss in losses],
        }
        kind = type(settings.world)
        if not kind.__module__.startswith("refimpl."):
            start["world"] = f"{kind.__module__}.{kind.__qualname__}"
        (folder / RECORD).write_text(json.dumps(start) + "\n")
        size = weights.stat().st_size / 1e6
        print(f"{folder}  {size:.2f} MB  final loss {losses[-1]:.3f}")


if __name__ == "__main__":
    tyro.cli(main)
