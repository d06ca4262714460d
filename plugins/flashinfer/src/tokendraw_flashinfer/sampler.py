"""The call: bring parameters into range, make clean probabilities, and run the first sequence for the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw import Need, PluginError, SamplerOutput, SamplingMetadata, SamplingParams, philox
from tokendraw.probabilities import MAX_ELEMENTS, Filters, relative, sample_in_parts
from tokendraw_flashinfer.draws import DrawInputs, batch_kind, draw, import_functions
from tokendraw_flashinfer.kernel_sequences import SAMPLE, SEQUENCES, SOFTMAX, KernelSequence, Kind, available
from tokendraw_flashinfer.signatures import EntryPoints, Step

Softmax: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]

_log = logging.getLogger("tokendraw")
_WARMUP_SHAPE = (2, 8)
"""Rows and vocabulary of the batch that building draws."""


class FlashInferSampler:
    """FlashInfer's sampling kernels. Made by ``tokendraw.load_sampler("flashinfer")``.

    :param device: where it draws.
    :param need: with ``tie_rule="either"`` it may draw by sequences that keep exactly k of tied tokens.
    :param sequences: in place of the table, for measurements.
    :param max_elements: logits in one launch; more rows are drawn in parts.
    :raises PluginError: the installed FlashInfer cannot draw even rows without filters.
    """

    def __init__(
        self,
        device: torch.device,
        need: Need,
        sequences: Mapping[Kind, Sequence[KernelSequence]] = SEQUENCES,
        *,
        max_elements: int = MAX_ELEMENTS,
        steps: Iterable[Step] = (),
    ) -> None:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self._sequences = available(sequences, EntryPoints.installed(), need.tie_rule, capability)
        if "none" not in self._sequences:
            raise PluginError(
                "rows without filters need softmax and sampling_from_probs, found no such entry points"
            )
        all_sequences = list(
            dict.fromkeys(
                sequence for kind_sequences in self._sequences.values() for sequence in kind_sequences
            )
        )
        self._functions = import_functions(
            [*SAMPLE, *(step for sequence in all_sequences for step in sequence.steps), *steps]
        )
        self._offset = torch.zeros(1, dtype=torch.int64, device=device)
        self._max_elements = max_elements
        dtype = getattr(torch, need.dtype or "float32")
        self._fused_softmax = _fused_softmax(torch.zeros(_WARMUP_SHAPE, dtype=dtype, device=device))
        self._warm_up(device, all_sequences)

    def sequence(
        self, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool = False
    ) -> KernelSequence:
        """Return the kernel sequence for a batch.

        :param capturing: whether it becomes part of a CUDA graph.
        """
        return self._select(Filters.of(metadata, vocab_size), metadata, vocab_size, capturing=capturing)

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.SamplerBackend`.

        :param draft: makes no difference, since each launch has noise of its own.
        """
        vocab_size = logits.shape[1]
        filters = Filters.of(metadata, vocab_size)
        largest = metadata.facts.max_top_k or vocab_size

        def draw_part(part: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
            sequence = self._select(filters, metadata, vocab_size, capturing=_is_capturing(part.device))
            probs, valid = self._probabilities(part, filters.temperature)
            tokens, drawn_valid = draw(sequence, self._batch(probs, filters, largest))
            return tokens.long(), valid if drawn_valid is None else valid & drawn_valid

        return sample_in_parts(logits, filters, draw_part, max_elements=self._max_elements)

    def _select(
        self, filters: Filters, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool
    ) -> KernelSequence:
        facts = metadata.facts
        return next(
            sequence
            for sequence in self._sequences[batch_kind(filters)]
            if sequence.serves(
                facts.max_top_k, all_top_k=facts.all_top_k, vocab_size=vocab_size, capturing=capturing
            )
        )

    def _probabilities(self, logits: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return clean probabilities [rows, V] at the temperatures of the rows, and the valid rows."""
        if self._fused_softmax is not None:
            return self._fused_softmax(logits, temperature)
        y, valid = relative(logits)
        return self._functions[SOFTMAX.entry_point](y, temperature=temperature), valid

    def _batch(self, probs: Tensor, filters: Filters, largest_top_k: int) -> DrawInputs:
        return DrawInputs(
            functions=self._functions,
            probs=probs,
            filters=filters,
            largest_top_k=largest_top_k,
            **self._noise(),
        )

    def _noise(self) -> dict[str, Tensor]:
        """Return a new seed and offset for a launch."""
        return {"seed": philox.fresh_seeds(1, self._offset.device), "offset": self._offset}

    @torch.no_grad()
    def _warm_up(self, device: torch.device, sequences: Sequence[KernelSequence]) -> None:
        """Call every sequence once: modules are compiled or loaded, and scratch is allocated outside of graphs."""
        rows, vocab_size = _WARMUP_SHAPE
        params = [SamplingParams(top_k=2, top_p=0.9, min_p=0.1)] * rows
        filters = Filters.of(SamplingMetadata.from_params(params, device=device), vocab_size)
        for sequence in sequences:
            probs, _ = self._probabilities(
                torch.zeros(rows, vocab_size, device=device, dtype=torch.float32), filters.temperature
            )
            draw(sequence, self._batch(probs, filters, 2))


def _fused_softmax(example: Tensor) -> Softmax | None:
    """Return the Triton kernel if it runs on an example; otherwise torch and FlashInfer do the same, slower."""
    if example.device.type != "cuda":
        return None
    try:
        from tokendraw_flashinfer.softmax import softmax

        softmax(example, None)
    except Exception as error:  # no Triton, no C compiler for its launcher, a device that it does not know
        _log.info("logits are cleaned by torch, since Triton failed: %s: %s", type(error).__name__, error)
        return None
    fused: Softmax = softmax
    return fused


def _is_capturing(device: torch.device) -> bool:
    """Return whether the current stream is recording a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
