"""Train the shipped warm starts anew: `python -m tests.make_starts`.

Writes `refimpl/starts/`. Every committed notebook starts from these policies, so they
are to be executed again afterwards.
"""

import hashlib
import json
import shutil
from dataclasses import asdict

import torch
import transformers

from refimpl.sft import SHIPPED, WarmStart, warm_start
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
        weights = (folder / "model.safetensors").read_bytes()
        start = {
            "settings": asdict(settings),
            "sha256": hashlib.sha256(weights).hexdigest(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "losses": [round(loss, 4) for loss in losses],
        }
        (folder / "start.json").write_text(json.dumps(start) + "\n")
        print(f"{folder}  {len(weights) / 1e6:.2f} MB  final loss {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
