"""Triton's interpreter as a backend named cpu, which vLLM's V2 runner asks for where there is no GPU, and its masks.

Import it before vLLM, with ``TRITON_INTERPRET=1``.
"""

import os
import types

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError(
        "'triton_on_cpu' needs TRITON_INTERPRET=1, found none. Set it before Triton is imported."
    )

import numpy as np
from triton.backends import backends
from triton.runtime.interpreter import InterpreterBuilder

_create_splat = InterpreterBuilder.create_splat


def create_splat(self, ret_ty, arg):
    """Spread a scalar over a block. Comparisons of scalars stay masks, which Triton 3.9.0 makes integers."""
    result = _create_splat(self, ret_ty, arg)
    if arg.data.dtype == np.bool_:
        result.data = result.data.astype(np.bool_)
    return result


InterpreterBuilder.create_splat = create_splat


class Driver:
    """A driver, as far as vLLM looks at it."""

    @staticmethod
    def is_active():
        return True


backends["cpu"] = types.SimpleNamespace(driver=Driver, compiler=None)


def filter_in_torch():
    """Have vLLM filter by its PyTorch code: its Triton kernel for filters calls methods of Python's integers."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
