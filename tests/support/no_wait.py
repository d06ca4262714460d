"""Sees on a CPU what would wait for a CUDA device: operations whose result the host has to know to go on."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = frozenset(
    (
        "_local_scalar_dense",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
        "_unique",
        "_unique2",
    )
)
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))


class NoWait(TorchDispatchMode):
    """Raises where torch would wait for a device inside a ``with`` statement."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        waits = name in WAITING
        if name in INDEXING:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if name == "repeat_interleave":
            waits = (kwargs or {}).get("output_size") is None
        if waits:
            raise AssertionError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))
