"""Page plans: the description of ``plan``, from which ``tokendraw.load("plan_paged_kv")`` is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from tokendraw import InvalidInputError
from tokendraw.plugin import (
    check_dense_rows,
    check_device,
    check_dtype,
    check_flag,
    check_plain,
    check_vector,
    integer,
)
from tokendraw_engine_ops.operations import PLAN
from tokendraw_engine_ops.paged_kv import LARGEST, PagedKVPlan
from tokendraw_engine_ops.tensor_function import TensorFunction, tensor_operation

_FIX_OUT = "Pass PagedKVPlan.empty(B, W, device=...)."
_checked_buffers: WeakKeyDictionary[PagedKVPlan, tuple[Any, ...]] = WeakKeyDictionary()
"""Form of a batch for each checked plan: engines pass the same buffers at every step."""


def _plan(
    seq_lens: Tensor,
    block_table: Tensor,
    page_size: int,
    page_indices: bool = True,
    pad: int = -1,
    out: PagedKVPlan | None = None,
) -> dict[str, Any]:
    """Plan the pages of a batch, without a wait for the device: see engine_ops/paged-kv.md. Returns a PagedKVPlan.

    :param seq_lens: [B] int32, the number of tokens of each request; below 0 counts as 0, above W * page_size as that.
    :param block_table: [B, W] int32, the pages of each request in order; any row stride.
    :param page_size: tokens of a page, from 1.
    :param page_indices: whether to write the pages of all requests one behind the other.
    :param pad: value behind the last of these pages.
    :param out: buffers to write to, apart from each other and from the inputs; None: new ones.
    :raises InvalidInputError: a ValueError, before anything is launched.
    """
    return locals()


def _check(
    device: torch.device,
    seq_lens: Tensor,
    block_table: Tensor,
    page_size: int,
    page_indices: bool,
    pad: int,
    out: PagedKVPlan | None,
) -> Mapping[str, Any]:
    check_vector("seq_lens", seq_lens)
    check_plain("block_table", block_table)
    for name, tensor in (("seq_lens", seq_lens), ("block_table", block_table)):
        check_dtype(name, tensor, torch.int32, f"Pass {name}.to(torch.int32).")
        check_device(name, tensor, device, "planner")
    if not seq_lens.is_contiguous():
        raise InvalidInputError(
            f"'seq_lens' needs its lengths one behind the other, found stride {seq_lens.stride(0)}. "
            "Pass seq_lens.contiguous()."
        )
    if block_table.dim() != 2:
        raise InvalidInputError(f"'block_table' needs shape [B, W], found {list(block_table.shape)}.")
    requests, columns = block_table.shape
    if requests != seq_lens.shape[0]:
        raise InvalidInputError(
            f"'block_table' needs a row for each length in 'seq_lens', {seq_lens.shape[0]}, found {requests}."
        )
    check_dense_rows("block_table", block_table, "pages")
    if requests * columns > LARGEST:
        raise InvalidInputError(
            f"'block_table' needs at most {LARGEST} pages, as many as int32 counts, found {requests} rows of "
            f"{columns}. Plan fewer requests in a call."
        )
    check_flag("page_indices", page_indices)
    if out is not None:
        if not isinstance(out, PagedKVPlan):
            raise InvalidInputError(f"'out' needs a PagedKVPlan, found {type(out).__name__}. {_FIX_OUT}")
        form = requests, columns, page_indices, device
        if _checked_buffers.get(out) != form:
            _check_out(out, *form)
            _checked_buffers[out] = form
    return {
        "page_size": integer("page_size", page_size, None, 1, LARGEST),
        "pad": integer("pad", pad, None, -(2**31), LARGEST),
    }


def _check_out(
    out: PagedKVPlan, requests: int, columns: int, page_indices: bool, device: torch.device
) -> None:
    """Refuse buffers unfit for a plan."""
    sizes = {"page_indptr": requests + 1, "last_page_len": requests}
    if page_indices:
        sizes["page_indices"] = requests * columns
    if (out.page_indices is not None) is not page_indices:
        needed = "a buffer" if page_indices else "None"
        found = type(out.page_indices).__name__
        raise InvalidInputError(
            f"'out.page_indices' needs {needed} as page_indices= says, found {found}. {_FIX_OUT}"
        )
    for name, size in sizes.items():
        buffer = getattr(out, name)
        check_plain(f"out.{name}", buffer)
        if buffer.shape != (size,) or buffer.dtype is not torch.int32 or not buffer.is_contiguous():
            raise InvalidInputError(
                f"'out.{name}' needs [{size}] torch.int32, one behind the other, found {list(buffer.shape)} "
                f"{buffer.dtype}, stride {list(buffer.stride())}. {_FIX_OUT}"
            )
        check_device(f"out.{name}", buffer, device, "planner")


def _reference(
    seq_lens: Tensor, block_table: Tensor, page_size: int, page_indices: bool, pad: int, **_: Any
) -> PagedKVPlan:
    """Compute the plan in int64."""
    columns = block_table.shape[1]
    lengths = seq_lens.to(torch.int64).clamp_(0, columns * page_size)
    pages = (lengths + page_size - 1) // page_size
    taken = block_table[torch.arange(columns) < pages.unsqueeze(1)]
    behind = 0, block_table.numel() - len(taken)
    return PagedKVPlan(
        page_indptr=padded(pages.cumsum(0), (1, 0)),
        last_page_len=torch.where(lengths > 0, (lengths - 1) % page_size + 1, 0),
        page_indices=padded(taken, behind, value=pad) if page_indices else None,
    )


def _make(generator: torch.Generator, size: tuple[int, ...]) -> dict[str, Any]:
    """Make requests of random lengths, every third full to a page's edge, for a size (B, W, page size)."""
    requests, columns, page_size = size
    lengths = torch.randint(columns * page_size + 1, (requests,), generator=generator)
    lengths[::3] = lengths[::3] // page_size * page_size
    table = torch.randperm(requests * columns, generator=generator).view(requests, columns) + 1
    return {"seq_lens": lengths.int(), "block_table": table.int(), "page_size": page_size}


