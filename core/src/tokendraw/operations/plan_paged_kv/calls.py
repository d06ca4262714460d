"""The call of a plan, with the checks of its arguments, and the plan computed on the host.

The checks raise an InvalidInputError that names the argument, what it needs to be and what it is. None reads a value on
a device.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from tokendraw._torch.tensor_checks import (
    check_dense_rows,
    check_device,
    check_dtype,
    check_plain,
    check_vector,
)
from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.input_checks import check_type
from tokendraw.calls.output_checks import first_of, wrong_object
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name
from tokendraw.operations.plan_paged_kv import PagedKVPlannerBackend
from tokendraw.paged_kv import PagedKVPlan
from tokendraw.parameters.ranges import check_flag, integer

_MAX_INT32 = 2**31 - 1
_MEND_OUT = "Pass PagedKVPlan.empty(B, W, device=...)."
_Memory: TypeAlias = dict[str, tuple[int, int]]
"""First and end address of each buffer, by name."""
_checked_buffers: WeakKeyDictionary[PagedKVPlan, tuple[Any, _Memory]] = WeakKeyDictionary()
"""Form of a batch and addresses of the buffers, for each checked plan: engines pass the same buffers at every step."""


@dataclass(slots=True, eq=False)
class PlanPagedKV(Call):
    """Lengths [B] and block table [B, W] of a batch, and the options of the plan."""

    seq_lens: Tensor
    block_table: Tensor
    page_size: int
    page_indices: bool = True
    pad: int = -1
    out: PagedKVPlan | None = None
    written: PagedKVPlan | None = field(default=None, init=False)
    """The buffers of the last run."""

    def check(self, device: torch.device, need: HostNeed) -> None:
        _check_tensors(self.seq_lens, self.block_table, device)
        check_flag("page_indices", self.page_indices)
        self.page_size = integer("page_size", self.page_size, None, 1, _MAX_INT32)
        self.pad = integer("pad", self.pad, None, -(2**31), _MAX_INT32)
        if self.out is not None:
            _check_out(self.out, self.seq_lens, self.block_table, page_indices=self.page_indices)

    def tensors(self) -> dict[str, Tensor]:
        return {"seq_lens": self.seq_lens, "block_table": self.block_table}

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        return replace(self, **tensors)

    def signature(self) -> Hashable:
        return self.block_table.shape[1].bit_length(), self.page_size, self.page_indices

    def run(self, backend: PagedKVPlannerBackend) -> Any:
        table, out = self.block_table, self.out
        if out is None:
            out = PagedKVPlan.empty(*table.shape, device=table.device, page_indices=self.page_indices)
        self.written = out
        return backend.plan(self.seq_lens, table, self.page_size, self.page_indices, self.pad, out)

    def output_check(self, need: HostNeed) -> OutputCheck:
        return lambda output: wrong_object(output, self.written, "the plan that it was given as 'out'")

    def wrong_values(self, output: PagedKVPlan, need: HostNeed) -> str | None:
        for name, values in self._plan_on_the_host().items():
            buffer = getattr(output, name)
            if buffer is None:
                continue
            found = buffer.cpu()
            for (i,) in first_of(found != values):
                return f"{name}[{i}] {int(values[i])}, found {int(found[i])}"
        return None

    def _plan_on_the_host(self) -> dict[str, Tensor]:
        """Compute each field of the plan, in int64."""
        table, page_size = self.block_table.cpu(), self.page_size
        columns = table.shape[1]
        lengths = self.seq_lens.cpu().to(torch.int64).clamp_(0, columns * page_size)
        pages = (lengths + page_size - 1) // page_size
        taken = table[torch.arange(columns, device="cpu") < pages.unsqueeze(1)]
        return {
            "page_indptr": padded(pages.cumsum(0), (1, 0)),
            "last_page_len": torch.where(lengths > 0, (lengths - 1) % page_size + 1, 0),
            "page_indices": padded(taken, (0, table.numel() - len(taken)), value=self.pad),
        }

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]


def _check_tensors(seq_lens: Tensor, block_table: Tensor, device: torch.device) -> None:
    """Refuse anything but lengths [B] and a block table [B, W], both int32 on the planner's device."""
    check_vector("seq_lens", seq_lens)
    _check_int32("seq_lens", seq_lens, device)
    if not seq_lens.is_contiguous():
        raise InvalidInputError(
            f"'seq_lens' needs its lengths one behind the other, found stride {seq_lens.stride(0)}. "
            "Pass seq_lens.contiguous()."
        )
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
    check_dense_rows("block_table", block_table, "pages")
    if requests * columns > _MAX_INT32:
        raise InvalidInputError(
            f"'block_table' needs at most {_MAX_INT32} pages, as many as int32 counts, found {requests} rows of "
            f"{columns}. Plan fewer requests in a call."
        )


def _check_int32(name: str, tensor: Tensor, device: torch.device) -> None:
    check_dtype(name, tensor, torch.int32, f"Pass {name}.to(torch.int32).")
    check_device(name, tensor, device, "planner")


def _check_out(out: PagedKVPlan, seq_lens: Tensor, block_table: Tensor, *, page_indices: bool) -> None:
    """Refuse buffers unfit for a plan of these inputs."""
    check_type("out", out, PagedKVPlan, _MEND_OUT)
    requests, columns = block_table.shape
    form = requests, columns, page_indices, seq_lens.device
    checked = _checked_buffers.get(out)
    if checked is None or checked[0] != form:
        checked = _checked_buffers[out] = form, _memory_of(out, *form)
    if requests:
        start = seq_lens.data_ptr()
        _check_apart(checked[1], "seq_lens", start, start + 4 * requests)
    if requests and columns:
        start, rows = block_table.data_ptr(), (requests - 1) * block_table.stride(0)
        _check_apart(checked[1], "block_table", start, start + 4 * (rows + columns))


def _memory_of(
    out: PagedKVPlan, requests: int, columns: int, page_indices: bool, device: torch.device
) -> _Memory:
    """Check the buffers alone, and return their addresses."""
    if (out.page_indices is not None) is not page_indices:
        needed, mend = ("a buffer", "page_indices=False") if page_indices else ("None", "page_indices=True")
        raise InvalidInputError(
            f"'out.page_indices' needs {needed} with page_indices={page_indices}, found "
            f"{type_name(out.page_indices)}. Pass other buffers, or {mend}."
        )
    sizes = {"page_indptr": requests + 1, "last_page_len": requests}
    if page_indices:
        sizes["page_indices"] = requests * columns
    memory: _Memory = {}
    for buffer_name, size in sizes.items():
        name, buffer = f"out.{buffer_name}", getattr(out, buffer_name)
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
        if size:
            start, end = buffer.data_ptr(), buffer.data_ptr() + 4 * size
            _check_apart(memory, name, start, end, is_buffer=True)
            memory[name] = start, end
    return memory


def _check_apart(memory: _Memory, other: str, start: int, end: int, *, is_buffer: bool = False) -> None:
    """Refuse an overlap in memory of the buffers with an input, or with another buffer."""
    for name, (from_, to) in memory.items():
        if from_ < end and start < to:
            subject, other = (other, name) if is_buffer else (name, other)
            raise InvalidInputError(
                f"'{subject}' needs memory of its own, found some of '{other}'. {_MEND_OUT}"
            )
