"""Batches of requests as arrays: thousands of rows with filters of their own, made without an object a row."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import BatchFacts, SamplingMetadata, SamplingParams

_TEMPERATURES = (0.3, 0.7, 1.0, 1.5)
_TOP_KS = (0, 1, 5, 50, 400, 20_000)
_TOP_PS = (1.0, 0.5, 0.9, 0.99)
_MIN_PS = (0.0, 0.01, 0.1)


@dataclass(frozen=True)
class RequestArrays:
    """Parameters of each row, [rows] each; every row has a seed."""

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    joint: NDArray[np.bool_]
    seed: NDArray[np.int64]
    position: NDArray[np.int64]

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """Rows of temperature 0."""
        return self.temperature == 0

    def params(self, row: int) -> SamplingParams:
        """Return the request of a row."""
        return SamplingParams(
            temperature=float(self.temperature[row]),
            top_k=int(self.top_k[row]),
            top_p=float(self.top_p[row]),
            min_p=float(self.min_p[row]),
            seed=int(self.seed[row]),
            filter_order="joint" if self.joint[row] else "top_k_first",
        )

    def metadata(self, device: torch.device) -> SamplingMetadata:
        """Build metadata like ``SamplingMetadata.from_params``."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        on_device = {
            name: torch.from_numpy(np.ascontiguousarray(values)).to(device)
            for name, values in tensors.items()
        }
        positions = on_device.pop("position")
        return SamplingMetadata(positions=positions, facts=self._facts(), **on_device)

    def _facts(self) -> BatchFacts:
        second = (self.top_p < 1) & ((self.top_k > 0) | (self.min_p > 0))
        return BatchFacts(
            any_greedy=bool(self.greedy.any()),
            all_greedy=bool(self.greedy.all()),
            all_seeded=True,
            max_top_k=int(self.top_k.max(initial=0)),
            all_top_k=bool(((self.top_k > 0) | self.greedy).all()),
            any_top_p=bool((self.top_p < 1).any()),
            any_min_p=bool((self.min_p > 0).any()),
            any_joint=bool(self.joint.any()),
            any_top_k_first=bool((second & ~self.joint).any()),
        )


def mixed(rng: np.random.Generator, rows: int) -> RequestArrays:
    """Make rows with mixed filters, one in twenty of them greedy, and seeds and positions over their whole range."""
    temperature = rng.choice(_TEMPERATURES, rows)
    temperature[rng.random(rows) < 0.05] = 0.0
    return RequestArrays(
        temperature,
        rng.choice(_TOP_KS, rows),
        rng.choice(_TOP_PS, rows),
        rng.choice(_MIN_PS, rows),
        rng.random(rows) < 0.5,
        rng.integers(-(2**63), 2**63, rows),
        rng.integers(0, 2**40, rows),
    )
