"""Contenders that need no plugin: pipelines in plain torch, and the kernels of FlashInfer and vLLM called directly.

Parameters are tensors by row, as in a batch of different requests. No baseline waits for the device. vLLM's takes seeds
by row; elsewhere the noise is that of the launch.

FlashInfer is called by every sequence of its functions for the filters of a cell, with parameters by row.

A way is a sequence of steps by name; :class:`_Steps` has the call and the parameters of each step. The fastest way
depends on the version, the batch and the logits, so all ways are timed. Two features are left out:
``filter_apply_order="joint"`` keeps other tokens, and a scalar ``top_k`` is no batch of different requests; the largest
k is passed where a function takes it. FlashInfer converts halves to float32 before its softmax; ``top_k_mask_logits``
takes halves, and may run before the temperature, which keeps the order of the tokens.

A graph captures the seed of a launch by value, so calls pass a seed; without a seed FlashInfer reads torch's generator
on the host. Functions of versions without a seed argument run outside of graphs.

Drafts are verified by ``chain_speculative_sampling``, from filtered probabilities of target and draft, which the ways
compute in one call for the rows of both. It accepts by rejection; FlashInfer has no min-p that returns probabilities.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw import SamplerUnavailableError, SamplingMetadata
from tokendraw_bench.cells import Cell
from tokendraw_bench.timing import Draw, TimedCall


def _parameters(cell: Cell, metadata: SamplingMetadata) -> dict[str, Tensor]:
    """Convert the metadata of a cell, once a batch: parameters by row, [B], without the filters that no row uses.

    ``temperature`` is float32, ``top_k`` int64 (V: off), ``top_p`` (1: off) and ``min_p`` (0: off) are float32.

    :raises SamplerUnavailableError: it has rows beyond the baselines.
    """
    facts, k, p, m = metadata.facts, metadata.top_k, metadata.top_p, metadata.min_p
    unsupported = {
        "greedy rows": facts.any_greedy,
        "the filter order joint": facts.any_joint,
        "the filter order temperature_last": facts.any_temperature_last,
        "log-probabilities": facts.max_logprobs is not None,
    }
    for part, is_present in unsupported.items():
        if is_present:
            raise SamplerUnavailableError(f"it does not serve {part}")
    assert metadata.temperature is not None
    rows = {"temperature": metadata.temperature.float()}
    if k is not None and facts.max_top_k:
        rows["top_k"] = torch.where(k > 0, k, cell.vocab_size).clamp(max=cell.vocab_size)
    if p is not None and facts.any_top_p:
        rows["top_p"] = p.float()
    if m is not None and facts.any_min_p:
        rows["min_p"] = m.float()
    return rows


def torch_sort(cell: Cell, metadata: SamplingMetadata) -> tuple[TimedCall]:
    """Draw as engines do: divide by T, sort, mask, softmax, divide by exponential noise, argmax.

    The token is looked up in the sorted order, which is cheaper than to scatter the probabilities back. Without
    filters nothing is sorted.
    """
    columns = {name: values[:, None] for name, values in _parameters(cell, metadata).items()}
    temperature, top_p = columns.pop("temperature"), columns.get("top_p")
    kth = columns["top_k"] - 1 if "top_k" in columns else None
    mass = None if top_p is None else top_p.where(top_p < 1, torch.inf)
    depth = columns["min_p"].log() if "min_p" in columns else None

    def draw(logits: Tensor) -> Tensor:
        y = logits.float() / temperature
        if not columns:
            return _race(y)
        y, order = y.sort(dim=-1, descending=True)
        if depth is not None:
            y = y.masked_fill(y < y[:, :1] + depth, -torch.inf)
        if kth is not None:
            y = y.masked_fill(y < y.gather(-1, kth), -torch.inf)
        if mass is not None:
            probability = y.softmax(-1)
            y = y.masked_fill(probability.cumsum(-1) - probability >= mass, -torch.inf)
        return order.gather(-1, _race(y)[:, None])[:, 0]

    return (TimedCall(draw=draw),)


def _race(y: Tensor) -> Tensor:
    """Draw once a row: take the largest of the probabilities over exponential noise."""
    probability = y.softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


def vllm_draw(cell: Cell, metadata: SamplingMetadata) -> tuple[TimedCall]:
    """Draw by the Triton kernels of vLLM's V2 sampler, in its order: copy, T, min-p, top-k and top-p, Gumbel noise."""
    rows = _parameters(cell, metadata)
    temperature, min_p = rows.pop("temperature"), rows.pop("min_p", None)
    parts = ("worker.gpu.sample.gumbel", "worker.gpu.sample.min_p", "sample.ops.topk_topp_triton")
    gumbel, floor, kept = (importlib.import_module(f"vllm.v1.{part}") for part in parts)
    index = torch.arange(cell.batch, device=temperature.device)
    slots, noise = index.int(), {"apply_temperature": False, "is_drafting": False}
    filters = {
        "k": rows.get("top_k"),
        "p": rows.get("top_p"),
        "has_topp_only_rows": not metadata.facts.all_top_k,
    }

    def draw(logits: Tensor) -> object:
        x = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
        gumbel.apply_temperature(x, slots, temperature)
        if min_p is not None:
            floor.apply_min_p(x, slots, min_p)
        if rows:
            x = kept.apply_top_k_top_p_triton(x, **filters)
        return gumbel.gumbel_sample(x, slots, temperature, index, index, **noise)

    return (TimedCall(draw=draw),)


