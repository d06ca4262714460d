"""Draws the text of ``tokendraw generate --model`` from a Hugging Face model on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
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

    def write(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        count: int,
        show: Callable[[str], None] | None = None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        :param count: most tokens of a text; it is shorter where the model ends it.
        :param show: called with the words of a single text as they are drawn.
        """
        ids = self._encode(prompt).expand(len(settings), -1)
        start = ids.shape[1]
        prompt_length = len(self._decode(ids[0].tolist()))
        rows = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,  # the processor draws
            logits_processor=[DrawLogitsProcessor(settings, sampler=self._sampler)],
            streamer=None if show is None else _streamer(self._tokenizer, prompt_length, show),
        ).tolist()
        rows = [self._without_padding(row) for row in rows]
        # Prompt and drawn tokens are decoded together, since some tokenizers drop a leading space.
        return [(row[start:], self._decode(row)[prompt_length:]) for row in rows]

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
        """Remove the padding behind the shorter texts of a batch."""
        config = self._model.generation_config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        padding = ends[0] if config.pad_token_id is None else config.pad_token_id
        end = len(row)
        while ends != [None] and end > 1 and row[end - 1] == padding:
            end -= 1
        return row[:end]


def _streamer(tokenizer: Any, prompt_length: int, show: Callable[[str], None]) -> Any:
    """Make a streamer that shows the words behind the prompt, which comes first."""

    class WordStreamer(TextStreamer):  # type: ignore[misc]
        hidden = prompt_length

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            hidden = min(self.hidden, len(text))
            self.hidden -= hidden
            if text[hidden:]:
                show(text[hidden:])

    return WordStreamer(tokenizer, skip_special_tokens=True)
