"""Negotiates the backends of a loaded object: resolves, builds and proves, again after a plugin has failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, TypeAlias

import pluggy
import torch

from tokendraw._torch.threads import reseed_children
from tokendraw.backends.description import HostCapabilities, HostNeed, Operation
from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.discover import Discovery
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.backends.resolution.decide import decide, using
from tokendraw.calls.routing import LoadedBackend, Selection
from tokendraw.errors import (
    MAX_REASON_CHARS,
    PluginError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    UntestedUpstreamWarning,
    announce,
    format_message,
)

Rejections: TypeAlias = Mapping[tuple[str | None, str], str]
"""Reasons why building a plugin, its proof or a call of it failed, by operation and plugin. The operation is None for a
fault of the device, which counts for every operation of the plugin."""

_FAULTS = ("CUDA error: ", "HIP error: ")
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "[enforce fail at alloc_cpu.cpp",
    "CUDA error: out of memory",
    "HIP error: out of memory",
)
"""Texts in a RuntimeError that torch raises where it has no class for the fault."""


@dataclass(eq=False)
class Negotiator:
    """Selects the backends for all operations of a loaded object, and counts the rows of each backend.

    Keeps what calls need. The installed plugins are looked for again where a selection is missing: at the first call of
    another operation, and after the failure of a backend.
    """

    device: torch.device
    """Device of all tensors that calls take and return."""
    need: Any
    discover: Callable[[], Discovery] | None = None
    """Finds and loads the installed plugins; None: nothing can be selected, and no backend replaced."""
    _: KW_ONLY
    strict: bool = False
    debug: bool = False
    companions: bool = True
    """Whether another backend may serve beside the selected one, or in its place after a failure."""
    selected: InitVar[Iterable[Selection]] = ()
    before_build: Callable[[str], None] | None = None

    def __post_init__(self, selected: Iterable[Selection]) -> None:
        reseed_children()
        self.lock = threading.RLock()  # held while backends are selected
        self.selections = {selection.resolution.operation: selection for selection in selected}
        self.rejections: Rejections = {}
        self._backends: dict[tuple[str, str], LoadedBackend] = {}
        self._rows: dict[str, int] = {}
        self._rows_lock = threading.Lock()

    def select(self, operation: Operation, discovery: Discovery | None = None) -> Selection:
        """Return the selection of an operation; make it first, if missing, and warn of the decision once a process."""
        selection = self.selections.get(operation.name)
        if selection is None:
            with self.lock:
                selection = self.selections.get(operation.name)
                if selection is None:
                    selection, rejections = self.settle(operation, self.rejections, discovery)
                    self.adopt(rejections)
                    warn_of(selection.resolution, strict=self.strict, once_for=operation.name)
                    self.selections[operation.name] = selection
        return selection

    def settle(
        self, operation: Operation, rejections: Rejections, discovery: Discovery | None = None
    ) -> tuple[Selection, Rejections]:
        """Resolve and build until the plugins are proven; return the selection, and the rejections that it rests on.

        A plugin that fails is rejected and the next best is tried. An explicit choice has no next best.
        """
        if discovery is None:
            if self.discover is None:
                raise SamplerUnavailableError(
                    f"Nobody was negotiated for the operation {operation.name!r}. Use tokendraw.load_sampler."
                )
            discovery = self.discover()
        if (names := discovery.choice.names) is not None:
            if operation.name not in names:
                raise SamplerUnavailableError(
                    f"The names that were passed for {discovery.choice.source or 'sampler='} hold none for the "
                    f"operation {operation.name!r}. Load {operation.name!r} too where the names come from."
                )
            discovery = replace(discovery, choice=replace(discovery.choice, sampler=names[operation.name][0]))
        candidates, choice = discovery.candidates(operation, self.need), discovery.choice

        def resolve(*, companions: bool) -> Resolution:
            name, host = operation.name, discovery.host
            judged = [replace(c, rejection=_rejection(rejections, name, c.name)) for c in candidates]
            return decide(judged, host, self.need, choice, operation=operation, companions=companions)

        failures: dict[str, PluginError] = {}
        while True:
            try:
                resolution = resolve(companions=self.companions)
            except SamplerUnavailableError as error:
                raise error from failures.get(choice.sampler or "")
            unbuilt = (name for name in resolution.names if (operation.name, name) not in self._backends)
            missing = next(unbuilt, None)
            if missing is None:
                break
            try:
                if self.before_build is not None:
                    self.before_build(missing)
                hooks, capabilities = discovery.hooks[missing], discovery.offered(missing, operation)
                built = build(operation, hooks, capabilities, self.device, self.need)
                self._backends[operation.name, missing] = LoadedBackend.of(
                    operation, missing, built, capabilities, self.need, package_of(hooks)
                )
            except PluginError as error:
                failures[missing] = error
                reason = format_message(error, MAX_REASON_CHARS)
                rejections = rejected(rejections, operation, missing, reason, error.__cause__)
        backend, *companions = (self._backends[operation.name, name] for name in resolution.names)
        may_fall_back = self.companions and choice.sampler is None
        return Selection(
            resolution=resolution,
            backend=backend,
            companions=tuple(companions),
            barred_companion=None if self.companions else resolve(companions=True).companion,
            can_fall_back=may_fall_back and sum(d.accepted for d in resolution.decisions) > 1,
        ), rejections

    def adopt(self, rejections: Rejections) -> None:
        """Reject plugins from the next call of every operation on."""
        with self.lock:
            self.rejections = rejections
            for operation, selection in list(self.selections.items()):
                if any(_rejection(rejections, operation, b.name) for b in selection.backends):
                    del self.selections[operation]

    def choices(self) -> dict[str, tuple[str, ...]]:
        with self.lock:
            return {name: selection.resolution.names for name, selection in self.selections.items()}

    def count(self, name: str, rows: int) -> None:
        if rows:
            with self._rows_lock:
                self._rows[name] = self._rows.get(name, 0) + rows

    def stats(self) -> dict[str, int]:
        with self._rows_lock:
            return dict(self._rows)

    def restore_stats(self, rows: Mapping[str, int]) -> None:
        with self._rows_lock:
            self._rows = dict(rows)


def rejected(
    rejections: Rejections, operation: Operation, name: str, reason: str, error: BaseException | None
) -> Rejections:
    """Copy rejections with a plugin added; a fault of the device rejects the plugin in every operation."""
    return {**rejections, (None if is_device_fault(error) else operation.name, name): reason}


def warn_of(resolution: Resolution, *, strict: bool, once_for: Hashable = None) -> None:
    """Warn of a decision's passed-over plugins, once for ``once_for``, and of untested versions; raise if strict."""
    if resolution.fallback:
        outcome = using(resolution.chosen)
        announce(
            SamplerFallbackWarning, resolution.fallback, strict=strict, once_for=once_for, outcome=outcome
        )
    for text in resolution.untested:
        announce(UntestedUpstreamWarning, text, strict=strict)


