"""Checks the arguments of a plan before anything runs. No value on a device is read."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import check_plain, check_vector, is_plain, same_device
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import format_value, type_name
from tokendraw.paged_kv import PagedKVPlan
from tokendraw.parameters.ranges import integer

_LARGEST = 2**31 - 1
_MEND_OUT = "Pass PagedKVPlan.empty(B, W, device=...)."
_known: WeakKeyDictionary[PagedKVPlan, tuple[Any, dict[str, tuple[int, int]]]] = WeakKeyDictionary()
"""Buffers that were found to fit: for which form of a batch, and their addresses. Engines pass the same at every step,
and a tensor keeps its memory."""


def check_tensors(seq_lens: Tensor, block_table: Tensor, device: torch.device) -> None:
    """Refuse what is no vector of lengths [B] or no block table [B, W], of int32 on the planner's device.

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
    if requests * columns > _LARGEST:
        raise InvalidInputError(
            f"'block_table' needs at most {_LARGEST} pages, as many as int32 counts, found {requests} rows of "
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
    return integer("page_size", page_size, None, 1, _LARGEST), integer("pad", pad, None, -(2**31), _LARGEST)


def check_out(out: PagedKVPlan, seq_lens: Tensor, block_table: Tensor, *, page_indices: bool) -> None:
    """Refuse buffers that a plan of these inputs cannot be written to.

    :raises InvalidInputError: names the buffer, what it needs to be and what it is.
    """
    if not isinstance(out, PagedKVPlan):
        raise InvalidInputError(f"'out' needs a tokendraw.PagedKVPlan, found {type_name(out)}. {_MEND_OUT}")
    requests, columns = block_table.shape
    form = requests, columns, page_indices, seq_lens.device
    known = _known.get(out)
    if known is None or known[0] != form:
        known = _known[out] = form, _memory(out, *form)
    if requests:
        start = seq_lens.data_ptr()
        _check_apart(known[1], "seq_lens", start, start + 4 * requests)
    if requests and columns:
        start, rows = block_table.data_ptr(), (requests - 1) * block_table.stride(0)
        _check_apart(known[1], "block_table", start, start + 4 * (rows + columns))


def _memory(
    out: PagedKVPlan, requests: int, columns: int, page_indices: bool, device: torch.device
) -> dict[str, tuple[int, int]]:
    """Check the buffers alone, and return the addresses of each: of its first byte, and behind its last."""
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
    if not same_device(tensor.device, device):
        raise InvalidInputError(
            f"'{name}' needs device {device}, where the planner was built, found {tensor.device}. "
            f"Move it, or load a planner for {tensor.device}."
        )


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
    """Refuse buffers that share memory with an input."""
    for name, (from_, to) in memory.items():
        if from_ < end and start < to:
            raise _overlap(name, other)


def _overlap(name: str, other: str) -> InvalidInputError:
    return InvalidInputError(f"'{name}' needs memory of its own, found some of '{other}'. {_MEND_OUT}")
