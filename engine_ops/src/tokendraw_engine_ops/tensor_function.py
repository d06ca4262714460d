"""Methods that are pure functions of tensors: one description, of which call, provider, proof and tests are made.

An operation of such methods needs a record and, in the module that the record names::

    FUNCTIONS = {"scale": TensorFunction(signature=..., check=..., result=..., reference=..., make=..., sizes=...)}
    CALLS, PROVIDER, prove = tensor_operation(OPERATION, FUNCTIONS)

A backend has a method of the same name and parameters for each function. The conformance kit and the bench make their
lines and cells of the same description, since :meth:`Operation.functions` finds it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw import PluginError
from tokendraw.plugin import (
    Call,
    Operation,
    OutputCheck,
    Provider,
    first_of,
    misfit,
    provider_method,
    wrong_object,
)

Arguments: TypeAlias = dict[str, Any]
Size: TypeAlias = tuple[int, ...]
Prove: TypeAlias = Callable[[Any, Any, torch.device, Any], None]


@dataclass(frozen=True, kw_only=True)
class TensorFunction:
    """A method that computes tensors from tensors and keeps no state; B, the number of rows, is the first size.

    :ivar signature: Function with the parameters of the method that returns them by name, ``return locals()``. Its
        docstring is the method's; parameters annotated ``Tensor`` are those that a backend has to leave unmodified.
    :ivar check: Refuses arguments of the wrong form or device, without reading a value, as (device, arguments by name);
        returns those that a backend gets in another form.
    :ivar reference: The exact result of arguments on the CPU: a tensor, or a dataclass of tensors.
    :ivar make: Makes random arguments on the CPU, as (generator, size, options of a way by name).
    :ivar sizes: Sizes of tests, the smallest first, the last large enough to be divided among threads.
    :ivar result: Shape and dtype of the returned tensor, which is dense and new; None with ``out``.
    :ivar out: Allocates what a backend writes into where the argument ``out`` is None; None: it returns a tensor.
    :ivar ways: Options of each way to call it; a requirement of the operation may be about one.
    :ivar edges: Makes arguments of further tests likewise, as (generator, options): extremes, strides.
    :ivar timed: Sizes that the bench times, by the name of its preset; none: it does not.
    :ivar may_fall_back: Whether another backend may serve a call after a failure, which takes copies of the tensors.
    """

    signature: Callable[..., Arguments]
    check: Callable[..., Mapping[str, Any]]
    reference: Callable[..., Any]
    make: Callable[..., Arguments]
    sizes: tuple[Size, ...]
    result: Callable[..., tuple[Size, torch.dtype]] | None = None
    out: Callable[..., Any] | None = None
    ways: tuple[Mapping[str, Any], ...] = (MappingProxyType({}),)
    edges: Callable[..., list[Arguments]] = lambda generator, **way: []
    timed: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    may_fall_back: bool = True


def tensors_of(value: Any) -> dict[str, Tensor]:
    """List the tensors of a result, or of buffers, by name: that of a dataclass's field, else ``element``."""
    if isinstance(value, Tensor):
        return {"element": value}
    values = {item.name: getattr(value, item.name) for item in fields(value)}
    return {name: tensor for name, tensor in values.items() if isinstance(tensor, Tensor)}


def difference(reference: Any, output: Any) -> str | None:
    """Describe the first value of an output that is not that of the reference; None if all are."""
    found = tensors_of(output)
    for name, needed in tensors_of(reference).items():
        values = found[name].cpu()
        for index in first_of(values != needed):
            at = tuple(index)
            return f"{name}{index} {needed[at].item()}, found {values[at].item()}"
    return None


