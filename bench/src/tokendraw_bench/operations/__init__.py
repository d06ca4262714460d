"""Records of timed operations: a module for each of the core's, named like it; others are made of functions of tensors.

``BENCH`` of a module is a :class:`tokendraw_bench.operation.BenchOperation`. Importing a module imports no torch: the
command line reads presets and axes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from tokendraw import InvalidParameterError
from tokendraw.tools import find_operation, one_of, operation_names
from tokendraw_bench.operation import Axis, BenchOperation, Preset

if TYPE_CHECKING:
    import torch

    from tokendraw_bench.timing import Draw
    from tokendraw_engine_ops.tensor_function import TensorFunction

NAMES = ("sample", "verify", "process_logits")
"""Operations with a module."""


def names() -> tuple[str, ...]:
    """List the timed operations: those with a module, then those of other distributions."""
    others = [name for name in operation_names() if name not in NAMES and find_operation(name).functions()]
    return (*NAMES, *others)


@functools.cache
def get(name: str) -> BenchOperation:
    """Load the record of a timed operation, or make it.

    :raises InvalidParameterError: there is no such operation, or none that is timed.
    """
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        record: BenchOperation = importlib.import_module(f"{__name__}.{name}").BENCH
        return record
    functions = find_operation(name).functions()
    if not functions:
        raise InvalidParameterError(
            f"'operation' needs {one_of(names())}, found {name!r}. Pass one of these."
        )
    return _bench_of(name, functions)


@dataclass(frozen=True)
class TensorCell:
    """A call to time of an operation whose methods are pure functions of tensors, as its description has them."""

    operation: ClassVar[str]
    functions: ClassVar[Mapping[str, TensorFunction]]
    method: str
    size: str
    """Such as ``256 x 64 x 16``, in the order of the description."""
    way: str
    """The options, such as ``fp4 v1``; "" without any."""

    @functools.cached_property
    def nbytes(self) -> int:
        """Return the bytes of the tensors that go in."""
        import torch

        arguments = self.arguments(torch.device("cpu"), torch.Generator())
        return sum(tensor.nbytes for tensor in _tensors(arguments))

    def arguments(self, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
        """Make random arguments, which descriptions make on the CPU."""
        import torch

        from tokendraw_engine_ops.tensor_function import on_device

        function = self.functions[self.method]
        (way,) = (way for way in function.ways if _words(way.values()) == self.way)
        seed = torch.randint(2**31, (), generator=generator, device=generator.device)
        size = tuple(map(int, self.size.split(" x ")))
        return on_device(function.make(torch.Generator().manual_seed(int(seed)), size, **way), device)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.method, self.way, self.size)))


def _words(values: Any) -> str:
    return " ".join(map(str, values))


def _tensors(arguments: dict[str, Any]) -> list[torch.Tensor]:
    import torch

    return [value for value in arguments.values() if isinstance(value, torch.Tensor)]


def _buffers(cell: TensorCell, device: torch.device) -> Any:
    """Allocate the buffers that calls are given to write into, as an engine does once."""
    import torch

    call: Any = find_operation(cell.operation).calls()[cell.method]
    if call.function.out is None:
        return None
    return call.function.out(**call(**cell.arguments(device, torch.Generator())).arguments)


def _step(provider: Any, cell: TensorCell, out: Any) -> Draw:
    method, more = getattr(provider, cell.method), {} if out is None else {"out": out}
    return lambda arguments: method(**arguments, **more)


def _bench_of(name: str, functions: Mapping[str, TensorFunction]) -> BenchOperation:
    """Make the record of an operation."""
    cell = type("Cell", (TensorCell,), {"operation": name, "functions": functions})
    grids = {
        preset: Preset(
            shapes=tuple(
                (method, " x ".join(map(str, size)), _words(way.values()))
                for method, function in functions.items()
                for way in function.ways
                for size in function.timed.get(preset, ())
            )
        )
        for preset in ("quick", "design")
    }
    axes = tuple(Axis(item.name, "", name) for item in fields(TensorCell))
    return BenchOperation(
        name=name,
        cell=cell,
        axes=axes,
        shape=tuple(axis.field for axis in axes),
        presets=grids,
        copied=lambda arguments: max(_tensors(arguments), key=lambda tensor: tensor.nbytes),
        make_inputs=lambda cell, device, generator: cell.arguments(device, generator),
        arguments=_buffers,
        step=_step,
        note="Inputs are random. Results go into buffers that are kept, where a method takes some.",
    )
