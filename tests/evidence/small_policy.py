"""Histories of a small softmax policy that is really trained, with a fault in them.

No curve is drawn: a policy linear in features chooses one of 16 answers to a prompt,
GRPO's advantages move it, and the columns are what the run gives.
"""

import math
import zlib

import numpy as np

PROMPTS, ANSWERS, GROUP, BATCH, HELD_OUT = 120, 16, 8, 16, 200


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def history(fault: str | None, rows: int, part: float, seed: int):
    """Return the columns, and the row from which the fault acts."""
    dice = np.random.default_rng(zlib.crc32(f"{fault} {rows} {part} {seed}".encode()))
    many, at = PROMPTS + HELD_OUT, int(part * rows)
    quality = dice.normal(size=(many, ANSWERS))
    length = dice.uniform(20, 400, (many, ANSWERS))
    correct = quality >= np.sort(quality)[:, [-2]]  # two answers are right
    features = dice.normal(size=(many, ANSWERS, 10))
    features[..., 0] = quality + dice.normal(0, 0.5, quality.shape)
    features[..., 1] = (length - 200) / 100
    theta, own = 0.3 * np.eye(10)[0], np.zeros((many, ANSWERS))
    rate = {"still": 0.0, "certain": 600 / rows}.get(fault, 10 / rows)
    start, names = theta, "reward accuracy entropy kl grad_norm frac_reward_zero_std "
    names += "reward_std completions/mean_length completions/clipped_ratio"
    columns: dict[str, list] = {name: [] for name in names.split()}
    for row in range(rows):
        acts, batch = row >= at, dice.choice(PROMPTS, BATCH)
        x, p = features[batch], softmax(features[batch] @ theta + own[batch])
        p0 = softmax(x @ start)
        chosen = np.stack([dice.choice(ANSWERS, GROUP, p=one) for one in p])
        if fault == "identical" and acts:
            chosen[:] = chosen[:, :1]
        tokens = np.take_along_axis(length[batch], chosen, 1)
        limit = 150 if fault == "cut off" and acts else 380
        reward = np.take_along_axis(correct[batch], chosen, 1) * (tokens <= limit) * 1.0
        if acts and fault in ("hacked", "broken verifier", "constant"):
            reward = {
                "hacked": tokens / 400,
                "broken verifier": 0 * tokens,
                "constant": 0 * tokens + (batch % 2)[:, None],
            }[fault]
        spread = reward.std(1, keepdims=True)
        advantage = (reward - reward.mean(1, keepdims=True)) / (spread + 1e-4)
        advantage *= -1 if fault == "wrong sign" else 1
        score = np.take_along_axis(x, chosen[..., None], 1)
        score -= (p[..., None] * x).sum(1, keepdims=True)
        gradient = (advantage[..., None] * score).mean((0, 1))
        step = rate * gradient
        if fault == "spike" and row == at:
            step, gradient = dice.normal(0, 9, 10), 400 * gradient
        theta = theta + step
        np.add.at(own, (batch[:, None], chosen), 0.3 * rate * advantage / GROUP)
        gone = fault == "no number" and acts
        if gone:
            theta, own = 0 * theta, 0 * own
        right = (softmax(features[PROMPTS:] @ theta) * correct[PROMPTS:]).sum(1)
        log_p, log_p0 = (np.log(np.maximum(one, 1e-300)) for one in (p, p0))
        values = (
            reward.mean(),
            (dice.random(HELD_OUT) < right).mean() if row % (rows // 40) == 0 else None,
            math.nan if gone else -(p * log_p).sum(-1).mean(),
            (p * (log_p - log_p0)).sum(-1).mean() / 10,
            math.nan if gone else np.linalg.norm(gradient),
            (spread == 0).mean(),
            spread.mean(),
            np.minimum(tokens, limit).mean(),
            (tokens > limit).mean(),
        )
        for cells, value in zip(columns.values(), values):
            cells.append(value if value is None else float(value))
    return columns, at


FALLS = {"reward rises, then falls", "reward falls", "held-out accuracy falls"}
DEAD = "most groups are dead"
FAULTS: dict[str, tuple[set[str], set[str]]] = {
    "certain": ({"entropy collapses", DEAD}, FALLS),
    "identical": ({DEAD}, FALLS),
    "constant": ({DEAD}, FALLS),
    "broken verifier": ({DEAD, "reward rises, then falls"}, set()),
    "hacked": ({"reward rises, accuracy does not"}, {"many answers are cut off"}),
    "spike": ({"gradient norm spikes, or NaN"}, FALLS | {DEAD, "entropy collapses"}),
    "no number": ({"gradient norm spikes, or NaN"}, FALLS),
    "cut off": ({"many answers are cut off"}, FALLS | {"length shrinks", DEAD}),
    "wrong sign": ({"reward falls"}, {DEAD, "held-out accuracy falls"}),
    "still": ({"reward stays where it began"}, set()),
}
"""Faults, the rows of which one names it, and rows that may follow, but not precede."""
FROM_THE_START = "certain", "wrong sign", "still"
