"""The smallest model of each family, with random weights large enough to have opinions.

Windows of 6 tokens are shorter than the responses.
"""

import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.worlds import EOS, PAD, TOKENIZER

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "initializer_range": 0.3,
    "init_std": 0.3,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
HEADS, WINDOW = {"head_dim": 8}, {"sliding_window": 6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
SPARSE = {**EXPERTS, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8}
LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
ROUTED |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
ROUTED |= {"n_group": 1, "topk_group": 1}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
BART = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}
BART |= {"decoder_ffn_dim": 64, "encoder_layers": 1}
CHUNKS = {"num_local_experts": 4, "attention_chunk_size": 6, **HEADS}


SUPPORTED = {
    "GPT-2": ("GPT2Config", GPT),
    "Falcon": ("FalconConfig", {"alibi": True}),
    "Llama": ("LlamaConfig", {}),
    "Llama 4": ("Llama4TextConfig", CHUNKS),
    "Mistral": ("MistralConfig", WINDOW),
    "Mixtral": ("MixtralConfig", {**LOCAL_EXPERTS, **WINDOW}),
    "Qwen2": ("Qwen2Config", {}),
    "Qwen3": ("Qwen3Config", HEADS),
    "Qwen3-MoE": ("Qwen3MoeConfig", {**SPARSE, **HEADS}),
    "Gemma 2": ("Gemma2Config", {**HEADS, **WINDOW}),
    "Phi": ("PhiConfig", {}),
    "OLMoE": ("OlmoeConfig", EXPERTS),
    "GPT-OSS": ("GptOssConfig", {**LOCAL_EXPERTS, **HEADS, **WINDOW}),
    "DeepSeek-V3": ("DeepseekV3Config", {**LATENT, **ROUTED}),
    "BERT as a decoder": ("BertConfig", {"is_decoder": True}),
    "Whisper's decoder": ("WhisperConfig", BART),  # it ignores `logits_to_keep`
}

NO_CACHE_ROWS = {  # whose state cannot be copied for a group, or selected
    "Mamba": ("MambaConfig", {"state_size": 8}),
    # its layers have both: keys that are copied, and a state
    "Falcon-H1": ("FalconH1Config", {"mamba_d_ssm": 64, "mamba_n_groups": 1, **MAMBA}),
    "GPT-1": ("OpenAIGPTConfig", GPT),  # it has no cache
}

if hasattr(transformers, "DeepseekV4Config"):
    # It keeps tokens that do not yet fill a block of four in a buffer of its own, which
    # no copy reaches. Without a remainder it would look well.
    BY_FOURS = {"layer_types": ["compressed_sparse_attention"] * 2, "q_lora_rank": 8}
    NO_CACHE_ROWS["DeepSeek-V4"] = "DeepseekV4Config", {**BY_FOURS, **ROUTED, **HEADS}

OTHER_NUMBERS = {  # which run, and give a token another probability
    "RWKV": ("RwkvConfig", {"attention_hidden_size": 32}),
    "BART's decoder": ("BartConfig", BART),
    "RoBERTa as a decoder": ("RobertaConfig", {"is_decoder": True}),
    "BERT, which sees ahead": ("BertConfig", {}),
}


def build(kind: str, settings: dict):
    """A small model of this kind, told only what its config knows."""
    config = getattr(transformers, kind)
    known = vars(config()) | getattr(config, "attribute_map", {})
    sizes = {name: value for name, value in SIZES.items() if name in known}
    settings = {"vocab_size": len(TOKENIZER), **sizes, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config(**settings)).eval()
