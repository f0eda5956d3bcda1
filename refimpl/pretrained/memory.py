"""The memory of a training run, computed from a model's configuration.

    print(table(memory(AutoConfig.from_pretrained(folder), group_size=8, r=16)))

Tensors are counted, of the sizes that the code makes, and an estimate is added of what
an allocator keeps besides. Of a layer's activations only what `backward` needs is
kept, per token, in numbers:

    4 f            gate, SiLU(gate), up, their product        f: intermediate_size
    2 · 3 d        two norms: input, input / rms, output      d: hidden_size
    2 q + 2 k      queries, attention's output, keys, values  q, k: heads × head_dim

So it is for the family of Llama (Qwen, Mistral, SmolLM); others are near it.
"""

from collections.abc import Mapping

from transformers import PreTrainedConfig

from refimpl.pretrained.logprobs import SLICE
from refimpl.pretrained.sharing import PAYS
from refimpl.validation import Count, UserError, Weight, guarded

LOGIT_COPIES = 5
"""logits, / temperature, log-softmax, its exp, their product or a gradient"""
BESIDES = 1 / 8
"""Memory of allocator and libraries, as a share of the tensors: an estimate.
Processes on one machine took up to 24 % more than the tensors counted here."""


@guarded
def memory(
    config: PreTrainedConfig,
    *,
    prompts: Count = 8,
    group_size: Count = 8,
    prompt_length: Count = 46,
    max_new_tokens: Count = 12,
    micro_batch_size: Count = 16,
    r: Count | None = None,
    gradient_checkpointing: bool = False,
    share_prompts: bool = True,
    beta: Weight = 0.0,
    each: Count = 4,
) -> dict[str, int]:
    """Bytes by what they hold; `peak` is their sum.

    `r` is a LoRA's on all linear layers, None full fine-tuning; `each` the bytes of a
    number. What sampling needs is added to what an update needs, because an allocator
    seldom gives memory back in between. The rest of the process (Python, torch: some
    0.4 GB) is not in it.
    """
    size = _sizes(config)
    d, f, q, k = size["hidden"], size["wide"], size["queries"], size["keys"]
    layers, vocabulary = config.num_hidden_layers, config.vocab_size
    linear = [(d, q), (d, k), (d, k), (q, d), (d, f), (d, f), (f, d)]
    embeddings = vocabulary * d * (1 if config.tie_word_embeddings else 2)
    in_heads = config.model_type.startswith("qwen3")  # which has norms there too
    norms = 2 * d + (2 * size["head"] if in_heads else 0)
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
    norm = 3 if r is None else 2  # a frozen weight does not ask for what it multiplies
    attention = 4 * q + row if share_prompts else 2 * q + 2 * k  # with our mask
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
    held = {name: n * each for name, n in parts.items()}
    held["allocator, buffers"] = round(BESIDES * sum(held.values()))
    return {**held, "peak": sum(held.values())}


def _sizes(config: PreTrainedConfig) -> dict[str, int]:
    """Widths of a layer; `UserError` if the configuration does not name them."""
    try:
        heads, d = config.num_attention_heads, config.hidden_size
        head = getattr(config, "head_dim", None) or d // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * head
        wide = config.intermediate_size
    except AttributeError as error:
        raise UserError(
            f"{type(config).__name__} is not of Llama's family: {error}"
        ) from error
    sizes = {"hidden": d, "wide": wide, "queries": heads * head, "keys": keys}
    return {**sizes, "head": head}


def table(held: Mapping[str, int]) -> str:
    """A line per part, in GB (10⁹ bytes); parts of less than 0.5 MB show as 0.000."""
    width = max(map(len, held))
    return "\n".join(f"{name:<{width}}  {n / 1e9:7.3f}" for name, n in held.items())
