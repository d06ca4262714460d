"""Launches compiled kernels with little work on the host."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from tokendraw_triton_gumbel.compilation import (
    ANY_INT,
    Argument,
    KernelSpec,
    Pointer,
    compile_all,
    compile_kernel,
    is_interpreted,
)
from tokendraw_triton_gumbel.kernels.rows import (
    CandidateLists,
    Counts,
    DraftRows,
    DrawResults,
    Logits,
    RowParams,
    RowSummary,
    TileStatistics,
    echo_counts,
)
from tokendraw_triton_gumbel.plan import FRESH_SEEDS_INDEX, Geometry, Grid, ParamTensors, Scratch

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
        # Tokens depend on fused products, and Triton 3.9 announces another default for 3.10. Integers wrap on purpose:
        # a debug build of Triton would stop there.
        always = {"enable_fp_fusion": True, "sanitize_overflow": False}
        self.kernel, self.constants, self.options = kernel, constants, {**always, **options}
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

    def use(self, compiled: Any) -> None:
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
    specs = {
        launch: KernelSpec(launch.kernel, arguments, launch.constants, launch.options)
        for launch, _, arguments in steps
    }
    compile_all([*specs.values()])
    for launch, spec in specs.items():
        launch.use(compile_kernel(spec))


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


class AddressConverter:
    """Turns the tensors of a call into arguments of compiled kernels."""

    def tensor(self, tensor: Tensor) -> Any:
        return tensor.data_ptr()

    def tensors(self, tensors: Sequence[Tensor | None]) -> Sequence[Any]:
        """Return the arguments for tensors, and None for None."""
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]

    def params(self, tensors: ParamTensors, fresh: Tensor | None, placeholders: RowParams) -> RowParams:
        """Return the arguments for contiguous parameters and fresh seeds: 0 for absent ones, which no kernel reads."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        addresses[-1] = 0  # floors, which are computed later
        addresses.insert(FRESH_SEEDS_INDEX, 0 if fresh is None else fresh.data_ptr())
        return group(RowParams, addresses)

    def scratch(self, scratch: Scratch, memory: Tensor, geometry: Geometry) -> Sequence[Any]:
        """Return the arguments for the buffers of scratch in ``memory``, and None."""
        base = memory.data_ptr()
        addresses: list[int | None] = [base + offset for offset in geometry.scratch_offsets]
        addresses[-1] = None  # in place of the end of the memory
        return addresses


class TensorConverter(AddressConverter):
    """The arguments of interpreted kernels. The interpreter cannot add to the address of an absent tensor."""

    def tensor(self, tensor: Tensor) -> Any:
        return tensor

    def tensors(self, tensors: Sequence[Tensor | None]) -> Sequence[Any]:
        return tensors

    def params(self, tensors: ParamTensors, fresh: Tensor | None, placeholders: RowParams) -> RowParams:
        """Return the parameters, and a zero of the expected dtype for each absent parameter."""
        given = [*tensors[:-1], None]
        given.insert(FRESH_SEEDS_INDEX, fresh)
        pairs = zip(given, placeholders, strict=True)
        return RowParams(
            *[
                torch.zeros(1, dtype=each.dtype, device="cpu") if tensor is None and each else tensor
                for tensor, each in pairs
            ]
        )

    def scratch(self, scratch: Scratch, memory: Tensor, geometry: Geometry) -> Sequence[Any]:
        return scratch.buffers(memory, geometry.scratch_counts)


# The arguments that several launches share. The fields are addresses, in the interpreter tensors, and where kernels are
# compiled placeholders.


class LaunchArguments(NamedTuple):
    """Arguments shared by all launches of a call."""

    geometry: Geometry
    logits: Logits
    params: RowParams
    flags: int
    """Bits of :mod:`.kernels.rows`."""
    scratch: Sequence[Any]
    """All buffers of scratch, and None."""
    floors: Any = None
    """:class:`~.kernels.tile_pass.FloorArguments`; None: no filter reads moments."""
    interval: Any = None
    """:class:`~.kernels.interval.IntervalArguments`; None: no row asks for XTC or ``temperature_last``."""


class DrawArguments(NamedTuple):
    """Arguments of :func:`~.kernels.row_draw.draw_rows`, which the launches behind it share."""

    logits: Logits
    drafts: DraftRows
    counts: Counts
    statistics: TileStatistics
    """Those that launches 2 and 3 read."""
    params: RowParams
    """Those that the filters look at."""
    flags: int
    lists: CandidateLists
    queue: Any
    """:class:`~.kernels.large_set_passes.WorkQueue`; ``state`` is the ``RowState`` from there."""
    state: Any
    results: DrawResults
    summary: RowSummary
    logprobs: Any
    """:class:`~.kernels.row_draw.TokenLogprobs`."""
    interval_params: Any
    """:class:`~.kernels.interval.IntervalParams`."""
    interval: Any
    """:class:`~.kernels.interval.KeptInterval`."""


# The device of an operation: kind, multiprocessors, and form of kernel arguments.


class LaunchDevice(NamedTuple):
    """The facts about a device for launches."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Number of multiprocessors."""
    current_index: Callable[[], int]
    """Returns the index of the current device, as ``Tensor.get_device`` does of a tensor: -1 for the CPU."""
    converter: AddressConverter

    @classmethod
    def of(cls, device: torch.device) -> LaunchDevice:
        """Inspect a device, once for each sampler or processor."""
        converter = TensorConverter() if is_interpreted() else AddressConverter()
        if device.type != "cuda":
            return cls("cpu", 1, lambda: -1, converter)
        if not is_interpreted():
            check_direct_launch(device)
        family = "hip" if torch.version.hip else "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(family, processors, torch.cuda.current_device, converter)
