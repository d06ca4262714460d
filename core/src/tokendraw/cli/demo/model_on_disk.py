"""Draws text from a Hugging Face model on disk, through the adapter for transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import format_error
from tokendraw.errors.install_commands import how_to_install
from tokendraw.parameters.params import SamplingParams
from tokendraw.providers.sampler import Sampler


class ModelOnDisk:
    """A causal language model and its tokenizer, as ``save_pretrained`` wrote them.

    :param folder: holds both; nothing is downloaded.
    :raises TokendrawError: the adapter is not installed, or transformers cannot load the folder.
    """

    def __init__(self, folder: str, drawer: Sampler) -> None:
        try:
            from tokendraw_transformers import DrawLogitsProcessor
        except ModuleNotFoundError as error:
            raise TokendrawError(
                "'--model' needs tokendraw-transformers, found it not installed; run "
                f"{how_to_install('tokendraw-transformers')}."
            ) from error
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

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
        self._model = model.to(drawer.device).eval()
        self._drawer = drawer
        self._processor = DrawLogitsProcessor

    def write(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        count: int,
        show: Callable[[str], None] | None = None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        :param count: most tokens of a text; it is shorter where the model ends it.
        :param show: called with each piece of a single text as it is drawn.
        """
        ids = self._encoded(prompt).expand(len(settings), -1)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,  # the processor draws
            logits_processor=[self._processor(settings, sampler=self._drawer)],
            streamer=None if show is None else self._streamer(show),
        )
        start = ids.shape[1]
        return [(row[start:], self._text(row, start)) for row in map(self._ended, out.tolist())]

    def _encoded(self, prompt: str) -> torch.Tensor:
        ids: torch.Tensor = self._tokenizer(prompt, return_tensors="pt").input_ids.to(self._drawer.device)
        if ids.shape[1]:
            return ids.to(torch.int64)
        first = self._model.generation_config.bos_token_id
        if first is None:
            raise TokendrawError("'PROMPT' needs a token, found none, and the model has none to begin with.")
        return torch.tensor([[first]], device=self._drawer.device)

    def _ended(self, row: list[int]) -> list[int]:
        """Remove the padding behind the shorter texts of a batch."""
        config = self._model.generation_config
        if config.eos_token_id is None:
            return row
        padding = config.pad_token_id
        if padding is None:
            padding = config.eos_token_id if isinstance(config.eos_token_id, int) else config.eos_token_id[0]
        end = len(row)
        while end > 1 and row[end - 1] == padding:
            end -= 1
        return row[:end]

    def _text(self, row: list[int], start: int) -> str:
        """Decode prompt and drawn tokens together, and cut off the prompt: some tokenizers drop a leading space."""
        whole: str = self._tokenizer.decode(row, skip_special_tokens=True)
        return whole[len(self._tokenizer.decode(row[:start], skip_special_tokens=True)) :]

    def _streamer(self, show: Callable[[str], None]) -> Any:
        from transformers.generation.streamers import BaseStreamer

        tokenizer = self._tokenizer

        class Shown(BaseStreamer):  # type: ignore[misc]
            """Streams the text of each token; the first input is the prompt."""

            def __init__(self) -> None:
                self._ids: list[int] = []
                self._shown = 0

            def put(self, value: torch.Tensor) -> None:
                """Accept the prompt [1, L] first, then tokens [1]."""
                is_prompt = not self._ids
                self._ids += value.flatten().tolist()
                text = tokenizer.decode(self._ids, skip_special_tokens=True)
                if not is_prompt:
                    if text.endswith("\N{REPLACEMENT CHARACTER}"):  # the next token completes the character
                        return
                    show(text[self._shown :])
                self._shown = len(text)

            def end(self) -> None:
                """Show the rest of the text."""
                show(tokenizer.decode(self._ids, skip_special_tokens=True)[self._shown :])

        return Shown()
