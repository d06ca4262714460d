"""Mends masks in the interpreter of Triton 3.9.0. Import it with ``TRITON_INTERPRET=1``."""

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder

_create_splat = InterpreterBuilder.create_splat


def create_splat(self, ret_ty, arg):
    """Spread a scalar over a block. Comparisons of scalars stay masks, which Triton 3.9.0 makes integers."""
    result = _create_splat(self, ret_ty, arg)
    if arg.data.dtype == np.bool_:
        result.data = result.data.astype(np.bool_)
    return result


InterpreterBuilder.create_splat = create_splat
