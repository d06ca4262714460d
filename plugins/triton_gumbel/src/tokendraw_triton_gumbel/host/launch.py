"""Launches one kernel on addresses, through the launcher that Triton made for it.

``compiled[grid](...)`` collects at each launch what the hooks of a profiler may ask for, and calls them. With nobody
hooked that is 5 of its 14 us on an H200's host, so then the launcher is called directly, as Triton calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triton import knobs
from triton.runtime import driver

from tokendraw_triton_gumbel.host.compilation import Argument, Wanted, compile_all, compiled
from tokendraw_triton_gumbel.host.geometry import Geometry, Grid
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RowParams

group = tuple.__new__
"""Makes a group of arguments: ``group(Logits, fields)`` is ``Logits(*fields)`` in a third of the time."""
Step = tuple["Launch", Grid, tuple[Any, ...]]
"""A kernel with its grid and its arguments."""


class Operands(NamedTuple):
    """Arguments that all launches of a call share. An entry that is not a number stands for a tensor.

    It is an address, a tensor in the interpreter, or None.
    """

    geometry: Geometry
    head: tuple[Any, int]
    """The logits, and their row stride."""
    params: RowParams
    flags: int
    """Bits of :mod:`~tokendraw_triton_gumbel.kernels.shared.row_params`."""
    pieces: Sequence[Any]
    """All scratch."""


class Launch:
    """A kernel, with everything that its launches have in common."""

    __slots__ = ("_compiled", "_function", "_last", "_metadata", "_run", "constants", "kernel", "options")

    def __init__(self, kernel: Any, constants: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.kernel, self.constants, self.options = kernel, constants, options
        self._last = tuple(constants.values())
        self._compiled: Any = None

    def wanted(self, arguments: Sequence[Argument]) -> Wanted:
        """Return its kernel for arguments like these, as :mod:`.compiled` knows it."""
        return Wanted(self.kernel, arguments, self.constants, self.options)

    def compile(self, arguments: Sequence[Argument]) -> None:
        """Compile it for arguments like these, unless that was done."""
        found = compiled(self.wanted(arguments))
        self._run, self._function, self._metadata = found.run, found.function, found.packed_metadata
        self._compiled = found

    def __call__(self, grid: Grid, arguments: Sequence[Any], stream: int | None) -> None:
        """Launch it on addresses, numbers and None; in the interpreter, on tensors, numbers and None.

        :param stream: what :func:`current_stream` returned.
        """
        if stream is not None:
            self._run(
                *grid, stream, self._function, self._metadata, None, None, None, *arguments, *self._last
            )
        elif self._compiled is not None:
            self._compiled[grid](*arguments, *self._last)
        else:
            self.kernel[grid](*arguments, **self.constants, **self.options)


def compile_steps(steps: Iterable[Step]) -> None:
    """Compile all that is launched, unless that was done in this process: side by side.

    :param steps: with stand-ins for arguments.
    """
    launches = [(launch, arguments) for launch, _, arguments in steps]
    compile_all([launch.wanted(arguments) for launch, arguments in launches])
    for launch, arguments in launches:
        launch.compile(arguments)


def current_stream(device: int) -> int | None:
    """Return the handle of the current stream of a device; None where Triton itself is to launch.

    That is so where a profiler hooks launches, and on the CPU, where kernels are interpreted.
    """
    runtime = knobs.runtime
    if device < 0 or _calls(runtime.launch_enter_hook) or _calls(runtime.launch_exit_hook):
        return None
    stream: int = driver.active.get_current_stream(device)
    return stream


def _calls(hook: Any) -> bool:
    """Return whether a hook does anything: up to Triton 3.4 it is a function or None, since then a list of them."""
    return hook is not None and bool(getattr(hook, "calls", True))
