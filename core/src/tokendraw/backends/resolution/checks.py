"""Checks of any operation: each is a small pure function that returns None, or in words why a backend cannot serve.

Every check takes (capabilities, host, need). A reason says what was needed and what was found. An operation adds its
own between those of the host and :func:`promises`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.operation import Check, Operation
from tokendraw.errors.formatting import all_of, dotted, one_of


def is_made_for(capabilities: HostCapabilities, host: Host) -> bool:
    """Whether a backend is made for this kind of device."""
    return capabilities.device_types is None or host.device_type in capabilities.device_types


def device_type(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Compare the kind of device."""
    if is_made_for(capabilities, host):
        return None
    assert capabilities.device_types is not None
    return f"needs a {one_of(capabilities.device_types)} device, found {host.device_type}"


def compute_capability(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Compare the generation of an NVIDIA device; unknown is unfit: a wrong kernel can end the process."""
    if host.device_type != "cuda" or capabilities.compute_capability is None:
        return None
    least, largest = capabilities.compute_capability
    found = host.compute_capability
    if found is not None and least <= found and (largest is None or found <= largest):
        return None
    needed = f"{dotted(least)} or later" if largest is None else f"{dotted(least)} to {dotted(largest)}"
    return f"needs compute capability {needed}, found {dotted(found) if found else 'none reported'}"


def rocm_arch(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Compare the architecture of an AMD device; unknown is unfit: a wrong kernel can end the process."""
    if host.device_type != "rocm" or capabilities.rocm_archs is None:
        return None
    if host.rocm_arch in capabilities.rocm_archs:
        return None
    return f"needs {one_of(capabilities.rocm_archs)}, found {host.rocm_arch or 'no architecture reported'}"


def sm_count(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Compare the size of an NVIDIA device; unknown is fit, since the proof draw will tell."""
    if host.device_type != "cuda" or host.sm_count is None or host.sm_count >= capabilities.min_sm_count:
        return None
    return f"needs {capabilities.min_sm_count} SMs or more, found {host.sm_count}"


def promises(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Look for missing promises, such as CUDA graphs; an operation need not have all of them."""
    missing = [
        label
        for field, label in _PROMISES.items()
        if getattr(need, field, False) and not getattr(capabilities, field, False)
    ]
    return f"the request needs {all_of(missing)}, found no such promise" if missing else None


_PROMISES = {
    "valid_flag": "a valid flag",
    "threshold": "thresholds",
    "graph_safe": "graph-safe calls",
    "sync_free": "sync-free calls",
    "batch_invariant": "batch-invariant draws",
}
HOST_CHECKS: tuple[Check, ...] = (device_type, compute_capability, rocm_arch, sm_count)


def first_reason(
    operation: Operation, offered: Mapping[str, HostCapabilities], host: Host, need: HostNeed
) -> str | None:
    """Find the first reason why a plugin that offers these operations cannot serve one; None if it can.

    The machine goes first, then the request, as a person would look.
    """
    capabilities = offered.get(operation.name)
    if capabilities is None:
        return f"needs the operation {operation.name}, found {all_of(sorted(offered))}"
    return first_of((*HOST_CHECKS, *operation.checks, promises), capabilities, host, need)


def first_of(
    checks: Iterable[Check], capabilities: HostCapabilities, host: Host, need: HostNeed
) -> str | None:
    """Return the reason of the first check that fails; None if all pass."""
    reasons = (check(capabilities, host, need) for check in checks)
    return next((reason for reason in reasons if reason is not None), None)
