"""The call: bring parameters into range, make clean probabilities, and draw by the first way that serves the batch."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw import Need, PluginError, SamplerOutput, SamplingMetadata
from tokendraw.probabilities import Filters, relative
from tokendraw_flashinfer.draws import DRAWS, Batch, kind_of
from tokendraw_flashinfer.signatures import EntryPoints
from tokendraw_flashinfer.ways import FUSED, WAYS, Kind, Way, able

Softmax: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]

_log = logging.getLogger("tokendraw")
MOST_ELEMENTS = 1 << 31
"""Of logits in one launch: the kernels count elements with 32 bits."""
_REHEARSAL = (2, 8)


class FlashInferSampler:
    """FlashInfer's sampling kernels. Made by ``tokendraw.load_sampler("flashinfer")``.

    :param device: where it draws.
    :param need: with ``tie_rule="either"`` it may draw by ways that keep exactly k of tied tokens.
    :param ways: in place of the table, for measurements.
    :param most_elements: logits in one launch; more rows are drawn in parts.
    :raises PluginError: the installed FlashInfer cannot draw even rows without filters.
    """

    def __init__(
        self,
        device: torch.device,
        need: Need,
        ways: Mapping[Kind, Sequence[Way]] = WAYS,
        *,
        most_elements: int = MOST_ELEMENTS,
    ) -> None:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self._ways = able(ways, EntryPoints.installed(), need.tie_rule, capability)
        if "none" not in self._ways:
            raise PluginError(
                "rows without filters need softmax and sampling_from_probs, found no such entry points"
            )
        every = list(dict.fromkeys(way for able_ways in self._ways.values() for way in able_ways))
        self._sampling = importlib.import_module("flashinfer.sampling")
        self._cake = importlib.import_module("flashinfer.cake_sampling") if FUSED in every else None
        self._offset = torch.zeros(1, dtype=torch.int64, device=device)
        self._most_elements = most_elements
        dtype = getattr(torch, need.dtype or "float32")
        self._fused_softmax = _fused_softmax(torch.zeros(_REHEARSAL, dtype=dtype, device=device))
        self._rehearse(device, every)

    def way(self, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool = False) -> Way:
        """Look up by which way a batch is drawn.

        :param capturing: whether it becomes part of a CUDA graph.
        """
        return self._way(Filters.of(metadata, vocab_size), metadata, vocab_size, capturing=capturing)

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw one token a row; see :meth:`tokendraw.Sampler.sample`."""
        rows, vocab_size = logits.shape
        wanted = Filters.of(metadata, vocab_size)
        if rows == 0 or vocab_size == 1:
            _, valid = relative(logits)
            return SamplerOutput(torch.zeros(rows, dtype=torch.int64, device=logits.device), valid)
        way = self._way(wanted, metadata, vocab_size, capturing=_is_capturing(logits.device))
        largest = metadata.facts.max_top_k or vocab_size
        step = max(1, self._most_elements // vocab_size)
        parts = [
            self._draw(way, logits[start : start + step], wanted.chunk(slice(start, start + step)), largest)
            for start in range(0, rows, step)
        ]
        tokens, valid = (torch.cat(column) for column in zip(*parts, strict=True))
        return SamplerOutput(tokens, valid)

    def _way(self, wanted: Filters, metadata: SamplingMetadata, vocab_size: int, *, capturing: bool) -> Way:
        facts = metadata.facts
        return next(
            way
            for way in self._ways[kind_of(wanted)]
            if way.serves(
                facts.max_top_k, all_top_k=facts.all_top_k, vocab_size=vocab_size, capturing=capturing
            )
        )

    def _draw(self, way: Way, logits: Tensor, wanted: Filters, largest_top_k: int) -> tuple[Tensor, Tensor]:
        probs, valid = self._probabilities(logits, wanted.temperature)
        tokens, drawn = DRAWS[way](self._batch(probs, wanted, largest_top_k))
        return tokens.long(), valid if drawn is None else valid & drawn

    def _probabilities(self, logits: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
        if self._fused_softmax is not None:
            return self._fused_softmax(logits, temperature)
        y, valid = relative(logits)
        return self._sampling.softmax(y, temperature=temperature), valid

    def _batch(self, probs: Tensor, wanted: Filters, largest_top_k: int) -> Batch:
        return Batch(
            sampling=self._sampling,
            cake=self._cake,
            probs=probs,
            wanted=wanted,
            largest_top_k=largest_top_k,
            seed=self._seed(),
            offset=self._offset,
        )

    def _seed(self) -> Tensor:
        """One of torch's generator of the device, made on the device, so that a graph gets a new one per replay."""
        return torch.empty_like(self._offset).random_(-(2**63), None)

    @torch.no_grad()
    def _rehearse(self, device: torch.device, ways: Sequence[Way]) -> None:
        """Call every way once: modules are compiled or loaded now, and scratch is allocated outside of any graph."""
        rows, vocab_size = _REHEARSAL
        wanted = Filters(
            temperature=torch.ones(rows, device=device),
            top_k=torch.full((rows,), 2, dtype=torch.int32, device=device),
            top_p=torch.full((rows,), 0.9, device=device),
            min_p=torch.full((rows,), 0.1, device=device),
            joint=None,
            any_top_k_first=True,
        )
        for way in ways:
            probs, _ = self._probabilities(torch.zeros(rows, vocab_size, device=device), wanted.temperature)
            DRAWS[way](self._batch(probs, wanted, 2))


def _fused_softmax(example: Tensor) -> Softmax | None:
    """The Triton kernel, if it runs on an example; without it torch and FlashInfer do the same, slower."""
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
    """Whether the current stream is recording a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
