"""Checks of operations: each is a small pure function that returns None, or in words why a backend cannot serve.

Every check takes (capabilities, host, need). A reason says what was needed and what was found. An operation adds its
own, or those of :data:`ROW_CHECKS`, between those of the host and :func:`promises`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokendraw.backends.description import (
    Capabilities,
    Check,
    Host,
    HostCapabilities,
    HostNeed,
    Need,
    Operation,
    Seeding,
)
from tokendraw.errors import all_of, dotted, one_of


def is_made_for(capabilities: HostCapabilities, host: Host) -> bool:
    return capabilities.device_types is None or host.device_type in capabilities.device_types


def device_type(capabilities: HostCapabilities, host: Host, need: HostNeed) -> str | None:
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
    """Find the first reason why a plugin that offers these operations cannot serve one, the machine first."""
    capabilities = offered.get(operation.name)
    if capabilities is None:
        return f"needs the operation {operation.name}, found {all_of(sorted(offered))}"
    return first_of((*HOST_CHECKS, *operation.checks, promises), capabilities, host, need)


def first_of(checks: Iterable[Check], offered: HostCapabilities, host: Host, need: HostNeed) -> str | None:
    """Return the reason of the first check that fails; None if all pass."""
    reasons = (check(offered, host, need) for check in checks)
    return next((reason for reason in reasons if reason is not None), None)


_SEEDING_RANK: dict[Seeding, int] = {"none": 0, "launch": 1, "counter": 2}


def dtype(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    if need.dtype is None or need.dtype in capabilities.dtypes:
        return None
    return f"the request needs logits in {need.dtype}, found {all_of(capabilities.dtypes)}"


def vocab_size(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    limit = capabilities.max_vocab_size
    if need.vocab_size is None or limit is None or need.vocab_size <= limit:
        return None
    return f"the request needs a vocabulary of {need.vocab_size}, found a limit of {limit}"


def filter_orders(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for one of the filter orders in use; the companion serves rows of the second order."""
    if not need.filter_orders or set(need.filter_orders) & set(capabilities.filter_orders):
        return None
    needed, found = one_of(need.filter_orders), all_of(capabilities.filter_orders)
    return f"the request needs filter order {needed}, found {found}"


def gumbel_dtype(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    if need.gumbel_dtype in capabilities.gumbel_dtypes:
        return None
    return f"the request needs {need.gumbel_dtype} noise, found {all_of(capabilities.gumbel_dtypes)}"


def seeding(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    if _SEEDING_RANK[capabilities.seeding] >= _SEEDING_RANK[need.seeding]:
        return None
    return f"the request needs {need.seeding} seeding, found {capabilities.seeding}"


def tie_rule(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    if need.tie_rule in (None, "either", capabilities.tie_rule):
        return None
    return f"the request needs tie rule {need.tie_rule}, found {capabilities.tie_rule}"


ROW_CHECKS: tuple[Check, ...] = (dtype, vocab_size, filter_orders, gumbel_dtype, seeding, tie_rule)
"""The checks, in the order in which a person would look."""


def logprobs_mode(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for the mode of logprobs, for an operation that is about nothing else."""
    if need.logprobs_mode in capabilities.logprobs_modes:
        return None
    return f"the request needs {need.logprobs_mode}, found {all_of(capabilities.logprobs_modes)}"


def processed_logprobs(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for logprobs after the filters, which only the sampler that filters can tell.

    Not among ``ROW_CHECKS``: an explicit choice that lacks them stands if a companion can serve the rows that ask
    for logprobs. The default choice does not go to such a sampler. Raw and temperature logprobs depend on the
    logits alone, so a sampler without them is no worse for the rows that do not ask.
    """
    return logprobs_mode(capabilities, host, need) if need.logprobs_mode.startswith("processed_") else None
