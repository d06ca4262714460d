"""Launches compiled kernels with little work on the host."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from tokendraw_triton_gumbel import plan
from tokendraw_triton_gumbel.compilation import (
    ANY_INT,
    Argument,
    KernelSpec,
    Pointer,
    compile_all,
    compile_kernel,
    is_interpreted,
)
from tokendraw_triton_gumbel.kernels.rows import Counts, RowParams, echo_counts
from tokendraw_triton_gumbel.plan import Grid, ParamTensors, Scratch

_log = logging.getLogger("tokendraw")

ANY_COUNTS = Counts(*[ANY_INT] * len(Counts._fields))
"""Placeholders of counts."""
group = tuple.__new__
"""Makes a group of arguments: ``group(Logits, fields)`` is ``Logits(*fields)`` in a third of the time."""
Step = tuple["Launch", Grid, tuple[Any, ...]]
"""A kernel with its grid and its arguments."""


class Launch:
    """A kernel with constants and compiler options, ready to launch."""

    __slots__ = (
        "_compiled",
        "_constants",
        "_function",
        "_metadata",
        "_run",
        "constants",
        "kernel",
        "options",
    )

    def __init__(self, kernel: Any, constants: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.kernel, self.constants, self.options = kernel, constants, options
        self._constants = tuple(constants.values())
        self._compiled: Any = None

    @classmethod
    def compiled(
        cls,
        kernel: Any,
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        placeholders: Sequence[Argument],
    ) -> Launch:
        """Return a launch, compiled for placeholders of the arguments."""
        launch = cls(kernel, constants, options)
        compile_steps([(launch, (1, 1, 1), tuple(placeholders))])
        return launch

    def spec(self, placeholders: Sequence[Argument]) -> KernelSpec:
        """Return the :class:`~.compilation.KernelSpec` for placeholders of the arguments."""
        return KernelSpec(self.kernel, placeholders, self.constants, self.options)

    def compile(self, placeholders: Sequence[Argument]) -> None:
        """Compile the kernel for placeholders of the arguments, unless this process has done so."""
        compiled = compile_kernel(self.spec(placeholders))
        self._run, self._function, self._metadata = compiled.run, compiled.function, compiled.packed_metadata
        self._compiled = compiled

    def unknown_launcher(self) -> str | None:
        """Return why the compiled kernel's launcher cannot be called directly; None if its parameters are known."""
        found = list(inspect.signature(type(self._run).__call__).parameters)
        return None if found in _LAUNCHER_PARAMETERS else f"its launcher takes {', '.join(found)}"

    def __call__(self, grid: Grid, arguments: Sequence[Any], stream: int | None) -> None:
        """Launch the kernel on addresses, numbers and None; in the interpreter, on tensors, numbers and None.

        :param stream: what :func:`current_stream` returned.
        """
        if stream is not None:
            self._run(
                *grid, stream, self._function, self._metadata, None, None, None, *arguments, *self._constants
            )
        elif self._compiled is not None:
            self._compiled[grid](*arguments, *self._constants)
        else:
            self.kernel[grid](*arguments, **self.constants, **self.options)


def compile_steps(steps: Iterable[Step]) -> None:
    """Compile the kernels of launches side by side, unless this process has done so or Triton interprets them."""
    if is_interpreted():
        return
    launches = [(launch, arguments) for launch, _, arguments in steps]
    compile_all([launch.spec(arguments) for launch, arguments in launches])
    for launch, arguments in launches:
        launch.compile(arguments)


# The direct launch: Triton's launcher of a compiled kernel, called as Triton calls it.
#
# ``compiled[grid](...)``, the public launch, collects each time what the hooks of a profiler may ask for, and calls
# them: a third of the time of a launch. The launcher's parameters are no public interface of Triton, so it is called
# directly only on a device where they are known and a launch has left what it should; elsewhere Triton launches.

_LAUNCHER_PARAMETERS = (
    ["self", "gridX", "gridY", "gridZ", "stream", "function", "args"],  # up to Triton 3.6
    [
        *("self", "gridX", "gridY", "gridZ", "stream", "function"),
        *("kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook", "args"),
    ],
)
_is_direct: dict[int, bool] = {}
"""Whether launches on each device that was looked at are direct."""


