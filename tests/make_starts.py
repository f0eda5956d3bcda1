"""Train the shipped warm starts anew: `python -m tests.make_starts`.

Writes `refimpl/starts/`. Every committed notebook starts from these policies, so they
are to be executed again afterwards.
"""

import json
import shutil
from dataclasses import asdict

import torch
import transformers

from refimpl import WarmStart, warm_start
from refimpl.files import digest
from refimpl.starts import RECORD, SHIPPED
from refimpl.tasks import rare_careful

STARTS = {
    "dense": WarmStart(),
    "rare-careful": WarmStart(world=rare_careful()),
    "moe": WarmStart(preset="tiny-moe"),
}


def main() -> None:
    for name, settings in STARTS.items():
        model, _, losses = warm_start(settings, fresh=True)
        folder = SHIPPED / name
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
        (folder / RECORD).write_text(json.dumps(start) + "\n")
        size = weights.stat().st_size / 1e6
        print(f"{folder}  {size:.2f} MB  final loss {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
