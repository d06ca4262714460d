"""The call: two launches, one over the tiles of all rows and one over the rows. It waits for nothing."""

from __future__ import annotations

import contextlib

import torch
import triton
from torch import Tensor

from tokendraw import Need, SamplerOutput, SamplingMetadata
from tokendraw_triton_gumbel.draw import draw_token
from tokendraw_triton_gumbel.few import FEW
from tokendraw_triton_gumbel.search import CAPACITY
from tokendraw_triton_gumbel.tiles import TILE, tile_statistics

SHAPES = {torch.float32: (1, 4), torch.bfloat16: (1, 8), torch.float16: (1, 8)}
"""Warps a program and logits a load, of the pass over the tiles. One warp a tile and a program was as fast as any other or
faster in every cell that was measured on an H200 (1, 2, 4 and 8 warps; 1024, 256, 64 and 1 row; float32 and bfloat16)."""


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._fp64 = need.gumbel_dtype == "fp64"

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool = False) -> SamplerOutput:
        """Draw one token a row; see :meth:`tokendraw.Sampler.sample`. ``inplace`` would gain nothing and is ignored."""
        rows, device = logits.shape[0], logits.device
        token_ids = torch.empty(rows, dtype=torch.int64, device=device)
        valid = torch.empty(rows, dtype=torch.bool, device=device)
        if rows:
            with _current(device):
                self._launch(
                    logits if logits.stride(1) == 1 else logits.contiguous(), metadata, token_ids, valid
                )
        return SamplerOutput(token_ids, valid)

    def _launch(self, logits: Tensor, m: SamplingMetadata, token_ids: Tensor, valid: Tensor) -> None:
        rows, vocab_size = logits.shape
        device, facts, stride = logits.device, m.facts, logits.stride(0)
        tiles = -(-vocab_size // TILE)
        statistics = torch.empty(2, rows, tiles, dtype=torch.float32, device=device)
        maxima, sums = statistics.unbind()
        warps, vector = SHAPES[logits.dtype]
        groups = -(-tiles // warps)
        filtered = facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p
        # One shape for every vocabulary up to 262,144, so that another vocabulary compiles nothing.
        widest = max(256, triton.next_power_of_2(tiles))
        listed = values = ids = None
        if filtered:
            listed = torch.empty(rows, widest, dtype=torch.int32, device=device)
            values = torch.empty(rows, CAPACITY, dtype=torch.float32, device=device)
            ids = torch.empty(rows, FEW, dtype=torch.int32, device=device)
        tile_statistics[(rows * groups,)](
            logits,
            stride,
            vocab_size,
            m.temperature,
            m.row_index,
            maxima,
            sums,
            tiles,
            groups,
            HAS_TEMPERATURE=m.temperature is not None,
            HAS_INDEX=m.row_index is not None,
            WARPS=warps,
            VECTOR=vector,
            num_warps=warps,
        )
        fresh = None
        if m.seed is None or not facts.all_seeded:
            fresh = torch.empty(rows, dtype=torch.int64, device=device).random_(-(2**63), None)
        draw_token[(rows,)](
            logits,
            stride,
            vocab_size,
            maxima,
            sums,
            tiles,
            m.temperature,
            m.row_index,
            m.seed,
            m.seeded,
            fresh,
            m.positions,
            m.top_k,
            m.top_p,
            m.min_p,
            m.joint,
            listed,
            values,
            ids,
            token_ids,
            valid,
            HAS_TEMPERATURE=m.temperature is not None,
            HAS_INDEX=m.row_index is not None,
            HAS_SEEDS=m.seed is not None,
            HAS_SEEDED=m.seeded is not None,
            HAS_FRESH=fresh is not None,
            HAS_POSITIONS=m.positions is not None,
            HAS_TOP_K=m.top_k is not None,
            HAS_TOP_P=m.top_p is not None,
            HAS_MIN_P=m.min_p is not None,
            HAS_JOINT=m.joint is not None,
            FILTERED=filtered,
            FP64=self._fp64,
            TILES=widest,
            CAPACITY=CAPACITY,
            FEW=FEW,
        )


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make ``device`` the one that Triton launches on, if it is not already."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)
