"""Tiny models with random weights, made in memory, and how the tests generate with them."""

import copy
import functools

import tokenizers
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import tokendraw_transformers

V = 1000
STEPS = 6
PAD = 0
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


@functools.cache
def model_of(family, vocab_size=V, layers=2):
    """A model of a family; the same weights in every test."""
    torch.manual_seed(layers)
    if family == "t5":
        config = T5Config(
            vocab_size=vocab_size,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=layers,
            num_heads=4,
            decoder_start_token_id=PAD,
            initializer_factor=3.0,
        )
        model = T5ForConditionalGeneration(config)
    else:
        config_class, model_class = {
            "llama": (LlamaConfig, LlamaForCausalLM),
            "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        }[family]
        model = model_class(config_class(vocab_size=vocab_size, num_hidden_layers=layers, **SHAPE))
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = None
    return model.eval()


def constant_model(row):
    """A model whose logits are this row [V], whatever comes before."""
    model = copy.deepcopy(model_of("llama", len(row)))
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(1.0)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()[:, 0] = torch.from_numpy(row)
    return model


def prompts(rows, length=5, vocab_size=V):
    """[rows, length] token ids without padding."""
    return torch.randint(1, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows))


def draw(model, input_ids, **arguments):
    """Generate through tokendraw, sampling unless the arguments say otherwise."""
    settings = {"max_new_tokens": STEPS, "do_sample": True, **arguments}
    return model.generate(input_ids, custom_generate=tokendraw_transformers.generate, **settings)


@functools.cache
def byte_tokenizer():
    """Ids 1 to 256 are bytes, those above are words of their own; 0 is padding."""
    every_byte = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<pad>", *every_byte, *(f"Ġw{token}" for token in range(257, V))]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left")
