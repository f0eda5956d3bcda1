"""Which causal language models can be sampled from: all that agree with themselves.

Each is the smallest of its family, with random weights large enough to have opinions.
Windows of 6 tokens are shorter than the responses.
"""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, T5Config
from transformers.cache_utils import DynamicLayer

from refimpl.models import make_critic
from refimpl.rollout import sample
from refimpl.scoring import check_sampling, log_probs, values
from tests.worlds import (
    EOS,
    PAD,
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    gpt2,
    random_model,
    small_run,
    warm_model,
)

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
HEADS = {"head_dim": 8}
WINDOW = {"sliding_window": 6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED_EXPERT = {**EXPERTS, "shared_expert_intermediate_size": 32}
LATENT = {  # DeepSeek's attention
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
BART = {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "encoder_layers": 1,
}

SUPPORTED = {
    "GPT-2": ("GPT2Config", GPT),
    "GPT-Neo": (
        "GPTNeoConfig",
        {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    ),
    "GPT-J": ("GPTJConfig", {**GPT, "rotary_dim": 4}),
    "CodeGen": ("CodeGenConfig", {**GPT, "rotary_dim": 4}),
    "GPT-BigCode": ("GPTBigCodeConfig", GPT),
    "GPT-NeoX": ("GPTNeoXConfig", {}),
    "OPT": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "Bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
    "MPT": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4}),
    "Falcon": ("FalconConfig", {}),
    "Falcon with ALiBi": ("FalconConfig", {"alibi": True}),
    "Llama": ("LlamaConfig", {}),
    "Llama 4": (
        "Llama4TextConfig",
        {"num_local_experts": 4, "attention_chunk_size": 6, **HEADS},
    ),
    "Mistral": ("MistralConfig", WINDOW),
    "Mixtral": ("MixtralConfig", {**LOCAL_EXPERTS, **WINDOW}),
    "Qwen2": ("Qwen2Config", {}),
    "Qwen2 with a window": (
        "Qwen2Config",
        {"use_sliding_window": True, "max_window_layers": 0, **WINDOW},
    ),
    "Qwen2-MoE": ("Qwen2MoeConfig", SHARED_EXPERT),
    "Qwen3": ("Qwen3Config", HEADS),
    "Qwen3-MoE": ("Qwen3MoeConfig", {**EXPERTS, **HEADS}),
    "Gemma": ("GemmaConfig", HEADS),
    "Gemma 2": ("Gemma2Config", {**HEADS, **WINDOW}),
    "Gemma 3": (
        "Gemma3TextConfig",
        {"layer_types": ["sliding_attention", "full_attention"], **HEADS, **WINDOW},
    ),
    "Phi": ("PhiConfig", {}),
    "Phi-3": ("Phi3Config", WINDOW),
    "OLMo": ("OlmoConfig", {}),
    "OLMo 2": ("Olmo2Config", {}),
    "OLMo 3": ("Olmo3Config", WINDOW),
    "OLMoE": ("OlmoeConfig", {"num_experts": 4, "num_experts_per_tok": 2}),
    "GPT-OSS": ("GptOssConfig", {**LOCAL_EXPERTS, **HEADS, **WINDOW}),
    "StableLM": ("StableLmConfig", {}),
    "Cohere": ("CohereConfig", {"logit_scale": 1.0}),
    "Cohere 2": ("Cohere2Config", {"logit_scale": 1.0, **HEADS, **WINDOW}),
    "Granite": ("GraniteConfig", {}),
    "Granite MoE": ("GraniteMoeConfig", {"num_local_experts": 4}),
    "StarCoder 2": ("Starcoder2Config", WINDOW),
    "DeepSeek-V2": (
        "DeepseekV2Config",
        {**LATENT, **ROUTED, **HEADS, "topk_method": "greedy"},
    ),
    "DeepSeek-V3": ("DeepseekV3Config", {**LATENT, **ROUTED}),
    "SmolLM 3": ("SmolLM3Config", {}),
    "GLM-4": ("Glm4Config", HEADS),
    "Nemotron": ("NemotronConfig", {}),
    "LFM2 of attention alone": ("Lfm2Config", {"layer_types": ["full_attention"] * 2}),
    "BERT as a decoder": ("BertConfig", {"is_decoder": True}),
    "Whisper's decoder": ("WhisperConfig", BART),  # it ignores `logits_to_keep`
}

NO_CACHE_ROWS = {  # whose state cannot be copied for a group, or selected
    "Mamba": ("MambaConfig", {"state_size": 8}),
    "Mamba 2": (
        "Mamba2Config",
        {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 2},
    ),
    "Falcon-Mamba": ("FalconMambaConfig", {"state_size": 8}),
    "Qwen3-Next": (
        "Qwen3NextConfig",
        {
            "layer_types": ["linear_attention", "full_attention"],
            **SHARED_EXPERT,
            **HEADS,
            **LINEAR,
        },
    ),
    "Qwen3-Next, linear alone": (
        "Qwen3NextConfig",
        {"layer_types": ["linear_attention"] * 2, **SHARED_EXPERT, **HEADS, **LINEAR},
    ),
    "Jamba": (
        "JambaConfig",
        {
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    "Bamba": ("BambaConfig", {"attn_layer_indices": [1], **MAMBA}),
    "Granite hybrid": (
        "GraniteMoeHybridConfig",
        {"layer_types": ["mamba", "attention"], "num_local_experts": 4, **MAMBA},
    ),
    "LFM2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "LFM2, convolutions alone": ("Lfm2Config", {"layer_types": ["conv", "conv"]}),
    "Falcon-H1": (  # its layers have both: keys that are copied, and a state
        "FalconH1Config",
        {"mamba_d_ssm": 64, "mamba_n_groups": 1, **MAMBA},
    ),
    "RecurrentGemma": (
        "RecurrentGemmaConfig",
        {
            "lru_width": 32,
            "attention_window_size": 6,
            "block_types": ["recurrent", "attention"],
            **HEADS,
        },
    ),
    "MiniMax": (
        "MiniMaxConfig",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            **HEADS,
        },
    ),
    "xLSTM": ("xLSTMConfig", {"num_heads": 4}),
    "GPT-1": ("OpenAIGPTConfig", GPT),  # it has no cache
    "XLM": ("XLMConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
}

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


def each(families: dict):
    return pytest.mark.parametrize(
        ("kind", "settings"), families.values(), ids=list(families)
    )


# Supported


@each(SUPPORTED)
def test_the_sampler_and_teacher_forcing_agree(kind, settings):
    """Prompts of three lengths, rows that end early; and a gradient comes back."""
    model = build(kind, settings)
    check_sampling(model, TOKENIZER)
    rollout = sample(
        model, TOKENIZER, PROMPTS, group_size=8, max_new_tokens=20, temperature=2.0
    )
    lengths = rollout.length.tolist()
    assert len(set(lengths)) > 1
    assert max(lengths) > 12
    written = rollout.logp[rollout.mask.bool()]
    assert written.std() > 0.3
    logp, entropy = log_probs(model, rollout, 2.0)
    assert (logp - rollout.logp).abs().max() < ROUNDING
    assert (entropy - rollout.entropy).abs().max() < ROUNDING
    logp.sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().max() > 0


def test_the_check_passes_the_policies_of_the_course():
    check_sampling(warm_model(), TOKENIZER)
    check_sampling(random_model().double(), TOKENIZER)
    check_sampling(random_model().bfloat16(), TOKENIZER)


def test_the_check_leaves_no_trace():
    """Neither on the global generator nor on the model; dropout takes no part."""
    model = gpt2().train()
    before = torch.get_rng_state()
    check_sampling(model, TOKENIZER)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_a_model_without_opinions_passes():
    """All logits are equal: a spread of 0 is no reason to refuse."""
    model = random_model()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    check_sampling(model, TOKENIZER)


# Refused, in one sentence


def refusal(model) -> str:
    with pytest.raises(ValueError, match=f"^{type(model).__name__} ") as caught:
        check_sampling(model, TOKENIZER)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 320
    return said


@each(NO_CACHE_ROWS)
def test_a_model_whose_cache_has_no_rows_to_select_is_refused(kind, settings):
    said = refusal(build(kind, settings))
    assert "cannot be sampled from here: the sampler needs a causal" in said


@each(OTHER_NUMBERS)
def test_a_model_that_gives_other_numbers_with_a_cache_is_refused(kind, settings):
    assert "gives a sampled token other log-probs" in refusal(build(kind, settings))


def test_a_cache_that_is_compressed_by_fours_is_refused():
    """DeepSeek-V4 keeps the tokens that do not yet fill a block in a buffer of its
    own, which no copy reaches. Without a remainder it would look well."""
    config = getattr(transformers, "DeepseekV4Config", None)
    if config is None:
        pytest.skip("this transformers has no DeepSeek-V4")
    assert "cannot be sampled" in refusal(
        build(
            "DeepseekV4Config",
            {
                "layer_types": ["compressed_sparse_attention"] * 2,
                "q_lora_rank": 8,
                **ROUTED,
                **HEADS,
            },
        )
    )


def test_an_encoder_with_a_decoder_is_refused():
    config = T5Config(
        vocab_size=len(TOKENIZER), d_model=32, d_ff=64, num_layers=2, num_heads=4
    )
    refusal(transformers.T5ForConditionalGeneration(config))


def test_a_model_that_is_not_finite_is_refused():
    model = random_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    assert "nan" in refusal(model)


def test_an_error_of_many_lines_becomes_one_sentence(monkeypatch):
    model = random_model()

    def forward(*_, **__):
        raise ImportError("\nNo kernels.\n  Install them:\n" + "and wait " * 500)

    monkeypatch.setattr(model, "forward", forward)
    assert "(ImportError: No kernels. Install them: and wait" in refusal(model)


@pytest.mark.parametrize("name", ["batch_repeat_interleave", "batch_select_indices"])
@pytest.mark.parametrize("broken", ["missing", "does nothing"])
def test_the_check_copies_and_selects_rows(name, broken, monkeypatch):
    if broken == "missing":
        monkeypatch.delattr(DynamicLayer, name)
    else:
        monkeypatch.setattr(DynamicLayer, name, lambda self, *_: None)
    refusal(random_model())


def test_rows_that_are_mixed_up_are_found(monkeypatch):
    """The shapes are right, the neighbour's keys are not."""
    select = DynamicCache.batch_select_indices
    monkeypatch.setattr(
        DynamicCache,
        "batch_select_indices",
        lambda self, keep: select(self, keep.flip(0)),
    )
    assert "other log-probs" in refusal(random_model())


@pytest.mark.parametrize("family", ["Mamba", "LFM2", "BART's decoder"])
def test_training_refuses_it_before_any_work(family, monkeypatch):
    monkeypatch.setattr("refimpl.collect.sample", None)
    kind, settings = {**NO_CACHE_ROWS, **OTHER_NUMBERS}[family]
    model = build(kind, settings)
    with pytest.raises(ValueError, match=f"^{type(model).__name__} "):
        small_run(model=model)


# Critics


@each({n: SUPPORTED[n] for n in ("GPT-NeoX", "Falcon", "Mistral", "Gemma 2", "Phi")})
def test_a_critic_of_this_family_starts_at_zero(kind, settings):
    model = build(kind, settings)
    rollout = sample(model, TOKENIZER, PROMPTS, max_new_tokens=6)
    found = values(make_critic(model), rollout)
    assert (found == 0).all()
    assert found.requires_grad


@each({n: SUPPORTED[n] for n in ("OLMo", "OPT", "Cohere")})
def test_a_family_without_a_critic_is_refused_in_a_sentence(kind, settings):
    """`transformers` would print the names of a hundred classes."""
    policy = build(kind, settings)
    message = f"^no critic can be made of {type(policy).__name__}: .*without a critic"
    with pytest.raises(ValueError, match=message) as caught:
        make_critic(policy)
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=message):
        small_run("ppo", model=policy)
