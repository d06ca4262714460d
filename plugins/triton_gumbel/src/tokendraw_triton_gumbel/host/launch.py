"""Launches a compiled kernel on addresses, through Triton's own launcher of the kernel.

``compiled[grid](...)`` collects at each launch what the hooks of a profiler may ask for, and calls them: a third of the
time of a launch. Without hooks the launcher is called directly, as Triton calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triton import knobs
from triton.runtime import driver

from tokendraw_triton_gumbel.host.compilation import (
    Argument,
    KernelSpec,
    compile_all,
    compile_kernel,
    is_interpreted,
)
from tokendraw_triton_gumbel.host.geometry import Geometry, Grid
from tokendraw_triton_gumbel.kernels.kept_interval.argument_groups import FilterParams, IntervalParams
from tokendraw_triton_gumbel.kernels.shared.argument_groups import MomentResults, RowParams
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors

group = tuple.__new__
"""Makes a group of arguments: ``group(Logits, fields)`` is ``Logits(*fields)`` in a third of the time."""
Step = tuple["Launch", Grid, tuple[Any, ...]]
"""A kernel with its grid and its arguments."""


class IntervalArguments(NamedTuple):
    """Arguments of the launches for XTC and ``temperature_last``."""

    params: IntervalParams
    filter_params: FilterParams
    """To be filled in."""
    slots: int
    ceiling: Any
    """[rows] float32, to be filled in; None without XTC."""


class LaunchArguments(NamedTuple):
    """Arguments shared by all launches of a call.

    A tensor is an address; in the interpreter the tensor itself; a placeholder where kernels are compiled.
    """

    geometry: Geometry
    logits: tuple[Any, int]
    """The logits, and their row stride."""
    params: RowParams
    flags: int
    """Bits of :mod:`~tokendraw_triton_gumbel.kernels.shared.row_params`."""
    scratch: Sequence[Any]
    """All buffers of scratch."""
    moments: MomentResults = MomentResults()
    """The moments of rows, for filters."""
    floors: Callable[[], Iterable[FilterFloors]] | None = None
    """Computes the floors of each filter from the moments that a launch has left; None: no filter."""
    interval: IntervalArguments | None = None
    """None: no row asks for XTC or ``temperature_last``."""


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
        """Return the :class:`.KernelSpec` for placeholders of the arguments."""
        return KernelSpec(self.kernel, placeholders, self.constants, self.options)

    def compile(self, placeholders: Sequence[Argument]) -> None:
        """Compile the kernel for placeholders of the arguments, unless this process has done so."""
        compiled = compile_kernel(self.spec(placeholders))
        self._run, self._function, self._metadata = compiled.run, compiled.function, compiled.packed_metadata
        self._compiled = compiled

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
    """Compile the kernels of launches side by side, unless this process has done so or Triton interprets them.

    :param steps: launches with placeholders for their arguments.
    """
    if is_interpreted():
        return
    launches = [(launch, arguments) for launch, _, arguments in steps]
    compile_all([launch.spec(arguments) for launch, arguments in launches])
    for launch, arguments in launches:
        launch.compile(arguments)


def current_stream(device: int) -> int | None:
    """Return the handle of the current stream of a device; None where Triton itself has to launch.

    That is so where a profiler hooks launches, and on the CPU, where kernels are interpreted.
    """
    runtime = knobs.runtime
    if device < 0 or _is_hooked(runtime.launch_enter_hook) or _is_hooked(runtime.launch_exit_hook):
        return None
    stream: int = driver.active.get_current_stream(device)
    return stream


def _is_hooked(hook: Any) -> bool:
    """Return whether a hook does anything: up to Triton 3.4 it is a function or None, since then a list of them."""
    return hook is not None and bool(getattr(hook, "calls", True))