def _edges(generator: torch.Generator) -> list[dict[str, Any]]:
    """Make lengths out of range and at the edges of pages, odd paddings, page sizes and strides, and empty batches."""
    least, most = -(2**31), LARGEST
    wild = torch.tensor([-1, 5, -16, least, 65, 80, most, most - 15], dtype=torch.int32)
    edges = torch.tensor([0, 0, 7, 0, 15, 16, 17, 33], dtype=torch.int32)
    wide = _make(generator, (16, 9, 16))["block_table"]
    table = wide[:8, :4]
    cases: list[tuple[Tensor, Tensor, int, dict[str, Any]]] = [
        *((lengths, table, 16, {"pad": pad}) for lengths in (wild, edges) for pad in (0, 7, least, most)),
        *((edges, table, size, {}) for size in (1, 2, 2**29 + 1, 2**30, most)),
        *((wild, table, size, {"page_indices": False}) for size in (3, 16, most)),
        *((edges, view, 16, {}) for view in (wide[::2, 2:7], wide[8:, 8:], wide[3:4, :5].expand(8, 5))),
        *((edges[:rows], table[:rows, :columns], 16, {}) for rows, columns in ((8, 0), (0, 4))),
    ]
    return [{"seq_lens": n, "block_table": t, "page_size": size, **more} for n, t, size, more in cases]


FUNCTIONS = {
    "plan": TensorFunction(
        signature=_plan,
        check=_check,
        out=lambda block_table, page_indices, **_: PagedKVPlan.empty(
            *block_table.shape, device=block_table.device, page_indices=page_indices
        ),
        reference=_reference,
        make=_make,
        edges=_edges,
        sizes=((3, 3, 4), (1, 1, 1), (7, 5, 3), (33, 33, 128), (1024, 64, 16)),
        timed={
            "quick": ((1, 64, 16), (256, 64, 16)),
            "design": (
                *((1, 64, 16), (1, 8192, 16), (16, 64, 16), (256, 64, 16), (256, 512, 16), (1024, 128, 16)),
                *((1024, 512, 16), (4096, 512, 16), (16_384, 256, 16)),
            ),
        },
    )
}
CALLS, PROVIDER, prove = tensor_operation(
    PLAN, FUNCTIONS, "Computes the page metadata of batches on the device."
)
