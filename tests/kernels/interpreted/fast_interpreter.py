"""Run a function of this folder in Triton's interpreter, several times as fast as Triton alone; print JSON.

``python fast_interpreter.py draws kit 0 2 sample`` runs ``draws.kit("0", "2", "sample")``.
Every operation on a block of some thousand numbers costs tens of objects around one call of numpy. What follows from
types and shapes alone is computed here once for each of them, and reductions and scans take whole arrays at a time.
Written for Triton 3.6 and 3.7; nothing changes what is computed.
"""

import builtins
import gc
import importlib
import json
import math
import os
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("ignore")  # numpy, with which it computes, tells of every overflow to infinity

import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from addresses import noted_accesses  # noqa: E402
from triton.language import core  # noqa: E402
from triton.runtime import interpreter  # noqa: E402


def hurry():
    """Patch the interpreter of this process.

    It patches triton.language anew in every call of one jit function from another: here once, for good. It checks
    integers for overflow and the sizes of what it made itself: here the kernels' own ``device_assert`` alone.
    """
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: SimpleNamespace(restore=lambda: None)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False, debug=True)
    interpreter.ReduceOps.generic_reduce = _reduce_by_pairs
    interpreter.ScanOps.generic_scan = _scan_by_doubling
    interpreter.TensorHandle.__post_init__ = lambda self: None
    interpreter._get_np_dtype = _np_dtype
    core.tensor.__init__ = _tensor
    core.block_type.__init__ = _block_type


def prepare():
    """Rewrite every jit function that is imported, once for all forks of this process."""
    for function in gc.get_objects():
        if isinstance(function, interpreter.InterpretedFunction):
            function.rewrite()


def _patch_attr(obj, name, member, builder, *scope):
    """Give a builtin the interpreter's semantics, without the wrapper that looks for semantics."""
    function, given = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def patched(*args, **named):
        named["_semantic"] = given
        return function(*args, **named)

    if scope:
        scope[0].set_attr(obj, name, patched)
    else:
        setattr(obj, name, patched)


_NUMPY = {}
_numpy_dtype = interpreter._get_np_dtype


def _np_dtype(dtype):
    name = dtype.scalar.name
    if name not in _NUMPY:
        _NUMPY[name] = _numpy_dtype(dtype)
    return _NUMPY[name]


def _tensor(self, handle, type):  # noqa: A002  Triton's own name
    """Make a ``tl.tensor``, with the shape stored in the type."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = type.known if type.is_block() else _SCALAR


_SCALAR = core.constexpr(1), core.tuple([])
_block_types = {}
_make_block_type = core.block_type.__init__


def _block_type(self, element_ty, shape):
    """Make a ``tl.block_type``, with the size and shape of all tensors of the type."""
    sizes = shape.values if isinstance(shape, core.tuple) else shape
    key = element_ty.name, builtins.tuple([getattr(size, "value", size) for size in sizes])
    result = _block_types.get(key)
    if result is None:
        _make_block_type(self, element_ty, shape)
        sizes = [core.constexpr(size) for size in key[1]]
        self.known = core.constexpr(math.prod(key[1])), core.tuple(sizes)
        result = _block_types[key] = dict(self.__dict__)
    self.__dict__.update(result)


def _combined(operation, first, second, dtypes):
    """Apply the combine function of a reduction or scan to arrays of equal shape."""
    tensors = (
        operation.to_tensor(np.ascontiguousarray(data), dtype)
        for part in (first, second)
        for data, dtype in zip(part, dtypes, strict=True)
    )
    result = operation.combine_fn.fn(*tensors)
    return [each.handle.data for each in (result if isinstance(result, tuple) else (result,))]


def _reduce_by_pairs(self, given):
    """Reduce by a single call of the combine function for all pairs of neighbours."""
    dtypes = [arg.dtype for arg in given]
    data = [np.moveaxis(arg.handle.data, self.axis, -1) for arg in given]
    while data[0].shape[-1] > 1:
        halves = [[array[..., side::2] for array in data] for side in (0, 1)]
        shape = halves[0][0].shape
        flat = [[array.reshape(-1) for array in half] for half in halves]
        data = [array.reshape(shape) for array in _combined(self, *flat, dtypes)]
    if self.keep_dims:
        return [
            self.to_tensor(np.moveaxis(array, -1, self.axis), dtype)
            for array, dtype in zip(data, dtypes, strict=True)
        ]
    shape = data[0].shape[:-1]
    return [
        self.to_tensor(array.reshape(shape) if shape else array.item(), dtype)
        for array, dtype in zip(data, dtypes, strict=True)
    ]


def _scan_by_doubling(self, given):
    """Scan a dimension of n elements by log2(n) calls of the combine function."""
    dtypes = [arg.dtype for arg in given]
    data = [arg.handle.data.copy() for arg in given]
    assert data[0].ndim == 1
    step = 1
    while step < len(data[0]):
        earlier = [np.roll(array, step) for array in data]
        combined = [new[step:] for new in _combined(self, earlier, data, dtypes)]
        data = [np.concatenate((array[:step], new)) for array, new in zip(data, combined, strict=True)]
        step *= 2
    return [self.to_tensor(array, dtype) for array, dtype in zip(data, dtypes, strict=True)]


def main(script, function, *arguments):
    """Print the result of a function as JSON; raise where a kernel reads or writes outside of its tensors."""
    with noted_accesses() as outside:
        result = getattr(importlib.import_module(script), function)(*arguments)
    if outside:
        raise AssertionError(
            f"{len(outside)} accesses outside of a kernel's tensors, first of all {outside[0]}"
        )
    print(json.dumps(result, default=vars))


hurry()
if __name__ == "__main__":
    main(*sys.argv[1:])
