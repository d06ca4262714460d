"""Operators and ``where`` on operands of one scalar type, by one call of numpy each.

Triton's interpreter puts twenty calls around it: it looks up a builtin, unwraps constants, promotes types, fills blocks
with scalars. What comes of these follows from the types of the operands, and is computed here once for each pair.
"""

import functools
import math

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

INTEGERS = frozenset(("int32", "int64", "uint32", "uint64"))
NUMBERS = INTEGERS | {"fp32", "fp64"}
"""Types of which two operands of one shape need no conversion, whatever is done to them."""
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
SHIFTS = {"lshift": np.left_shift, "rshift": np.right_shift}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def install():
    """Put quick operators before those of the interpreter, which serve all other operands."""
    for name, compute in ARITHMETIC.items():
        quick = _replace(name, compute, NUMBERS)
        tl_function = functools.partial(_first_of, quick, getattr(core, name))
        setattr(core, name, tl_function)
        setattr(tl, name, tl_function)
    for operations, scalars in ((BITS, INTEGERS | {"int1"}), (SHIFTS, INTEGERS)):
        for name, compute in operations.items():
            _replace(name, compute, scalars)
    for name, compute in COMPARISONS.items():
        _put(f"__{name}__", _quick(compute, NUMBERS, compares=True))
    tl.where = core.where = functools.partial(_first_of, functools.partial(_where, {}), core.where)


def _replace(name, compute, scalars):
    """Replace an operator, and the one of a number with a tensor on its right."""
    _put(f"__r{name}__", _quick(lambda own, other: compute(other, own), scalars))
    quick = _quick(compute, scalars, moves=name == "add")
    _put(f"__{name}__", quick)
    return quick


def _put(name, quick):
    general = getattr(core.tensor, name)

    def method(self, other):
        result = quick(self, other)
        return general(self, other) if result is None else result

    setattr(core.tensor, name, method)


def _first_of(quick, general, *args, **named):
    result = quick(*args)
    return general(*args, **named) if result is None else result


def _quick(compute, scalars, *, compares=False, moves=False):
    """Return a function of two operands that returns None where it does not serve them.

    :param compares: whether the result is of bools.
    :param moves: whether pointers are served too: they move by signed integers.
    """
    common = {}

    def quick(own, other):
        if type(own) is not core.tensor:
            return None
        other, kind = _plain(other), own.type
        if type(other) is not core.tensor:
            if not fits(other, kind.scalar) or (compares and _is_fp64(other)):
                return None
            other = constant(kind.scalar, other)
        key = kind.name, other.type.name
        known = common.get(key)
        if known is None:
            known = _moved(kind, other.type) if moves else (False, 0)
            if not known[0]:
                result = common_type([kind, other.type], scalars)
                known = result.with_element_ty(tl.int1) if result and compares else result, 0
            common[key] = known
        result, width = known
        if not result:
            return None
        data = other.handle.data
        if width:
            return _tensor(own.handle.data + width * data.astype(np.uint64), result)
        return _tensor(compute(own.handle.data, data), result)

    return quick


def _moved(kind, offset):
    """Return the type of a pointer moved by an offset, and the bytes of an element; else False and 0."""
    if not kind.scalar.is_ptr() or offset.scalar.name not in ("int32", "int64"):
        return False, 0
    result = common_type([kind, offset.with_element_ty(kind.scalar)], {kind.scalar.name})
    return result, max(1, kind.scalar.element_ty.primitive_bitwidth // 8)


def _plain(value):
    return value.value if type(value) is core.constexpr else value


def _where(kinds, condition, *values):
    """Return the result for a condition of bools and values of one type, at most one of them a number; else None."""
    values = [_plain(value) for value in values]
    tensors = [value for value in values if type(value) is core.tensor]
    if len(values) < 2 or not tensors or type(condition) is not core.tensor:
        return None
    key = tuple([each.type.name for each in (condition, *tensors)])
    kind = kinds.get(key)
    if kind is None:
        kind = common_type([each.type for each in tensors], NUMBERS | {"int1"})
        if kind:
            is_bool = condition.dtype.name == "int1"
            kind = is_bool and common_type(
                [kind, condition.type.with_element_ty(kind.scalar)], {kind.scalar.name}
            )
        kinds[key] = kind
    if not kind or not all(type(value) is core.tensor or fits(value, kind.scalar) for value in values):
        return None
    data = [
        (value if type(value) is core.tensor else constant(kind.scalar, value)).handle.data
        for value in values
    ]
    return _tensor(np.where(condition.handle.data, *data), kind)


def _tensor(data, kind):
    return core.tensor(interpreter.TensorHandle(data, kind.scalar), kind)


def common_type(kinds, scalars):
    """Return the type of a result of operands with one scalar type, one of ``scalars``; else False."""
    shapes = [[getattr(n, "value", n) for n in kind.shape] for kind in kinds if kind.is_block()]
    names = {kind.scalar.name for kind in kinds}
    if len(names) > 1 or not names <= scalars or len({len(shape) for shape in shapes}) > 1:
        return False
    if not shapes:
        return kinds[0].scalar
    if any(len(set(sizes) - {1}) > 1 for sizes in zip(*shapes, strict=True)):
        return False
    return core.block_type(kinds[0].scalar, [max(sizes) for sizes in zip(*shapes, strict=True)])


def fits(number, dtype):
    """Whether a Python number converts to a dtype in every context."""
    if dtype.name not in NUMBERS:
        return False
    if type(number) is int and not dtype.is_floating():
        least = 0 if dtype.is_int_unsigned() else -(2**31)
        return least <= number < (2**31 if dtype.name == "int32" else 2**32)
    return type(number) in (int, float) and dtype.is_floating()


def _is_fp64(number):
    """Whether a number is or may be a float64 to a comparison, which knows nothing of the other operand's type."""
    return type(number) is float and math.isfinite(number) and number != float(np.float32(number))


_operand_types = {}


def operands(lhs, rhs):
    """Return two operands in the type that they have in common, or None."""
    key = lhs.type.name, rhs.type.name
    kind = _operand_types.get(key)
    if kind is None:
        kind = _operand_types[key] = common_type([lhs.type, rhs.type], NUMBERS)
    return (_spread(lhs, kind), _spread(rhs, kind)) if kind else None


def _spread(operand, kind):
    if operand.type.name == kind.name:
        return operand
    shape = [getattr(size, "value", size) for size in kind.shape]
    data = operand.handle.data
    return _tensor(np.broadcast_to(data, shape) if operand.type.is_block() else np.full(shape, data), kind)


_constants = {}


def constant(kind, number):
    """Return the cached tensor of a type filled with a number."""
    key = kind.name, number, math.copysign(1, number)
    result = _constants.get(key)
    if result is None:
        result = _constants[key] = filled(kind, number)
        result.handle.data.flags.writeable = False
    return result


def filled(kind, value):
    """Return a tensor of a type filled with a number or with the element of an array."""
    shape = kind.shape if kind.is_block() else (1,)
    data = np.full([getattr(size, "value", size) for size in shape], value, interpreter._get_np_dtype(kind))
    return _tensor(data, kind)
