"""Sees on a CPU what would wait for a CUDA device: results that the host has to know to go on, and blocking copies."""

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

    def __init__(self):
        super().__init__()
        self._literals = []
        """Tensors made of numbers in the code. A copy of one to a device blocks: ``x[0] = 0`` makes one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self._waits(function.overloadpacket.__name__, args, kwargs or {}):
            raise AssertionError(f"{function} waits for the device")
        output = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ == "lift_fresh":
            self._literals.append(output)
        return output

    def _waits(self, name, args, kwargs):
        if name in INDEXING:
            return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if name == "repeat_interleave":
            return kwargs.get("output_size") is None
        if name == "lift_fresh":
            return args[0].dim() > 0  # a list: ``torch.tensor``, or an index
        if name == "copy_":
            return any(args[1] is literal for literal in self._literals)
        return name in WAITING
