"""The call: two launches, over the tiles of all rows and over the rows; a third where a row may keep many tokens.

A fourth describes the tokens where logprobs are asked for. It waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata
from tokendraw_triton_gumbel import configurations, request
from tokendraw_triton_gumbel.configurations import Configuration
from tokendraw_triton_gumbel.draw import draw_rows
from tokendraw_triton_gumbel.few import LEAST_CANDIDATES, MOST_CANDIDATES
from tokendraw_triton_gumbel.launch import Launch, Layout
from tokendraw_triton_gumbel.logprobs import describe
from tokendraw_triton_gumbel.passes import COLUMNS, NOTES, PLAN, SLOTS
from tokendraw_triton_gumbel.search import CAPACITY
from tokendraw_triton_gumbel.tiles import GRANULES, ROUNDS, TILE, VECTORS, tile_statistics
from tokendraw_triton_gumbel.wide import draw_wide

_MOST_ROWS_A_COLUMN = 32768
"""Of a grid."""
_MOST_PLANS = 256
_QUEUE = 128
_BITS = tuple(
    bit.value
    for bit in (
        request.HAS_INDEX,
        request.HAS_SEEDS,
        request.HAS_SEEDED,
        request.HAS_FRESH,
        request.HAS_POSITIONS,
        request.HAS_TOP_K,
        request.HAS_TOP_P,
        request.HAS_MIN_P,
        request.HAS_JOINT,
    )
)
_EXACT = request.EXACT.value
_REAL, _WHOLE = torch.float32, torch.int32


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What decides how a call is launched."""

    rows: int
    vocab_size: int
    dtype: torch.dtype
    filtered: bool
    described: bool
    raw: bool
    """Whether the mass at T = 1 is wanted beside the one at the row's temperature."""
    paired: bool
    how: Configuration


