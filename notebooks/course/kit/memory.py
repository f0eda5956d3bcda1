"""Estimate the memory of a training run from a model's configuration.

    memory(AutoConfig.from_pretrained(folder), group_size=8, r=16)["peak"]

The estimate counts the tensors of a run in their real sizes, and adds a share for the
allocator. A layer stores only the activations that `backward` needs. These are, in
numbers per token:

    4 f            gate, SiLU(gate), up, their product        f: intermediate_size
    2 · 3 d        two norms: input, input / rms, output      d: hidden_size
    2 q + 2 k      queries, attention's output, keys, values  q, k: heads × head_dim

This holds for the Llama family (Qwen, Mistral, SmolLM); other models are close to it.
"""

from transformers import PreTrainedConfig

from refimpl.pretrained.logprobs import SLICE
from refimpl.pretrained.sharing import PAYS

LOGIT_COPIES = 5
"""Logits, divided by the temperature, log-softmax, its exp, a product or a gradient."""
BESIDES = 1 / 8
"""The allocator's reserve and the buffers of libraries, as a share of the tensors. This
is an estimate: processes on one machine took up to 24 % more than the tensors."""


def memory(
    config: PreTrainedConfig,
    *,
    prompts: int = 8,
    group_size: int = 8,
    prompt_length: int = 46,
    max_new_tokens: int = 12,
    micro_batch_size: int = 16,
    r: int | None = None,
    gradient_checkpointing: bool = False,
    share_prompts: bool = True,
    beta: float = 0.0,
) -> dict[str, int]:
    """Return the bytes of each kind of tensor; `peak` is their sum.

    `r` is the rank of a LoRA on all linear layers, None is full fine-tuning; all
    numbers are float32. The memory of sampling is added to that of an update, because
    an allocator seldom frees memory in between. The rest of the process (Python and
    torch, about 0.4 GB) is not included.
    """
    d, f, heads = (
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
    )
    head = getattr(config, "head_dim", None) or d // heads
    q = heads * head
    k = (getattr(config, "num_key_value_heads", None) or heads) * head
    layers, vocabulary = config.num_hidden_layers, config.vocab_size
    linear = [(d, q), (d, k), (d, k), (q, d), (d, f), (d, f), (f, d)]
    embeddings = vocabulary * d * (1 if config.tie_word_embeddings else 2)
    in_heads = config.model_type.startswith("qwen3")  # norms of queries and keys
    norms = 2 * d + (2 * head if in_heads else 0)
    weights = embeddings + d + layers * (norms + sum(a * b for a, b in linear))
    trained = weights
    if r is not None:
        trained = layers * sum(r * (a + b) for a, b in linear)

    length = prompt_length + max_new_tokens
    rows, row = micro_batch_size, length
    packed = prompt_length + group_size * (max_new_tokens - 1)
    share_prompts &= packed <= PAYS * group_size * length
    if share_prompts:  # one packed row per group; the last tokens predict nothing
        rows = max(1, micro_batch_size // group_size)
        row = packed
    norm = 3 if r is None else 2  # a frozen norm weight needs no input for its gradient
    # With our mask, keys and values are repeated for all query heads.
    attention = 4 * q + row if share_prompts else 2 * q + 2 * k
    kept = 4 * f + 2 * norm * d + attention
    if in_heads:
        kept += (norm - 1) * (q + k)
    if r is not None:
        kept += r * len(linear)
    tokens = rows * row
    activations = tokens * (layers * kept + norm * d)  # and the last norm
    if gradient_checkpointing:
        activations = tokens * (layers * d + kept + norm * d)
    scored = min(micro_batch_size * max_new_tokens, max(1, SLICE // vocabulary))
    sampled = prompts * group_size
    parts = {
        "weights, as given": weights + (trained if r is not None else 0),
        "weights, the copy that is trained": trained,
        "gradients": trained,
        "Adam": 2 * trained,
        "reference": trained if beta > 0 else 0,
        "activations": activations,
        "logits": LOGIT_COPIES * scored * vocabulary,
        "KV cache": sampled * length * layers * 2 * k,
    }
    held = {name: 4 * n for name, n in parts.items()}
    held["allocator, buffers"] = round(BESIDES * sum(held.values()))
    return {**held, "peak": sum(held.values())}
