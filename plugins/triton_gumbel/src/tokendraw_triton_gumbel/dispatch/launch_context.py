"""A call under way: its scratch, the arguments for its tensors, and the stream that its kernels go to."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tokendraw import LogprobsTensors, SamplingMetadata
from tokendraw_triton_gumbel.dispatch.compiled_call import Call
from tokendraw_triton_gumbel.host.arguments import Arguments
from tokendraw_triton_gumbel.host.geometry import Geometry
from tokendraw_triton_gumbel.host.launch import Operands, Step, current_stream, group
from tokendraw_triton_gumbel.host.params_layout import MaybeTensors
from tokendraw_triton_gumbel.host.tuning import FEW_ROWS
from tokendraw_triton_gumbel.launches.topk_logprobs import describe_many


class Run:
    """Scratch and arguments of one call. Nothing of it outlives the call but what the call returns."""

    __slots__ = ("_aside", "_call", "_fresh", "_logits", "_memory", "_params", "_stream", "given", "operands")

    def __init__(
        self,
        call: Call,
        geometry: Geometry,
        logits: Tensor,
        params: MaybeTensors,
        arguments: Arguments,
        flags: int = 0,
    ) -> None:
        """Allocate scratch, and draw fresh seeds from torch's generator where a row may need one.

        :param geometry: of the size of the call.
        :param logits: [rows, V].
        :param params: what :func:`.host.params_layout.readable` returned.
        :param flags: bits beside those of the variant.
        """
        rows = logits.shape[0]
        # What kernels are given the address of has to live until they are launched.
        self._fresh = call.whole.new_empty(rows) if call.variant.fresh else None
        self._aside = None if self._fresh is None else _fill(self._fresh)
        self._memory = call.byte.new_empty(geometry.offsets[-1])
        self._call, self._logits, self._params = call, logits, params
        self._stream = current_stream(call.device)
        self.given = arguments.tensors
        """Gives what stands for tensors, and None for None."""
        head = arguments.one(logits), logits.stride(0)
        asked = arguments.params(params, self._fresh)
        pieces = arguments.pieces(call.scratch, geometry, self._memory)
        self.operands = group(Operands, (geometry, head, asked, call.flags | flags, pieces))

    def launch(self, steps: Iterable[Step]) -> None:
        """Launch kernels, one behind the other: the first looks at no seeds, the others may."""
        for launch, grid, arguments in steps:
            launch(grid, arguments, self._stream)
            if self._aside is not None:
                torch.cuda.current_stream(self._logits.device).wait_stream(self._aside)
                self._aside = None

    def describe(
        self,
        m: SamplingMetadata,
        drawn: tuple[Tensor, Tensor, Tensor],
        ranks: Tensor | None,
        best: tuple[Tensor, Tensor] | None,
    ) -> LogprobsTensors:
        """Describe the drawn tokens.

        :param drawn: token ids [rows] int64; floors [rows] float32, where ``x >= floor`` is kept; log_kept_mass [rows].
        :param ranks: what :meth:`.dispatch.compiled_call.Call.room_for_logprobs` returned, ``best`` too.
        """
        logprobs, draw = self._call.logprobs, self._call.draw
        assert logprobs is not None  # a batch without logprobs has nothing to describe
        *drawn_given, its_ranks, wanted = self.given((*drawn, ranks, self._params[-1]))
        to_fill = None if best is None or self._call.describes_drawn else self.given(best)
        self.launch(logprobs.steps(self.operands, wanted, drawn_given, ranks=its_ranks, best=to_fill))
        if best is None:
            maxima = self.by_row(draw.maxima, draw.tiles)
            sums = self.by_row(draw.sums if draw.raw_sums is None else draw.raw_sums, draw.tiles)
            token_ids, floors, log_kept = drawn
            best = describe_many(
                self._logits,
                m,
                token_ids,
                maxima,
                sums,
                floors,
                log_kept,
                logprobs.mode,
                logprobs.num_best,
            )
        return LogprobsTensors(*best, ranks)

    def by_row(self, piece: int, *shape: int) -> Tensor:
        """Return what a piece of scratch holds of the rows of the target, or of what is sampled from: [rows, ...]."""
        geometry = self.operands.geometry
        rows = geometry.size.rows
        found = self._call.scratch.piece(piece, self._memory, geometry.offsets[piece], rows)
        return found.view(rows, *shape)


def _fill(seeds: Tensor) -> torch.cuda.Stream | None:
    """Draw seeds [rows] int64 from torch's generator; return the stream that does it, if it is not the current one.

    In a CUDA graph of few rows it is a branch of its own, so that the first launch need not wait for it: 64 rows take 3
    to 6 % less on an H200, one row 9 to 13 %, and 256 rows would take 2 to 4 % more.
    """
    is_branch = seeds.is_cuda and torch.version.hip is None and len(seeds) <= FEW_ROWS
    if not (is_branch and torch.cuda.is_current_stream_capturing()):
        seeds.random_(-(2**63), None)
        return None
    aside = torch.cuda.Stream(seeds.device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(seeds.device))
    with torch.cuda.stream(aside):
        seeds.random_(-(2**63), None)
    return aside
