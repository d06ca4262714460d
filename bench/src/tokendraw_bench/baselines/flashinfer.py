"""FlashInfer called directly: every sequence of its functions for the filters of a cell, with parameters by row.

A way is a sequence of steps by name; :class:`_Steps` has the call and the parameters of each step. The fastest way
depends on the version, the batch and the logits, so all ways are timed. Two features are left out:
``filter_apply_order="joint"`` keeps other tokens, and a scalar ``top_k`` is no batch of different requests. FlashInfer
converts halves to float32 before its softmax; ``top_k_mask_logits`` takes halves, and may run before the temperature,
which keeps the order of the tokens.

A graph captures the seed of a launch by value, so calls pass a seed; without a seed FlashInfer reads torch's generator
on the host. Functions of versions without a seed argument run outside of graphs.

Drafts are verified by ``chain_speculative_sampling``, from filtered probabilities of target and draft, which the ways
compute in one call for the rows of both. It accepts by rejection; FlashInfer has no min-p that returns probabilities.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw import SamplerUnavailableError, SamplingMetadata
from tokendraw.plugin import Host
from tokendraw.resolution import installed_version
from tokendraw_bench.baselines.parameters import BaselineParameters
from tokendraw_bench.cells import Cell
from tokendraw_bench.timing.timer import Draw, TimedCall

DISTRIBUTION = "flashinfer-python"
_SEED = 1
_DIVISION = "division by T"
_FUSED = "cake_top_k_top_p_sampling_from_probs"
_CHAIN = "chain_speculative_sampling"

_Ways: TypeAlias = Mapping[frozenset[str], tuple[tuple[str, ...], ...]]
"""Ways to draw, by the filters that the rows of a batch may have: each way as the names of its steps."""
_NONE, _K, _P, _M = frozenset[str](), frozenset({"top_k"}), frozenset({"top_p"}), frozenset({"min_p"})

DRAW_WAYS: _Ways = MappingProxyType(
    {
        _NONE: (("softmax", "sampling_from_probs"), (_DIVISION, "sampling_from_logits")),
        _K: (
            ("softmax", "top_k_sampling_from_probs"),
            ("top_k_mask_logits", "softmax", "sampling_from_probs"),
            ("softmax", _FUSED),
        ),
        _P: (
            ("softmax", "top_p_sampling_from_probs"),
            ("softmax", "top_p_renorm_probs", "sampling_from_probs"),
        ),
        _K | _P: (
            ("softmax", "top_k_top_p_sampling_from_probs"),
            ("top_k_mask_logits", "softmax", "top_p_sampling_from_probs"),
            ("softmax", _FUSED),
        ),
        _M: (("softmax", "min_p_sampling_from_probs"),),
        # Min-p counts after the other filters here: other tokens, at the same cost.
        _K | _P | _M: (("softmax", "top_k_renorm_probs", "top_p_renorm_probs", "min_p_sampling_from_probs"),),
    }
)
CHAIN_WAYS: _Ways = MappingProxyType(
    {
        _NONE: (("softmax", _CHAIN),),
        _K: (("softmax", "top_k_renorm_probs", _CHAIN), ("top_k_mask_logits", "softmax", _CHAIN)),
        _P: (("softmax", "top_p_renorm_probs", _CHAIN),),
        _K | _P: (
            ("softmax", "top_k_renorm_probs", "top_p_renorm_probs", _CHAIN),
            ("top_k_mask_logits", "softmax", "top_p_renorm_probs", _CHAIN),
        ),
    }
)


def reason_against(host: Host) -> str | None:
    """Say why FlashInfer cannot run on a machine; None if it can."""
    if host.device_type != "cuda":
        return f"needs an NVIDIA GPU, found {host.device_type}"
    if installed_version(DISTRIBUTION) is None:
        return f"needs {DISTRIBUTION}, found it not installed; run `pip install {DISTRIBUTION}`"
    return None


def prepare(cell: Cell, metadata: SamplingMetadata, *, may_fuse: bool = True) -> tuple[TimedCall, ...]:
    """Make a call for each way to draw.

    :param may_fuse: whether to time the fused sampler, which compiles a kernel for each shape, for a minute or two.
    """
    facts = metadata.facts
    largest_top_k = facts.max_top_k if facts.all_top_k and may_fuse else None
    steps = _Steps(BaselineParameters.of(cell, metadata), largest_top_k)
    return steps.calls(DRAW_WAYS)


def prepare_chain(
    cell: Cell, metadata: SamplingMetadata, draft_ids: Tensor, mode: str
) -> tuple[TimedCall, ...]:
    """Make a call for each way to hold drafts against their target.

    :param metadata: of the requests of the cell.
    :param draft_ids: [B, K]; a buffer holds the target's B * (K + 1) rows and below them the B * K of the drafts.
    """
    rows = BaselineParameters.of(cell, metadata)
    if mode != "rejection":
        raise SamplerUnavailableError(f"it does not serve the mode {mode}")
    if rows.min_p is not None:
        raise SamplerUnavailableError("it does not serve min_p per row")
    batch, count = draft_ids.shape
    requests = torch.arange(batch, device=draft_ids.device)
    rows = rows.take(torch.cat([requests.repeat_interleave(count + 1), requests.repeat_interleave(count)]))
    return _Steps(rows, draft_ids=draft_ids.int()).calls(CHAIN_WAYS)


class _Steps:
    """Calls of FlashInfer's public functions by name, with the parameters of the rows.

    :param largest_top_k: the largest k, if every row has one; None: the fused sampler is not called.
    """

    def __init__(
        self, rows: BaselineParameters, largest_top_k: int | None = None, *, draft_ids: Tensor | None = None
    ) -> None:
        self._sampling: Any = importlib.import_module("flashinfer.sampling")
        self._fused = getattr(importlib.import_module("flashinfer"), _FUSED, None)
        self._rows, self._draft_ids, self._largest_top_k = rows, draft_ids, largest_top_k
        filters = {"top_k": rows.top_k, "top_p": rows.top_p, "min_p": rows.min_p}
        self._filters = {name: tensor for name, tensor in filters.items() if tensor is not None}
        if rows.top_k is not None:
            self._filters["top_k"] = rows.top_k.int()

    def calls(self, ways: _Ways) -> tuple[TimedCall, ...]:
        """Make a call for each way of the rows' filters in this version of FlashInfer."""
        calls = []
        for way in ways[frozenset(self._filters)]:
            if _FUSED in way and (self._fused is None or self._largest_top_k is None):
                continue
            draw = _chain(*(self._step(name) for name in way))
            takes_seed = way[-1] == _FUSED or bool(self._seed(way[-1]))
            calls.append(TimedCall(draw=draw, graph_safe=takes_seed, way=", ".join(way)))
        return tuple(calls)

    def _step(self, name: str) -> Callable[[Any], Any]:
        if name == _DIVISION:
            return lambda logits: logits / self._rows.temperature[:, None]
        if name == _FUSED:
            assert self._fused is not None
            return partial(
                self._fused,
                top_k=self._filters["top_k"],
                top_p=self._filters.get("top_p", 1.0),
                top_k_max=self._largest_top_k,  # or it would ask the device for it
                philox_seed=_SEED,
                philox_offset=0,
            )
        if name == _CHAIN:
            return self._chain_sampling(
                partial(self._sampling.chain_speculative_sampling, **self._seed(name))
            )
        function = getattr(self._sampling, name)
        if name == "softmax":
            return partial(function, temperature=self._rows.temperature)
        filters = {filter_: tensor for filter_, tensor in self._filters.items() if filter_ in name}
        return partial(function, **filters, **(self._seed(name) if "sampling" in name else {}))

    def _chain_sampling(self, function: Callable[..., object]) -> Callable[[Any], object]:
        ids = self._draft_ids
        assert ids is not None
        batch, count = ids.shape
        last = batch * (count + 1)

        def judge(probs: Tensor) -> object:
            target, draft = probs[:last], probs[last:]
            return function(draft.view(batch, count, -1), ids, target.view(batch, count + 1, -1))

        return judge

    def _seed(self, name: str) -> dict[str, int]:
        """Return the seed arguments of a function, if this version of the function has them."""
        takes = inspect.signature(getattr(self._sampling, name)).parameters.keys()
        return {"seed": _SEED, "offset": 0} if {"seed", "offset"} <= takes else {}


def _chain(*steps: Callable[[Any], Any]) -> Draw:
    def draw(logits: Tensor) -> object:
        value: Any = logits
        for step in steps:
            value = step(value)
        return value

    return draw
