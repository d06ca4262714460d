"""Detects disturbed times, by their spread and the load of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_BUSY_SPREAD = 0.5
"""Spread above that of an idle machine."""
_LOADED_SPREAD = 0.1
"""Spread that shows other work if there are more threads than free cores."""


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """Cores and load of the host before a run."""

    cores: int
    """Cores that this process may use."""
    load: float | None
    """Programs at work on average over the minute before; None where the system does not count them."""

    @property
    def free(self) -> int:
        """Return the number of idle cores, at least 1."""
        return max(1, self.cores - round(self.load or 0.0))


def read_host_load() -> HostLoad:
    """Read cores and load of the host, before a run."""
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return HostLoad(cores=usable, load=None)
    return HostLoad(cores=usable, load=max(0.0, load - (count - usable)))  # others may have the rest


def busy(machine: HostLoad | None, spreads: Mapping[str, float], *, threads: int, repeats: int) -> str:
    """Warn of disturbed times, with the signs and the settings to change; "" without signs.

    :param machine: load of the host; None if a device computes.
    :param spreads: worst spread by name of the call: half the distance of the quartiles as a share of the median.
    """
    worst = max(spreads, key=lambda name: spreads[name], default="")
    spread = spreads.get(worst, 0.0)
    load = machine.load if machine and machine.load is not None else 0.0
    loaded = machine is not None and (
        load > machine.cores or (threads > machine.free and spread > _LOADED_SPREAD)
    )
    if not loaded and spread <= _BUSY_SPREAD:
        return ""
    signs = [f"times spread by up to ±{100 * spread:.0f} % ({worst})"] if spread > _LOADED_SPREAD else []
    settings = [f"more --repeats ({repeats} here)"]
    if machine and loaded:
        cores = f"{machine.cores} core{'s' * (machine.cores > 1)}"
        signs.insert(0, f"{load:.1f} programs were at work on {cores} before the run")
    if machine and threads > (least := machine.free if loaded else 1):
        settings.insert(0, f"OMP_NUM_THREADS={least} ({threads} threads here)")
    return (
        f"The {'machine' if machine else 'machine or its device'} was busy: {', and '.join(signs)}. "
        f"Repeat it on an idle one, or with {' and '.join(settings)}."
    )
