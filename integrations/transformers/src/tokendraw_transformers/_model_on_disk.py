"""Draws the text of ``tokendraw generate --model`` from a Hugging Face model on disk."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tokendraw import Sampler, SamplingParams, TokendrawError
from tokendraw.engines import format_error
from tokendraw_transformers._processor import DrawLogitsProcessor


class ModelOnDisk:
    """A causal language model and its tokenizer, as ``save_pretrained`` wrote them.

    :param folder: holds both; nothing is downloaded.
    :raises TokendrawError: transformers cannot load the folder.
    """

    def __init__(self, folder: str, sampler: Sampler) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
        except (ImportError, OSError, ValueError) as error:
            raise TokendrawError(
                f"'--model' needs a folder that transformers can load, found {folder!r}: "
                f"{format_error(error).rstrip('.')}. "
                "Give one that save_pretrained wrote, with its tokenizer."
            ) from error
        self._model = model.to(sampler.device).eval()
        self._sampler = sampler

    def write(self, prompt: str, params: SamplingParams, count: int) -> tuple[list[int], str]:
        """Continue ``prompt``; return token ids and text, without the prompt.

        :param count: most tokens of the text; it is shorter where the model ends it.
        """
        ids = self._encode(prompt)
        start = ids.shape[1]
        prompt_length = len(self._decode(ids[0].tolist()))
        (row,) = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,  # the processor draws
            logits_processor=[DrawLogitsProcessor([params], sampler=self._sampler)],
        ).tolist()
        row = self._without_padding(row)
        # Prompt and drawn tokens are decoded together, since some tokenizers drop a leading space.
        return row[start:], self._decode(row)[prompt_length:]

    def _encode(self, prompt: str) -> torch.Tensor:
        ids: torch.Tensor = self._tokenizer(prompt, return_tensors="pt").input_ids.to(self._sampler.device)
        if ids.shape[1]:
            return ids.to(torch.int64)
        first = self._model.generation_config.bos_token_id
        if first is None:
            raise TokendrawError("'PROMPT' needs a token, found none, and the model has none to begin with.")
        return torch.tensor([[first]], device=self._sampler.device, dtype=torch.int64)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _without_padding(self, row: list[int]) -> list[int]:
        """Remove the end token of texts if padding uses it, too."""
        config = self._model.generation_config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        padding = ends[0] if config.pad_token_id is None else config.pad_token_id
        end = len(row)
        while ends != [None] and end > 1 and row[end - 1] == padding:
            end -= 1
        return row[:end]
