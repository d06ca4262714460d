"""Tells whether other work disturbed the times, by their spread and the load of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_WIDE = 0.5
"""Spread that no idle machine shows."""
_WIDE_UNDER_LOAD = 0.1
"""A spread that tells of other work where there are more threads than free cores."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of the host when a run began."""

    cores: int
    """Cores that this process may use."""
    load: float | None
    """Programs at work on average over the minute before; None where the system does not count them."""

    @property
    def free(self) -> int:
        """Return the number of cores without work, at least one."""
        return max(1, self.cores - round(self.load or 0.0))


def look() -> Machine:
    """Return the state of the machine now. Call it before anything is timed."""
    every = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return Machine(cores=usable, load=None)
    return Machine(cores=usable, load=max(0.0, load - (every - usable)))  # others may have the rest


def busy(machine: Machine | None, spreads: Mapping[str, float], *, threads: int, repeats: int) -> str:
    """Say that times were disturbed, by what signs, and what to set; "" if nothing points to it.

    :param machine: where the host computes; None if a device does.
    :param spreads: by what was timed, half the distance of the quartiles as a share of the median; the worst.
    """
    worst = max(spreads, key=lambda name: spreads[name], default="")
    spread = spreads.get(worst, 0.0)
    load = machine.load if machine and machine.load is not None else 0.0
    loaded = machine is not None and (
        load > machine.cores or (threads > machine.free and spread > _WIDE_UNDER_LOAD)
    )
    if not loaded and spread <= _WIDE:
        return ""
    signs = [f"times spread by up to ±{100 * spread:.0f} % ({worst})"] if spread > _WIDE_UNDER_LOAD else []
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
