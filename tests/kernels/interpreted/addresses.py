"""Notes accesses of interpreted kernels to memory outside of the tensors that they were given."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
from triton.runtime import interpreter

_BUILDER, _EXECUTOR = interpreter.InterpreterBuilder, interpreter.GridExecutor
POINTERS_AND_MASK = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}
"""Positions of the pointers and of the mask in the arguments of the builder's methods."""


VECTOR_BYTES = 16
"""A load of a vector may begin before a row: no page of memory begins within a vector."""


def _extents(arguments):
    """Yield the first address that a kernel may read of each tensor, and the address behind the tensor."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _extents(argument)
        elif hasattr(argument, "data_ptr") and argument.numel():
            last = sum(
                (size - 1) * stride for size, stride in zip(argument.shape, argument.stride(), strict=True)
            )
            first = argument.data_ptr() // VECTOR_BYTES * VECTOR_BYTES
            yield first, argument.data_ptr() + (last + 1) * argument.element_size()


@contextmanager
def noted_accesses():
    """Yield a list to which each access outside adds the builder's method and the number of lanes."""
    outside, firsts, ends = [], np.empty(0, np.uint64), np.empty(0, np.uint64)

    def checked(method, original, pointers, mask):
        def access(self, *arguments):
            addresses = arguments[pointers].data
            is_read = arguments[mask].data.astype(bool)  # a mask of scalars may be of integers
            addresses = addresses[np.broadcast_to(is_read, addresses.shape)].ravel()
            index = np.searchsorted(firsts, addresses, side="right") - 1
            is_outside = (index < 0) | (addresses >= ends[np.maximum(index, 0)])
            if is_outside.any():
                outside.append((method, int(is_outside.sum())))
            return original(self, *arguments)

        return access

    def init_arguments(self, *arguments):
        nonlocal firsts, ends
        result = original_init(self, *arguments)
        extents = np.array(sorted(_extents((*result[0], *result[1].values()))), np.uint64)
        firsts, ends = extents[:, 0], np.maximum.accumulate(extents[:, 1])
        return result

    original_init = _EXECUTOR._init_args_hst
    methods = {
        method: checked(method, getattr(_BUILDER, method), *positions)
        for method, positions in POINTERS_AND_MASK.items()
    }
    with (
        mock.patch.multiple(_BUILDER, **methods),
        mock.patch.object(_EXECUTOR, "_init_args_hst", init_arguments),
    ):
        yield outside
