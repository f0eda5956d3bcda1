"""Read cases.json. This file needs only torch, so you can copy it."""

import json

import torch

FLOAT = torch.float64


def load(path):
    """Yield (name, inputs, settings, loss, gradient) of every case."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if data.get("schema") != 1:
        raise ValueError(f"{path}: schema {data.get('schema')!r}, this reads schema 1")
    for case in data["cases"]:
        inputs = {k: torch.tensor(x, dtype=FLOAT) for k, x in case["inputs"].items()}
        inputs["group"] = inputs["group"].long()
        gradient = torch.tensor(case["gradient"], dtype=FLOAT)
        yield case["name"], inputs, case["settings"], case["loss"], gradient