class TensorCall(Call):
    """The call of a :class:`TensorFunction`; a class for each."""

    __slots__ = ("arguments",)

    function: ClassVar[TensorFunction]
    method: ClassVar[str]
    tensor_names: ClassVar[tuple[str, ...]]
    """Parameters that are annotated as tensors."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.arguments = self.function.signature(*args, **options)

    def check(self, device: torch.device, need: Any) -> None:
        self.arguments |= self.function.check(device, **self.arguments)

    def tensors(self) -> dict[str, Tensor]:
        return {name: self.arguments[name] for name in self.tensor_names}

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        return type(self)(**self.arguments | dict(tensors))

    def signature(self) -> Hashable:
        options = tuple([v for n, v in self.arguments.items() if n != "out" and n not in self.tensor_names])
        return super().signature(), options

    def run(self, backend: Any) -> Any:
        if self.function.out is not None and self.arguments["out"] is None:
            self.arguments["out"] = self.function.out(**self.arguments)
        return getattr(backend, self.method)(**self.arguments)

    def output_check(self, need: Any) -> OutputCheck:
        return self._wrong_form

    def _wrong_form(self, output: object) -> str | None:
        if self.function.result is None:
            out = self.arguments["out"]
            if output is out:
                return None
            return wrong_object(output, out, f"the {type(out).__name__} that it was given as 'out'")
        shape, dtype = self.function.result(**self.arguments)
        (device,) = {tensor.device for tensor in self.tensors().values()}
        reason = misfit("a tensor", output, shape, dtype, device)
        if reason is None and isinstance(output, Tensor) and not output.is_contiguous():
            return f"a contiguous tensor, found strides {list(output.stride())}"
        return reason

    def wrong_values(self, output: Any, need: Any) -> str | None:
        return difference(self.reference(), output)

    def reference(self) -> Any:
        """Compute the exact result on the host."""
        on_host = {name: tensor.cpu() for name, tensor in self.tensors().items()}
        return self.function.reference(**self.arguments | on_host)

    @property
    def num_rows(self) -> int:
        rows: int = self.arguments[self.tensor_names[0]].shape[0]
        return rows


def tensor_operation(
    operation: Operation, functions: Mapping[str, TensorFunction], doc: str = ""
) -> tuple[Mapping[str, type[TensorCall]], type[Provider], Prove]:
    """Make ``CALLS``, ``PROVIDER`` and ``prove`` of an operation's module.

    :param doc: docstring of the provider.
    """
    calls = {
        name: type(
            name,
            (TensorCall,),
            {
                "__slots__": (),
                "__module__": operation.module,
                "__doc__": function.signature.__doc__,
                "__signature__": inspect.signature(function.signature),
                "function": function,
                "method": name,
                "tensor_names": tuple(
                    parameter
                    for parameter, kind in inspect.get_annotations(function.signature).items()
                    if kind in ("Tensor", "torch.Tensor", Tensor)
                ),
                "may_fall_back": function.may_fall_back,
            },
        )
        for name, function in functions.items()
    }

    def prove(backend: Any, capabilities: Any, device: torch.device, need: Any) -> None:
        """Compare the first example of every way within the capabilities with the reference."""
        unsupported = operation.unsupported(capabilities, need)
        for name, function in functions.items():
            for way in function.ways:
                call = example(calls[name], function.sizes[0], device, **way)
                if not any(each.is_asked(call, capabilities) for each in unsupported):
                    output = call.run(backend)
                    reason = call.output_check(need)(output) or call.wrong_values(output, need)
                    if reason is not None:
                        words = ", ".join(map(str, (name, *way.values())))
                        raise PluginError(f"the proof call {words} needs {reason}")

    methods = {name: provider_method(operation, call, object) for name, call in calls.items()}
    members = {"_operations": (operation,), "__doc__": doc, "__module__": operation.module, **methods}
    return calls, type("TensorProvider", (Provider,), members), prove


def example(
    call: type[TensorCall], size: Size, device: torch.device, *, seed: int = 0, **way: Any
) -> TensorCall:
    """Make the call of random arguments of a size, on a device."""
    arguments = call.function.make(torch.Generator().manual_seed(seed), size, **way)
    return call(**on_device(arguments, device))


def on_device(arguments: Arguments, device: torch.device) -> Arguments:
    """Move the tensors of arguments to a device; their strides stay."""

    def moved(tensor: Tensor) -> Tensor:
        memory = tensor if tensor._base is None else tensor._base
        on_target = memory.to(device)
        if memory is tensor or on_target is memory:
            return on_target if memory is tensor else tensor
        return on_target.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return {n: moved(v) if isinstance(v, Tensor) else v for n, v in arguments.items()}