class _Plan:
    """The launches of a shape, and where their scratch lies."""

    def __init__(self, shape: _Shape, family: str, processors: int, *, fp64: bool) -> None:
        rows, how = shape.rows, shape.how
        self.tiles = tiles = -(-shape.vocab_size // TILE)
        widest = 256  # one shape for every vocabulary up to 262,144, so that another one compiles nothing
        while widest < tiles:
            widest *= 2
        is_single, is_nvidia = shape.dtype == torch.float32, family == "cuda"
        vector, span = VECTORS[str(shape.dtype)[6:]], how.span if is_single else how.span_half
        programs = min(rows * tiles, how.wide_programs * processors)
        self.layout = layout = Layout()
        self.maxima, self.sums = (layout.reserve(_REAL, rows * tiles) for _ in range(2))
        self.raw_sums = layout.reserve(_REAL, rows * tiles) if shape.raw else None
        self.granules = (
            layout.reserve(shape.dtype, rows * tiles * GRANULES)
            if shape.filtered or shape.described
            else None
        )
        self.collected: list[int] = []
        self.begun: list[int] = []
        self.wide: list[int] = []
        if shape.filtered:
            self.collected = [layout.reserve(d, rows * MOST_CANDIDATES) for d in (_WHOLE, _REAL, _WHOLE)]
            self.begun = [
                layout.reserve(_WHOLE, _QUEUE),
                layout.reserve(_WHOLE, rows * ROUNDS.value),
                layout.reserve(_WHOLE, rows),
                layout.reserve(_REAL, rows * PLAN.value),
                layout.reserve(_WHOLE, rows * NOTES.value),
            ]
            self.wide = [
                layout.reserve(_WHOLE, programs * widest),
                layout.reserve(_REAL, programs * CAPACITY),
                layout.reserve(_REAL, rows * SLOTS.value * tiles * COLUMNS.value),
            ]
        common = {"FP64": fp64, "TILES": widest}
        by = 65536 if shape.dtype == torch.bfloat16 else 1
        limited = {"maxnreg": how.row_registers} if how.row_registers and is_nvidia and shape.filtered else {}
        limited_wide = {"maxnreg": how.wide_registers} if how.wide_registers and is_nvidia else {}
        self.pass_over_tiles = Launch(
            kernel=tile_statistics,
            grid=(-(-tiles // span), min(rows, _MOST_ROWS_A_COLUMN), -(-rows // _MOST_ROWS_A_COLUMN)),
            constants={"SPAN": span, "VECTOR": vector, "PAIRED": shape.paired, "PTX": is_nvidia},
            options={"num_warps": how.tile_warps},
        )
        self.draw_rows = Launch(
            kernel=draw_rows,
            grid=(rows, 1, 1),
            constants={"FILTERED": shape.filtered}
            | common
            | {
                "VECTOR": vector,
                "LESS": LEAST_CANDIDATES,
                "MOST": MOST_CANDIDATES,
                "GATHERED": how.granules_at_once,
                "BY": by,
                "PTX": is_nvidia,
            },
            options={"num_warps": how.row_warps} | limited,
        )
        self.draw_wide = Launch(
            kernel=draw_wide,
            grid=(programs, 1, 1),
            constants=common
            | {
                "CAPACITY": CAPACITY,
                "WARPS": how.wide_warps,
                "VECTOR": vector,
                "BY": by,
                "PTX": is_nvidia,
            },
            options={"num_warps": how.wide_warps} | limited_wide,
        )
        self.rows = rows
        self.launches = (self.pass_over_tiles, self.draw_rows, *([self.draw_wide] if shape.filtered else []))

    def launch(
        self,
        variant: Hashable,
        head: tuple[Any, int, int],
        asked: Sequence[Any],
        m: SamplingMetadata,
        flags: int,
        pieces: Sequence[Any],
        out: Sequence[Any],
    ) -> None:
        """Launch all of it.

        :param head: the logits, their row stride and vocabulary. They, ``asked``, ``pieces`` and ``out`` (token ids,
            valid, floors, log_kept) are tensors, or all of them addresses; see :class:`Launch`.
        """
        tiles = self.tiles
        token_ids, valid, floors, log_kept = out
        maxima, sums = pieces[self.maxima], pieces[self.sums]
        raw_sums = None if self.raw_sums is None else pieces[self.raw_sums]
        granules = None if self.granules is None else pieces[self.granules]
        collected: tuple[Any, ...] = (None,) * 3
        begun: tuple[Any, ...] = (None,) * 5
        if self.wide:
            collected = tuple(pieces[i] for i in self.collected)
            begun = tuple(pieces[i] for i in self.begun)
        # Where nobody wants them they are not written, so anything of their type stands in.
        details = (maxima, maxima) if floors is None else (floors, log_kept)
        index = asked[1] if m.row_index is not None else None
        self.pass_over_tiles(
            variant, (*head, asked[0], index, maxima, sums, raw_sums, granules, *begun[:2], self.rows, tiles)
        )
        ends = (token_ids, valid, *details)
        self.draw_rows(
            variant, (*head, maxima, sums, granules, tiles, *asked, flags, *collected, *begun, *ends)
        )
        if self.wide:
            listed, values, partials = (pieces[i] for i in self.wide)
            results = (token_ids, *details, self.rows)
            scratch = (listed, values, *begun, partials)
            self.draw_wide(variant, (*head, maxima, sums, tiles, flags, *scratch, *results))


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._fp64 = need.gumbel_dtype == "fp64"
        self._mode = need.logprobs_mode
        self._plans: dict[_Shape, _Plan] = {}
        self._is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._family, self._processors = "cpu", 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._family = "hip" if torch.version.hip else "cuda"

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool = False) -> SamplerOutput:
        """Draw one token a row; see :meth:`tokendraw.Sampler.sample`. ``inplace`` would gain nothing and is ignored."""
        with _current(logits.device):
            return self._draw(logits if logits.stride(1) == 1 else logits.contiguous(), metadata)

    def _draw(self, logits: Tensor, m: SamplingMetadata) -> SamplerOutput:
        facts, rows, device = m.facts, logits.shape[0], logits.device
        described = facts.max_logprobs is not None
        token_ids = torch.empty(rows, dtype=torch.int64, device=device)
        valid = torch.empty(rows, dtype=torch.bool, device=device)
        floors = log_kept = None
        if described:
            floors, log_kept = torch.empty(2, rows, dtype=_REAL, device=device).unbind()
        logprobs = None
        if rows:
            # Triton takes a 1 for a constant, of which it cannot make an argument of a function.
            given = pad(logits, (0, 1), value=-torch.inf) if logits.shape[1] == 1 else logits
            plan = self._plan(given, m)
            memory = torch.empty(plan.layout.size, dtype=torch.uint8, device=device)
            self._launch(plan, given, m, memory, (token_ids, valid, floors, log_kept))
            if floors is not None and log_kept is not None:
                logprobs = self._describe(plan, logits, m, memory, token_ids, floors, log_kept)
        elif floors is not None and log_kept is not None:
            none = torch.empty(0, 1, dtype=_REAL, device=device)
            granules = torch.empty(0, 1, GRANULES, dtype=logits.dtype, device=device)
            logprobs = describe(
                logits, m, token_ids, none, none, None, granules, floors, log_kept, self._mode
            )
        return SamplerOutput(token_ids, valid, logprobs, log_kept)

    def _plan(self, logits: Tensor, m: SamplingMetadata) -> _Plan:
        facts, rows = m.facts, logits.shape[0]
        described = facts.max_logprobs is not None
        shape = _Shape(
            rows=rows,
            vocab_size=logits.shape[1],
            dtype=logits.dtype,
            filtered=facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p,
            described=described,
            raw=described and self._mode == "raw_logprobs" and m.temperature is not None,
            paired=self._family == "cuda"
            and logits.dtype == torch.bfloat16
            and logits.stride(0) % 2 == 0
            and logits.data_ptr() % 4 == 0,
            how=configurations.chosen(self._family, rows),
        )
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[shape] = _Plan(shape, self._family, self._processors, fp64=self._fp64)
        return plan

    def _launch(
        self,
        plan: _Plan,
        logits: Tensor,
        m: SamplingMetadata,
        memory: Tensor,
        out: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    ) -> None:
        (rows, vocab_size), stride = logits.shape, logits.stride(0)
        token_ids, valid, *_ = out
        flags, asked = _asked(m, rows, token_ids, valid)
        start, given = logits.data_ptr(), [_address(tensor) for tensor in asked]
        variant: Hashable = None
        if not self._is_interpreted and not any(address is not None and address % 16 for address in given):
            sizes = (stride % 16 == 0, stride == 1, stride >> 31, vocab_size % 16 == 0, start % 16 == 0)
            variant = (sizes, m.row_index is None, tuple(None if t is None else t.dtype for t in asked))
        pieces: Sequence[Any]
        if variant is not None and all(variant in launch.compiled for launch in plan.launches):
            base = memory.data_ptr()
            pieces = [base + offset for offset in plan.layout.offsets]
            plan.launch(
                variant, (start, stride, vocab_size), given, m, flags, pieces, [_address(t) for t in out]
            )
        else:
            pieces = plan.layout.tensors(memory)
            plan.launch(variant, (logits, stride, vocab_size), asked, m, flags, pieces, out)

    def _describe(
        self,
        plan: _Plan,
        logits: Tensor,
        m: SamplingMetadata,
        memory: Tensor,
        token_ids: Tensor,
        floors: Tensor,
        log_kept: Tensor,
    ) -> LogprobsTensors:
        pieces: list[Tensor] = plan.layout.tensors(memory)
        shape = (logits.shape[0], plan.tiles)
        assert plan.granules is not None  # always there with logprobs
        return describe(
            logits,
            m,
            token_ids,
            pieces[plan.maxima].view(shape),
            pieces[plan.sums].view(shape),
            None if plan.raw_sums is None else pieces[plan.raw_sums].view(shape),
            pieces[plan.granules].view(*shape, GRANULES),
            floors,
            log_kept,
            self._mode,
        )


def _asked(
    m: SamplingMetadata, rows: int, integers: Tensor, truths: Tensor
) -> tuple[int, tuple[Tensor | None, ...]]:
    """(What is there, as bits; the parameters from temperature to joint).

    Tensors that are not there are stood in for, so that one kernel serves every kind of batch.
    """
    fresh = None
    if m.seed is None or not m.facts.all_seeded:
        fresh = torch.empty(rows, dtype=torch.int64, device=integers.device).random_(-(2**63), None)
    reals = m.temperature
    if reals is None and (m.top_p is None or m.min_p is None):
        reals = torch.empty(1, dtype=_REAL, device=integers.device)
    given = (
        (m.row_index, integers),
        (m.seed, integers),
        (m.seeded, truths),
        (fresh, integers),
        (m.positions, integers),
        (m.top_k, integers),
        (m.top_p, reals),
        (m.min_p, reals),
        (m.joint, truths),
    )
    flags = _EXACT if m.facts.max_logprobs is not None else 0
    asked = [None if m.temperature is None else _readable(m.temperature)]
    for bit, (tensor, stand_in) in zip(_BITS, given, strict=True):
        if tensor is None:
            asked.append(stand_in)
        else:
            flags += bit
            asked.append(_readable(tensor))
    return flags, tuple(asked)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _readable(tensor: Tensor) -> Tensor:
    """One element behind the other, as the kernels read them."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make ``device`` the one that Triton launches on, if it is not already."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)
