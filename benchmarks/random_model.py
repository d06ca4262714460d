"""Writes a model of random weights for runs of an engine: a Qwen2 in bfloat16, 0.9 billion weights in six layers."""

from __future__ import annotations

import json
from pathlib import Path

VOCAB_SIZE, HIDDEN_SIZE, LAYERS, HEADS, KV_HEADS, MLP_SIZE = 151936, 2048, 6, 16, 8, 6144


def write_model(folder: Path, layers: int = LAYERS) -> None:
    """Write a folder with the model, whose logits have a standard deviation of 3."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": MLP_SIZE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_window_layers": layers,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def normal(rows: int, columns: int, deviation: float) -> torch.Tensor:
        return (torch.randn(rows, columns, device=device) * deviation).to(torch.bfloat16).cpu()

    kv_size, ones = HIDDEN_SIZE * KV_HEADS // HEADS, torch.ones(HIDDEN_SIZE, dtype=torch.bfloat16)
    weights = {
        "model.embed_tokens.weight": normal(VOCAB_SIZE, HIDDEN_SIZE, 1.0),
        "model.norm.weight": ones,
        "lm_head.weight": normal(VOCAB_SIZE, HIDDEN_SIZE, 3.0 * HIDDEN_SIZE**-0.5),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{name}.weight"] = ones.clone()
        for name, size in (("q", HIDDEN_SIZE), ("k", kv_size), ("v", kv_size)):
            weights[f"{at}.self_attn.{name}_proj.weight"] = normal(size, HIDDEN_SIZE, HIDDEN_SIZE**-0.5)
            weights[f"{at}.self_attn.{name}_proj.bias"] = torch.zeros(size, dtype=torch.bfloat16)
        weights[f"{at}.self_attn.o_proj.weight"] = normal(HIDDEN_SIZE, HIDDEN_SIZE, HIDDEN_SIZE**-0.5)
        for name in ("gate", "up"):
            weights[f"{at}.mlp.{name}_proj.weight"] = normal(MLP_SIZE, HIDDEN_SIZE, HIDDEN_SIZE**-0.5)
        weights[f"{at}.mlp.down_proj.weight"] = normal(HIDDEN_SIZE, MLP_SIZE, MLP_SIZE**-0.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
