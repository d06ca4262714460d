"""Reads token ids from a caller into a tensor on the host, at a few nanoseconds an id."""

from __future__ import annotations

import marshal
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import INTEGERS, check_integers, check_vector, is_plain
from tokendraw._torch.threads import one_thread
from tokendraw.parameters.fields import each, integers
from tokendraw.parameters.history_edits import MAX_ID

NO_IDS = torch.empty(0, dtype=torch.int64, device="cpu")
_BUFFER_DTYPES = {
    "b": torch.int8,
    "B": torch.uint8,
    "h": torch.int16,
    "i": torch.int32,
    "q": torch.int64,
    "l": torch.int64 if array("l").itemsize == torch.int64.itemsize else torch.int32,
}
"""Dtype of integers in a buffer, by the format of the buffer."""
_LONG_LIST_IDS = 512
_MARSHAL_VERSION = 2  # the last without references to earlier objects
_MARSHAL_HEADER = 5
_MARSHAL_INT = b"i"
_MARSHAL_INT_BYTES = 5


def read_tokens(name: str, tokens: Iterable[int] | Tensor, owner: str) -> Tensor:
    """Return the tokens of a history as [n] int64.

    :param owner: the request in words, for the message.
    :raises InvalidParameterError: an entry is no integer.
    :raises InvalidInputError: a tensor of another form.
    """
    if isinstance(tokens, Tensor):
        check_vector(name, tokens)
        check_integers(name, tokens)
        return tokens.to("cpu", torch.int64)
    if type(tokens) is tuple and not tokens:
        return NO_IDS
    values = _sequence(name, tokens, owner)
    ids = _integers(values)
    if ids is None:
        numbers = integers(name, values, -math.inf, math.inf, "integers", row=owner)
        ids = host_ids([max(-1, min(number, MAX_ID + 1)) for number in numbers])
    return ids


def read_ids(field: str, ids: Iterable[int] | None, owner: str, vocab_size: int) -> Tensor:
    """Return token ids of a parameter as [n] int64, nothing for None.

    :param owner: the request in words, for the message.
    :raises InvalidParameterError: an entry is no integer in [0, V).
    """
    if ids is None:
        return NO_IDS
    values = _sequence(field, ids, owner)
    with one_thread():
        fast_ids = _integers(values)
        if fast_ids is not None and are_within(fast_ids, 0, vocab_size - 1):
            return fast_ids
    needed = f"token ids in [0, {vocab_size})"
    return host_ids(integers(field, values, 0, vocab_size - 1, needed, row=owner))


def are_within(ids: Tensor, least: int, largest: int) -> bool:
    """Whether all ids [n] on the host are in [least, largest]."""
    if not ids.shape[0]:
        return True
    first, last = ids.aminmax()
    return least <= first.item() and last.item() <= largest


def host_ids(values: Sequence[int]) -> Tensor:
    """Return ints of Python as [n] int64."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else NO_IDS


def _sequence(name: str, values: Iterable[Any], owner: str) -> Sequence[Any]:
    """Return values that can be read twice."""
    if isinstance(values, (list, tuple, Tensor)) or hasattr(values, "__array_interface__"):
        return values  # type: ignore[return-value]
    return list(each(name, values, "integers", owner))


def _integers(values: Sequence[Any]) -> Tensor | None:
    """Return integers as [n] int64, or None: a value is of another type, or too large."""
    if isinstance(values, Tensor):
        is_vector = is_plain(values) and values.dim() == 1 and values.dtype in INTEGERS
        return values.to("cpu", torch.int64) if is_vector else None
    if not isinstance(values, (list, tuple)):
        return _of_buffer(values)
    if len(values) >= _LONG_LIST_IDS:
        return _of_long_list(values)
    try:
        return host_ids(values) if {*map(type, values)} <= {int} else None
    except OverflowError:
        return None


def _of_buffer(values: Any) -> Tensor | None:
    """Read a vector such as an array of numpy."""
    try:
        view = memoryview(values)
    except (TypeError, ValueError, BufferError):
        return None
    dtype = _BUFFER_DTYPES.get(view.format)
    if dtype is None or view.ndim != 1:
        return None
    return torch.frombuffer(bytearray(view), dtype=dtype).to(torch.int64) if len(view) else NO_IDS


def _of_long_list(values: Any) -> Tensor | None:
    """Read a list through marshal, which writes each int32 as a tag and four bytes in a single pass.

    Where every fifth byte is the tag, each value is an int: the type of a value is seen from the tag in front of it.
    """
    try:
        written = marshal.dumps(values, _MARSHAL_VERSION)
    except ValueError:
        return None
    size = _MARSHAL_HEADER + _MARSHAL_INT_BYTES * len(values)
    if len(written) != size or written[_MARSHAL_HEADER::_MARSHAL_INT_BYTES] != _MARSHAL_INT * len(values):
        return None
    entries = torch.frombuffer(bytearray(written), dtype=torch.uint8)[_MARSHAL_HEADER:]
    numbers = entries.view(-1, _MARSHAL_INT_BYTES)[:, 1:]
    with one_thread():
        return numbers.contiguous().view(torch.int32).view(-1).to(torch.int64)