FLASHINFER, VLLM = "flashinfer-python", "vllm"
_SEED = 1
_DIVISION = "division by T"
_FUSED = "cake_top_k_top_p_sampling_from_probs"
_FROM_LOGITS = "top_k_top_p_sampling_from_logits"
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
            (_DIVISION, _FROM_LOGITS),
            ("softmax", _FUSED),
        ),
        _P: (
            ("softmax", "top_p_sampling_from_probs"),
            ("softmax", "top_p_renorm_probs", "sampling_from_probs"),
        ),
        _K | _P: (
            ("softmax", "top_k_top_p_sampling_from_probs"),
            ("top_k_mask_logits", "softmax", "top_p_sampling_from_probs"),
            (_DIVISION, _FROM_LOGITS),
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


def flashinfer_draw(
    cell: Cell, metadata: SamplingMetadata, *, may_fuse: bool = True
) -> tuple[TimedCall, ...]:
    """Make a call for each way to draw.

    :param may_fuse: whether to time the fused sampler, which compiles a kernel for each shape, for a minute or two.
    """
    facts = metadata.facts
    largest_top_k = facts.max_top_k if facts.all_top_k and may_fuse else None
    return _Steps(_parameters(cell, metadata), largest_top_k).calls(DRAW_WAYS)


def flashinfer_chain(
    cell: Cell, metadata: SamplingMetadata, draft_ids: Tensor, mode: str
) -> tuple[TimedCall, ...]:
    """Make a call for each way to hold drafts against their target.

    :param metadata: of the requests of the cell.
    :param draft_ids: [B * K]; a buffer holds the target's B * (K + 1) rows and below them the B * K of the drafts.
    """
    rows = _parameters(cell, metadata)
    if mode != "rejection":
        raise SamplerUnavailableError(f"it does not serve the mode {mode}")
    if "min_p" in rows:
        raise SamplerUnavailableError("it does not serve min_p per row")
    batch = cell.batch
    draft_ids = draft_ids.view(batch, -1)
    count = draft_ids.shape[1]
    requests = torch.arange(batch, device=draft_ids.device)
    slots = torch.cat([requests.repeat_interleave(count + 1), requests.repeat_interleave(count)])
    rows = {name: values[slots] for name, values in rows.items()}
    return _Steps(rows, draft_ids=draft_ids.int()).calls(CHAIN_WAYS)


class _Steps:
    """Calls of FlashInfer's public functions by name, with the parameters of the rows.

    :param largest_top_k: the largest k, if every row has one; None: the fused sampler is not called.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        largest_top_k: int | None = None,
        *,
        draft_ids: Tensor | None = None,
    ) -> None:
        self._sampling: Any = importlib.import_module("flashinfer.sampling")
        self._fused: Any = getattr(importlib.import_module("flashinfer"), _FUSED, None)
        self._draft_ids, self._largest_top_k = draft_ids, largest_top_k
        self._filters = {name: values.int() if name == "top_k" else values for name, values in rows.items()}
        self._temperature = self._filters.pop("temperature")

    def calls(self, ways: _Ways) -> tuple[TimedCall, ...]:
        """Make a call for each way of the rows' filters in this version of FlashInfer."""
        calls = []
        for way in ways[frozenset(self._filters)]:
            if _FUSED in way and (self._fused is None or self._largest_top_k is None):
                continue
            steps = [self._step(name) for name in way]
            draw = partial(reduce, lambda value, step: step(value), steps)
            takes_seed = way[-1] == _FUSED or bool(self._seed(way[-1]))
            calls.append(TimedCall(draw=draw, graph_safe=takes_seed, way=", ".join(way)))
        return tuple(calls)

    def _step(self, name: str) -> Callable[[Any], Any]:
        if name == _DIVISION:
            return lambda logits: logits / self._temperature[:, None]
        if name == _FUSED:
            return partial(
                self._fused,
                top_k=self._filters["top_k"],
                top_p=self._filters.get("top_p", 1.0),
                top_k_max=self._largest_top_k,  # or it would ask the device for it
                philox_seed=_SEED,
                philox_offset=0,
            )
        function = getattr(self._sampling, name)
        if name == _CHAIN:
            return self._chain_sampling(partial(function, **self._seed(name)))
        if name == "softmax":
            return partial(function, temperature=self._temperature)
        filters: dict[str, Any] = {
            filter_: tensor for filter_, tensor in self._filters.items() if filter_ in name
        }
        if name == _FROM_LOGITS:
            filters.setdefault("top_p", 1.0)
        if "top_k_max" in inspect.signature(function).parameters:  # from 0.7.4 on
            filters["top_k_max"] = self._largest_top_k
        return partial(function, **filters, **(self._seed(name) if "sampling" in name else {}))

    def _chain_sampling(self, function: Callable[..., object]) -> Draw:
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
