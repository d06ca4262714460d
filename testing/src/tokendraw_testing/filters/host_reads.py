"""Finds torch operations that read a value on the host, which waits for an accelerator, on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_READS: Final = frozenset(
    (
        *(
            "__array__",
            "__bool__",
            "__complex__",
            "__contains__",
            "__float__",
            "__format__",
            "__index__",
            "__int__",
        ),
        *("__repr__", "allclose", "argwhere", "bincount", "cpu", "equal", "histc", "is_nonzero", "item"),
        *("masked_select", "nonzero", "numpy", "tolist", "unique", "unique_consecutive"),
    )
)
_INDEXING: Final = ("__getitem__", "__setitem__")
_COPIES: Final = ("as_tensor", "tensor")


class HostRead(Exception):  # noqa: N818 - a finding about a filter
    """A torch operation read a value on the host; the message names the operation."""


class NoHostReads(TorchFunctionMode):
    """Context that raises :class:`HostRead` for operations with a read on the host."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, or refuse it."""
        name, options = getattr(func, "__name__", str(func)), dict(kwargs or {})
        if name in _READS or _waits(name, args, options):
            raise HostRead(f"{name} reads a value on the host")
        return func(*args, **options)


def _waits(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Tell whether the arguments of an operation make the host wait."""
    if name in _INDEXING:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in index)
    if name in _COPIES:  # from the host to a device, or a tensor's value
        return "device" in options or isinstance(args[0], Tensor)
    if name == "to":
        return any(str(each) == "cpu" for each in (*args[1:], *options.values()))
    return name == "where" and len(args) + len(options) == 1
