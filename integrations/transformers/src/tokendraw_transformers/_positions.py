"""Positions of the rows: the index in its sequence of the token whose hidden state made the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw import InvalidParameterError


def position_offset(
    model: Any, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
) -> Tensor:
    """[B] int64: what to add to ``input_ids.shape[1]`` at any step to get the positions of the rows.

    It is -1, less the left padding, plus what ``input_ids`` does not hold of the sequence: where it goes on from a
    cache, or from embeddings, the attention mask covers the whole.

    :raises InvalidParameterError: the attention mask is not [B, L], and so does not tell padding.
    """
    mask: Tensor | None = model_kwargs.get(
        "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    )
    rows, length = input_ids.shape
    if mask is None:  # nothing is padding; transformers drops a mask of ones and keeps its length here
        whole = (
            length if model.config.is_encoder_decoder else getattr(generation_config, "_mask_length", length)
        )
        return torch.full((rows,), whole - length - 1, dtype=torch.int64, device=input_ids.device)
    if mask.dim() != 2:
        raise InvalidParameterError(
            f"'attention_mask' needs shape [B, L], by which padding is told from tokens, found {list(mask.shape)}."
        )
    return mask.to(input_ids.device).ne(0).sum(-1) - length - 1
