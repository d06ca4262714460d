"""Distinguishes tokens from padding: finds the positions of a row's draws, and its prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw import InvalidParameterError


def position_offset(
    model: Any, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
) -> Tensor:
    """Return offsets [B] int64: positions of the rows at a step, less ``input_ids.shape[1]`` at the step.

    It is -1, less the left padding, plus what ``input_ids`` does not hold of the sequence: where it goes on from a
    cache, or from embeddings, the attention mask covers the whole.

    :raises InvalidParameterError: the attention mask is not [B, L], so padding is unknown.
    """
    mask = _mask(model, model_kwargs)
    rows, length = input_ids.shape
    if mask is None:  # nothing is padding; transformers drops a mask of ones and keeps its length here
        total_length = (
            length if model.config.is_encoder_decoder else getattr(generation_config, "_mask_length", length)
        )
        return torch.full((rows,), total_length - length - 1, dtype=torch.int64, device=input_ids.device)
    if mask.dim() != 2:
        raise InvalidParameterError(
            f"'attention_mask' needs shape [B, L], by which padding is told from tokens, found {list(mask.shape)}."
        )
    return mask.to(input_ids.device).ne(0).sum(-1) - length - 1


def prompts(model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> list[list[int]]:
    """Return the token ids of each row's prompt, without padding. Waits for the device.

    :param input_ids: [B, L]; [B, 0] where the model is given embeddings.
    """
    mask, rows = _mask(model, model_kwargs), input_ids.tolist()
    if mask is None or mask.shape != input_ids.shape:
        return rows
    return [
        [token for token, is_token in zip(*row, strict=True) if is_token]
        for row in zip(rows, mask.tolist(), strict=True)
    ]


def _mask(model: Any, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of the decoding model; transformers drops a mask of ones."""
    return model_kwargs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