def _rejection(rejections: Rejections, operation: str, name: str) -> str | None:
    return rejections.get((operation, name)) or rejections.get((None, name))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a host or a device had too little memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def is_device_fault(error: BaseException | None) -> bool:
    """Whether a kernel, or the driver, failed. ``torch.AcceleratorError`` is a RuntimeError; older versions lack it."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    fault = getattr(torch, "AcceleratorError", None)
    return (fault is not None and isinstance(error, fault)) or any(text in str(error) for text in _FAULTS)


# A backend is accepted only after a call with a known outcome: a kernel that does not compile, or a wrong driver, shows
# here as a reason, and not as a crash at the first request.

_lock = threading.RLock()  # two proofs at once would put back each other's random state


def build(
    operation: Operation,
    hooks: pluggy.HookRelay,
    capabilities: HostCapabilities,
    device: torch.device,
    need: HostNeed,
) -> Any:
    """Build a plugin's backend of an operation for one device, and prove it."""
    package = package_of(hooks)
    with _lock, random_state_kept(device):
        backend = guard.guarded(
            "tokendraw_build",
            lambda: hooks.tokendraw_build(operation=operation.name, device=device, need=need),
            package,
        )
        for method in operation.methods:
            if not callable(getattr(backend, method, None)):
                raise PluginError(
                    f"tokendraw_build needs to return an object with a method {method}, "
                    f"found {type(backend).__name__}"
                )
        guard.guarded(operation.proof, lambda: operation.prove(backend, capabilities, device, need), package)
    return backend


def package_of(hooks: pluggy.HookRelay) -> str:
    return guard.package_of(hooks.tokendraw_build.get_hookimpls()[-1].plugin)


def random_state_kept(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Put torch's random state back: ``torch.manual_seed`` means the same with and without a proof draw."""
    if device.type in ("cuda", "xpu"):
        return torch.random.fork_rng(devices=[device.index or 0], device_type=device.type)
    return torch.random.fork_rng(devices=[], device_type="cpu")