def check_direct_launch(device: torch.device) -> None:
    """Find out whether launches on a device may be direct: once a process, with a line in the log if not."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index in _is_direct:
        return
    with torch.cuda.device(index):
        out = torch.zeros(5, dtype=torch.int64, device="cuda")
        counts = Counts(3, 5, 16, 1 << 20, 7)
        echo = Launch.compiled(echo_counts, {"ADDED": 2}, {"num_warps": 1}, [Pointer(out.dtype), ANY_COUNTS])
        reason = echo.unknown_launcher()
        if reason is None:
            try:
                echo((1, 1, 1), (out.data_ptr(), counts), driver.active.get_current_stream(index))
                found = out.tolist()
                reason = None if found == [each + 2 for each in counts] else f"a launch left {found}"
            except TypeError as error:  # other arguments than the launcher takes
                reason = str(error)
    _is_direct[index] = reason is None
    if reason is not None:
        _log.warning(
            "triton-gumbel: this Triton is launched by its public interface, more slowly: %s", reason
        )


def current_stream(device: int) -> int | None:
    """Return the handle of the current stream of a device; None where Triton itself has to launch.

    That is so where the direct launch has not passed its check, where a profiler hooks launches, and on the CPU,
    where kernels are interpreted.
    """
    runtime = knobs.runtime
    if device < 0 or not _is_direct.get(device, False):
        return None
    if _is_hooked(runtime.launch_enter_hook) or _is_hooked(runtime.launch_exit_hook):
        return None
    stream: int = driver.active.get_current_stream(device)
    return stream


def _is_hooked(hook: Any) -> bool:
    """Return whether a hook does anything: up to Triton 3.4 it is a function or None, since then a list of them."""
    return hook is not None and bool(getattr(hook, "calls", True))


# Conversion of tensors to kernel arguments: addresses for compiled kernels, tensors for Triton's interpreter.


class ArgumentConverter(Protocol):
    """Turns the tensors of a call into kernel arguments."""

    def tensor(self, tensor: Tensor, /) -> Any:
        """Return the argument for a tensor."""

    def tensors(self, tensors: Sequence[Tensor | None]) -> Sequence[Any]:
        """Return the arguments for tensors, and None for None."""

    def params(self, tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the arguments for contiguous parameters."""

    def scratch(
        self, scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> Sequence[Any]:
        """Return the arguments for the buffers of scratch in ``memory``.

        :param counts: what the scratch is laid out for, with :meth:`~.plan.Scratch.offsets` as ``offsets``.
        """


class AddressConverter:
    """The arguments of compiled kernels. A parameter that is absent is at 0, and no kernel reads it."""

    tensor = staticmethod(Tensor.data_ptr)

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> list[int | None]:
        """Return the addresses of tensors."""
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]

    @staticmethod
    def params(tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the addresses of the parameters."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors[:-1]]
        addresses.insert(plan.FRESH_SEEDS_INDEX, 0 if fresh_seeds is None else fresh_seeds.data_ptr())
        addresses.append(0)  # of floors, which are computed later
        return group(RowParams, addresses)

    @staticmethod
    def scratch(
        scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> list[int]:
        """Return the addresses of the buffers."""
        base = memory.data_ptr()
        return [base + offset for offset in offsets]


class TensorConverter:
    """The arguments of interpreted kernels. The interpreter cannot add to the address of an absent tensor."""

    @staticmethod
    def tensor(tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Return the tensors."""
        return tensors

    @staticmethod
    def params(tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the parameters, and a zero of the expected dtype for each absent parameter."""
        given = list(tensors[:-1])
        given.insert(plan.FRESH_SEEDS_INDEX, fresh_seeds)
        given.append(None)
        placeholders = plan.placeholders([None if tensor is None else tensor.dtype for tensor in tensors])
        return RowParams(
            *[
                torch.zeros(1, dtype=placeholder.dtype, device="cpu")
                if tensor is None and placeholder is not None
                else tensor
                for tensor, placeholder in zip(given, placeholders, strict=True)
            ]
        )

    @staticmethod
    def scratch(
        scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> list[Tensor]:
        """Return the buffers."""
        return scratch.buffers(memory, counts)


# The device of an operation: kind, multiprocessors, and form of kernel arguments.


class LaunchDevice(NamedTuple):
    """The facts about a device for launches."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Number of multiprocessors."""
    current_index: Callable[[], int]
    """Returns the index of the current device, as ``Tensor.get_device`` does of a tensor: -1 for the CPU."""
    converter: ArgumentConverter

    @classmethod
    def of(cls, device: torch.device) -> LaunchDevice:
        """Inspect a device, once for each sampler or processor."""
        converter: ArgumentConverter = TensorConverter() if is_interpreted() else AddressConverter()
        if device.type != "cuda":
            return cls("cpu", 1, lambda: -1, converter)
        if not is_interpreted():
            check_direct_launch(device)
        family = "hip" if torch.version.hip else "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(family, processors, torch.cuda.current_device, converter)
