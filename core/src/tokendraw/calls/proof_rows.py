"""Rows of logits for a proof: size, dtype, and parameters within the advertised capabilities."""

from __future__ import annotations

from typing import Any

import torch

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.calls.drawing import RowCall
from tokendraw.errors.exceptions import PluginError
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.params import SamplingParams

PEAK = 100.0
"""Logit that leaves exp(-100) of the mass for all other tokens."""
_VOCAB_SIZE = 2048  # two tiles of the two-level draw


def zeros(rows: int, capabilities: Capabilities, device: torch.device, need: Need) -> torch.Tensor:
    """Make logits [rows, V] of 0 in a needed or advertised dtype."""
    vocab_size = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE)
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    return torch.zeros(rows, vocab_size, dtype=dtype, device=device)


def params(capabilities: Capabilities, need: Need) -> SamplingParams:
    """Make parameters for two equally likely tokens, within the advertised capabilities.

    Where kernels are compiled on demand and nobody said for which dtype, they ask for nothing, which compiles least: a
    kernel that fails at a later call is caught there.
    """
    if capabilities.compiles_on_demand and need.dtype is None:
        return SamplingParams()
    served = {name for name, _ in capabilities.filters}
    filters = {p.name: p.example for p in FILTER_PARAMETERS if p.name in served}
    if "top_k" in filters:
        filters["top_k"] = 2
    orders = [order for order in need.filter_orders if order in capabilities.filter_orders]
    two_filters: dict[str, Any] = dict([*filters.items()][:2])  # a third one could need another kernel
    return SamplingParams(**two_filters, filter_order=(*orders, "top_k_first")[0])


def output_of(call: RowCall, backend: Any, need: Need) -> Any:
    """Run a call on a backend, and refuse an output of the wrong form."""
    output = call.run(backend)
    wrong = call.output_check(need)(output)
    if wrong is not None:
        raise PluginError(f"the proof draw needs {wrong}")
    return output
