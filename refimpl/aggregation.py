"""The four ways to turn per-token losses into one number.

| name | weight of token t of response i | used by |
|---|---|---|
| `seq_mean_token_mean` | 1 / (B · |o_i|) | GRPO, GSPO, GMPO, RSPO, SAPO |
| `group_token_mean` | 1 / Σ_{j in group} |o_j|, mean over groups | DAPO, CISPO papers |
| `token_mean` | 1 / Σ_{j in batch} |o_j| | DAPO, CISPO in frameworks |
| `constant` | 1 / (B · max_length) | Dr. GRPO in code |

B counts every row, an empty one too: a response whose mask is all 0 adds 0 and gives
the others no more weight (the papers' 1/G; TRL does the same, verl leaves it out).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

AGGREGATIONS = ("seq_mean_token_mean", "group_token_mean", "token_mean", "constant")


def aggregate(
    per_token: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    how: str,
    *,
    group: Int[Tensor, " B"] | None = None,
    max_length: int | None = None,
    batch_tokens: float | None = None,
    batch_sequences: int | None = None,
) -> Float[Tensor, ""]:
    """Σ_{i,t} weight_{i,t} · per_token_{i,t}, with the weights of the table above.

    **Gradient accumulation.** Give each micro-batch the counts of the *whole* batch,
    `batch_tokens` (Σ mask) and `batch_sequences` (B). The micro-batches' losses then
    sum to the full batch's loss; without them, a mean of means weighs tokens by the
    accident of which micro-batch they fell into. For `group_token_mean` each
    micro-batch must hold whole groups, and groups count by their number of responses.

    Raises `ValueError` on an unknown `how`, on `group_token_mean` without `group`,
    and on `constant` without a positive `max_length` at least as long as every row.
    """
    mask = mask.to(torch.promote_types(per_token.dtype, torch.float32))
    tokens = mask.sum(-1, keepdim=True)
    sequences = mask.shape[0] if batch_sequences is None else batch_sequences
    if how == "seq_mean_token_mean":
        weight = 1 / (sequences * tokens.clamp(min=1))
    elif how == "token_mean":
        total = mask.sum() if batch_tokens is None else batch_tokens
        weight = 1 / torch.as_tensor(total, dtype=mask.dtype).clamp(min=1)
    elif how == "group_token_mean":
        if group is None:
            raise ValueError("aggregation 'group_token_mean' needs group=, (B,) ids")
        if group.shape != mask.shape[:1]:
            raise ValueError(
                f"group must have shape (B,) with B = {len(mask)}, got "
                f"{tuple(group.shape)}"
            )
        same = (group[:, None] == group[None, :]).to(mask.dtype)
        share = same.sum(-1, keepdim=True) / sequences  # 1/number of groups, if equal
        weight = share / (same @ tokens).clamp(min=1)
    elif how == "constant":
        longest = int(tokens.max())
        if max_length is None or max_length < max(longest, 1):
            raise ValueError(
                "aggregation 'constant' divides by max_length=, which must be at "
                f"least the longest response ({longest} tokens), got {max_length}"
            )
        weight = 1 / (sequences * max_length)
    else:
        raise ValueError(f"unknown aggregation {how!r}; one of {AGGREGATIONS}")
    return (torch.where(mask.bool(), per_token, 0.0) * weight).sum()
