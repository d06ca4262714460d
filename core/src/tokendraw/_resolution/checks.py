"""Why a sampler cannot serve: small pure functions, each about one thing: None, or a reason in words.

Every check takes (operation, capabilities, host, need). A reason says what was needed and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tokendraw._exchange.capabilities import Capabilities, Need, Operation, Seeding
from tokendraw._exchange.host import Host
from tokendraw._messages.words import all_of, dotted, one_of

Check: TypeAlias = Callable[[Operation, Capabilities, Host, Need], str | None]

_SEEDING_RANK: dict[Seeding, int] = {"none": 0, "launch": 1, "counter": 2}


def is_made_for(capabilities: Capabilities, host: Host) -> bool:
    """Whether a sampler is one for this kind of device at all."""
    return capabilities.device_types is None or host.device_type in capabilities.device_types


def device_type(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the kind of device."""
    if is_made_for(capabilities, host):
        return None
    assert capabilities.device_types is not None
    return f"needs a {one_of(capabilities.device_types)} device, found {host.device_type}"


def compute_capability(
    operation: Operation, capabilities: Capabilities, host: Host, need: Need
) -> str | None:
    """Compare the generation of an NVIDIA device; unknown is unfit: a wrong kernel can end the process."""
    if host.device_type != "cuda" or capabilities.compute_capability is None:
        return None
    least, largest = capabilities.compute_capability
    found = host.compute_capability
    if found is not None and least <= found and (largest is None or found <= largest):
        return None
    needed = f"{dotted(least)} or later" if largest is None else f"{dotted(least)} to {dotted(largest)}"
    return f"needs compute capability {needed}, found {dotted(found) if found else 'none reported'}"


def rocm_arch(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the architecture of an AMD device; unknown is unfit: a wrong kernel can end the process."""
    if host.device_type != "rocm" or capabilities.rocm_archs is None:
        return None
    if host.rocm_arch in capabilities.rocm_archs:
        return None
    return f"needs {one_of(capabilities.rocm_archs)}, found {host.rocm_arch or 'no architecture reported'}"


def sm_count(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the size of an NVIDIA device; unknown is fit, since the proof draw will tell."""
    if host.device_type != "cuda" or host.sm_count is None or host.sm_count >= capabilities.min_sm_count:
        return None
    return f"needs {capabilities.min_sm_count} SMs or more, found {host.sm_count}"


def dtype(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the dtype of the logits, if it is known."""
    if need.dtype is None or need.dtype in capabilities.dtypes:
        return None
    return f"the request needs logits in {need.dtype}, found {all_of(capabilities.dtypes)}"


def vocab_size(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the size of the vocabulary, if it is known."""
    limit = capabilities.max_vocab_size
    if need.vocab_size is None or limit is None or need.vocab_size <= limit:
        return None
    return f"the request needs a vocabulary of {need.vocab_size}, found a limit of {limit}"


def filter_orders(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for one of the filter orders in use; the companion serves rows of the other."""
    if not need.filter_orders or set(need.filter_orders) & set(capabilities.filter_orders):
        return None
    needed, found = one_of(need.filter_orders), all_of(capabilities.filter_orders)
    return f"the request needs filter order {needed}, found {found}"


def gumbel_dtype(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the precision of the noise."""
    if need.gumbel_dtype in capabilities.gumbel_dtypes:
        return None
    return f"the request needs {need.gumbel_dtype} noise, found {all_of(capabilities.gumbel_dtypes)}"


def seeding(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare what seeds the noise."""
    if _SEEDING_RANK[capabilities.seeding] >= _SEEDING_RANK[need.seeding]:
        return None
    return f"the request needs {need.seeding} seeding, found {capabilities.seeding}"


def tie_rule(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare what happens to tokens tied with the last kept one."""
    if need.tie_rule in (None, "either", capabilities.tie_rule):
        return None
    return f"the request needs tie rule {need.tie_rule}, found {capabilities.tie_rule}"


def promises(operation: Operation, capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for the properties that are simply there or not."""
    labels = {
        "valid_flag": "a valid flag",
        "graph_safe": "graph-safe calls",
        "sync_free": "sync-free calls",
        "batch_invariant": "batch-invariant draws",
    }
    missing = [
        label for field, label in labels.items() if getattr(need, field) and not getattr(capabilities, field)
    ]
    return f"the request needs {all_of(missing)}, found no such promise" if missing else None


CHECKS: tuple[Check, ...] = (
    device_type,
    compute_capability,
    rocm_arch,
    sm_count,
    dtype,
    vocab_size,
    filter_orders,
    gumbel_dtype,
    seeding,
    tie_rule,
    promises,
)
"""In the order in which a person would look: the machine first, then the request."""


def processed_logprobs(
    operation: Operation, capabilities: Capabilities, host: Host, need: Need
) -> str | None:
    """Look for logprobs after the filters, which only the sampler that filters can tell.

    Not among ``CHECKS``: an explicit choice that lacks them stands if a companion can serve the rows that ask
    for logprobs. The default choice does not go to such a sampler. Raw and temperature logprobs depend on the
    logits alone, so a sampler without them is no worse for the rows that do not ask.
    """
    if not need.logprobs_mode.startswith("processed_") or need.logprobs_mode in capabilities.logprobs_modes:
        return None
    return f"the request needs {need.logprobs_mode}, found {all_of(capabilities.logprobs_modes)}"


def first_reason(
    operation: Operation, operations: Mapping[Operation, Capabilities], host: Host, need: Need
) -> str | None:
    """Find the first reason why a plugin with these ``operations`` cannot serve; None if it can."""
    if operation not in operations:
        return f"needs the operation {operation}, found {all_of(sorted(operations))}"
    capabilities = operations[operation]
    reasons = (check(operation, capabilities, host, need) for check in CHECKS)
    return next((reason for reason in reasons if reason is not None), None)
