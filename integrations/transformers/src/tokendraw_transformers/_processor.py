"""A drawing logits processor, for assisted generation, for models on disk and every other loop with an argmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.utils import logging

from tokendraw import InvalidParameterError, Sampler, SamplingParams, TokendrawError
from tokendraw.engines import format_error
from tokendraw_transformers._drawing import BatchDrawer


class DrawLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Draw each token through tokendraw and set all other scores to the least value.

    Assisted generation (``assistant_model``, ``prompt_lookup_num_tokens``) keeps the candidates that the model itself
    chooses. With a seed that choice depends on nothing but (seed, position, logits), so the text is token for token
    the unassisted one. The assistant is given the same processor, so it drafts with the same noise, and its drafts are
    what the model chooses wherever their distributions are alike::

        draw = DrawLogitsProcessor(tokendraw.SamplingParams(temperature=0.8, top_k=50, seed=7))
        model.generate(**inputs, assistant_model=small, do_sample=False, logits_processor=[draw])

    Pass ``do_sample=False``: the processor samples, and the loop takes what it chose. Processors that ``generate``
    makes from its own arguments run before it, warpers do not run at all.

    :param params: of every row, or one entry a row.
    :param sampler: name of a tokendraw plugin, or a loaded sampler; None: the best for the device of the scores.
    :param left_padding: tokens of padding at the left, of every row or one entry a row: they are no part of the
        sequence.
    :raises InvalidParameterError: a ValueError: a parameter is outside its range, or logprobs are asked for.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams],
        *,
        sampler: str | Sampler | None = None,
        left_padding: int | Sequence[int] = 0,
    ) -> None:
        entries = [params] if isinstance(params, SamplingParams) else params
        if not isinstance(entries, Sequence) or not all(
            isinstance(entry, SamplingParams) for entry in entries
        ):
            raise InvalidParameterError(
                "'params' needs a tokendraw.SamplingParams, or a list of them, one a row, found something else. Pass "
                "one of these."
            )
        if any(p.logprobs is not None for p in entries):
            raise InvalidParameterError(
                "'logprobs' needs an output to stand in, found a logits processor, which has none. Leave it out, or "
                "use custom_generate=tokendraw_transformers.generate."
            )
        self._is_shared = isinstance(params, SamplingParams)
        self._params = list(entries)
        self._sampler = sampler
        self._left_padding = _paddings(left_padding)
        self._rows = BatchDrawer(entries, sampler)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw a token in each row of ``scores`` [B, V]; return 0 there, and half the least finite number elsewhere."""
        count = scores.shape[0]
        if self._is_shared and len(self._params) != count:
            self._params = self._params[:1] * count
            self._rows = BatchDrawer(self._params, self._sampler)
        if len(self._params) != count:
            raise InvalidParameterError(
                f"'params' needs one entry a row, {count}, found {len(self._params)}. Pass as many, or one for all."
            )
        if len(self._left_padding) not in (1, count):
            raise InvalidParameterError(
                f"'left_padding' needs one entry a row, {count}, found {len(self._left_padding)}. Pass as many, or one "
                "for all."
            )
        padding = torch.tensor(self._left_padding, dtype=torch.int64, device=scores.device)
        token_ids = self._rows.draw(scores, (input_ids.shape[1] - 1 - padding).expand(count)).token_ids
        # finite, since prompt lookup takes -inf for a token that may never be drawn, and drops its candidate
        rest = torch.full_like(scores, torch.finfo(scores.dtype).min / 2)
        return rest.scatter_(-1, token_ids[:, None], 0.0)


def _paddings(left_padding: Any) -> list[int]:
    widths = left_padding.tolist() if isinstance(left_padding, Tensor) else left_padding
    entries = widths if isinstance(widths, Sequence) else [widths]
    if not all(isinstance(width, int) and not isinstance(width, bool) and width >= 0 for width in entries):
        raise InvalidParameterError(
            f"'left_padding' needs an integer >= 0, or a list of them, one a row, found {left_padding!r}. Pass one of "
            "these."
        )
    return list(entries)


class ModelOnDisk:
    """A causal language model and its tokenizer, as ``save_pretrained`` wrote them.

    :param folder: holds both; nothing is downloaded.
    :raises TokendrawError: transformers cannot load the folder.
    """

    def __init__(self, folder: str, sampler: Sampler) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # takes a second or two

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
