"""The call of a plan, and the checks of its arguments: none reads a value on a device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import check_device, check_plain, check_vector, is_plain
from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name
from tokendraw.operations.plan_paged_kv.backend import PagedKVPlannerBackend
from tokendraw.operations.plan_paged_kv.proof import wrong_plan
from tokendraw.paged_kv import PagedKVPlan
from tokendraw.parameters.ranges import integer

_MAX_INT32 = 2**31 - 1
_MEND_OUT = "Pass PagedKVPlan.empty(B, W, device=...)."
_checked_buffers: WeakKeyDictionary[PagedKVPlan, tuple[Any, dict[str, tuple[int, int]]]] = WeakKeyDictionary()
"""Form of a batch and addresses of the buffers, for each checked plan: engines pass the same buffers at every step."""


def check_tensors(seq_lens: Tensor, block_table: Tensor, device: torch.device) -> None:
    """Refuse anything but lengths [B] and a block table [B, W], both int32 on the planner's device.

    :raises InvalidInputError: names the argument, what it needs to be and what it is.
    """
    check_vector("seq_lens", seq_lens)
    _check_int32("seq_lens", seq_lens, device)
    if not seq_lens.is_contiguous():
        raise InvalidInputError(
            f"'seq_lens' needs its lengths one behind the other, found stride {seq_lens.stride(0)}. "
            "Pass seq_lens.contiguous()."
        )
    if not is_plain(block_table):
        check_plain("block_table", block_table)
    shape = block_table.shape
    if len(shape) != 2:
        raise InvalidInputError(f"'block_table' needs shape [B, W], found {list(shape)}.")
    _check_int32("block_table", block_table, device)
    requests, columns = shape
    if requests != seq_lens.shape[0]:
        raise InvalidInputError(
            f"'block_table' needs a row for each length in 'seq_lens', {seq_lens.shape[0]}, found {requests}."
        )
    if columns > 1 and block_table.stride(1) != 1:
        raise InvalidInputError(
            f"'block_table' needs the pages of a row one behind the other, found stride {block_table.stride(1)}. "
            "Pass block_table.contiguous()."
        )
    if requests * columns > _MAX_INT32:
        raise InvalidInputError(
            f"'block_table' needs at most {_MAX_INT32} pages, as many as int32 counts, found {requests} rows of "
            f"{columns}. Plan fewer requests in a call."
        )


def check_numbers(page_size: int, page_indices: bool, pad: int) -> tuple[int, int]:
    """Return page size and padding as Python's own integers.

    :raises InvalidParameterError: names the argument, what it needs to be and what it is.
    """
    if type(page_indices) is not bool:
        raise InvalidParameterError(
            f"'page_indices' needs True or False, found {format_value(page_indices)}."
        )
    return integer("page_size", page_size, None, 1, _MAX_INT32), integer(
        "pad", pad, None, -(2**31), _MAX_INT32
    )


def check_out(out: PagedKVPlan, seq_lens: Tensor, block_table: Tensor, *, page_indices: bool) -> None:
    """Refuse buffers unfit for a plan of these inputs.

    :raises InvalidInputError: names the buffer, what it needs to be and what it is.
    """
    if not isinstance(out, PagedKVPlan):
        raise InvalidInputError(f"'out' needs a tokendraw.PagedKVPlan, found {type_name(out)}. {_MEND_OUT}")
    requests, columns = block_table.shape
    form = requests, columns, page_indices, seq_lens.device
    checked = _checked_buffers.get(out)
    if checked is None or checked[0] != form:
        checked = _checked_buffers[out] = form, _memory(out, *form)
    if requests:
        start = seq_lens.data_ptr()
        _check_apart(checked[1], "seq_lens", start, start + 4 * requests)
    if requests and columns:
        start, rows = block_table.data_ptr(), (requests - 1) * block_table.stride(0)
        _check_apart(checked[1], "block_table", start, start + 4 * (rows + columns))


def _memory(
    out: PagedKVPlan, requests: int, columns: int, page_indices: bool, device: torch.device
) -> dict[str, tuple[int, int]]:
    """Check the buffers alone, and return the first and the end address of each."""
    if (out.page_indices is not None) is not page_indices:
        needed, mend = ("a buffer", "page_indices=False") if page_indices else ("None", "page_indices=True")
        raise InvalidInputError(
            f"'out.page_indices' needs {needed} with page_indices={page_indices}, found "
            f"{type_name(out.page_indices)}. Pass other buffers, or {mend}."
        )
    sizes = {"page_indptr": requests + 1, "last_page_len": requests}
    if page_indices:
        sizes["page_indices"] = requests * columns
    memory: dict[str, tuple[int, int]] = {}
    for field, size in sizes.items():
        name, buffer = f"out.{field}", getattr(out, field)
        _check_buffer(name, buffer, size, device)
        if size:
            start = buffer.data_ptr()
            for other, (from_, to) in memory.items():
                if start < to and from_ < start + 4 * size:
                    raise _overlap(name, other)
            memory[name] = start, start + 4 * size
    return memory


def _check_int32(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.dtype is not torch.int32:
        raise InvalidInputError(
            f"'{name}' needs dtype torch.int32, found {tensor.dtype}. Pass {name}.to(torch.int32)."
        )
    check_device(name, tensor, device, "planner")


def _check_buffer(name: str, buffer: Any, size: int, device: torch.device) -> None:
    if not is_plain(buffer):
        check_plain(name, buffer)
    if buffer.shape != (size,) or buffer.dtype is not torch.int32 or buffer.device != device:
        raise InvalidInputError(
            f"'{name}' needs [{size}] torch.int32 on {device}, found {list(buffer.shape)} {buffer.dtype} on "
            f"{buffer.device}. {_MEND_OUT}"
        )
    if not buffer.is_contiguous():
        raise InvalidInputError(
            f"'{name}' needs its elements one behind the other, found stride {buffer.stride(0)}. {_MEND_OUT}"
        )


def _check_apart(memory: dict[str, tuple[int, int]], other: str, start: int, end: int) -> None:
    """Refuse buffers overlapping an input in memory."""
    for name, (from_, to) in memory.items():
        if from_ < end and start < to:
            raise _overlap(name, other)


def _overlap(name: str, other: str) -> InvalidInputError:
    return InvalidInputError(f"'{name}' needs memory of its own, found some of '{other}'. {_MEND_OUT}")


class PlanPagedKV(Call):
    """Lengths [B] and block table [B, W] of a batch, and the options of the plan."""

    __slots__ = ("block_table", "out", "pad", "page_indices", "page_size", "seq_lens", "written")

    def __init__(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> None:
        self.seq_lens = seq_lens
        self.block_table = block_table
        self.page_size = page_size
        self.page_indices = page_indices
        self.pad = pad
        self.out = out
        self.written: PagedKVPlan | None = None  # the buffers of the last run

    def check(self, device: torch.device, need: HostNeed) -> None:
        check_tensors(self.seq_lens, self.block_table, device)
        self.page_size, self.pad = check_numbers(self.page_size, self.page_indices, self.pad)
        if self.out is not None:
            check_out(self.out, self.seq_lens, self.block_table, page_indices=self.page_indices)

    def tensors(self) -> dict[str, Tensor]:
        return {"seq_lens": self.seq_lens, "block_table": self.block_table}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(
            tensors["seq_lens"],
            tensors["block_table"],
            self.page_size,
            self.page_indices,
            self.pad,
            self.out,
        )

    def signature(self) -> Hashable:
        return self.block_table.shape[1].bit_length(), self.page_size, self.page_indices

    def run(self, backend: PagedKVPlannerBackend) -> Any:
        seq_lens, block_table = self.seq_lens, self.block_table
        out = self.out
        if out is None:
            rows, columns = block_table.shape
            out = PagedKVPlan.empty(rows, columns, device=seq_lens.device, page_indices=self.page_indices)
        self.written = out
        return backend.plan(seq_lens, block_table, self.page_size, self.page_indices, self.pad, out)

    def output_check(self, need: HostNeed) -> OutputCheck:
        return self._misplaced  # of this call alone: plans are not cached

    def _misplaced(self, output: object) -> str | None:
        if output is self.written:
            return None
        other = "another " if isinstance(output, PagedKVPlan) else ""
        return f"the plan that it was given as 'out', found {other}{type(output).__name__}"

    def wrong_values(self, output: PagedKVPlan, need: HostNeed) -> str | None:
        return wrong_plan(output, self.seq_lens, self.block_table, self.page_size, self.pad)

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]
