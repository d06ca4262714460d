"""Checks shared by the operations on rows of logits.

Each check takes (capabilities, host, need) and returns None, or in words why a backend cannot serve.
"""

from __future__ import annotations

from tokendraw.backends.description.capabilities import Capabilities, Need, Seeding
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.operation import Check
from tokendraw.errors.formatting import all_of, one_of

_SEEDING_RANK: dict[Seeding, int] = {"none": 0, "launch": 1, "counter": 2}


def dtype(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the dtype of the logits, if known."""
    if need.dtype is None or need.dtype in capabilities.dtypes:
        return None
    return f"the request needs logits in {need.dtype}, found {all_of(capabilities.dtypes)}"


def vocab_size(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the size of the vocabulary, if known."""
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
    """Compare the precision of the noise."""
    if need.gumbel_dtype in capabilities.gumbel_dtypes:
        return None
    return f"the request needs {need.gumbel_dtype} noise, found {all_of(capabilities.gumbel_dtypes)}"


def seeding(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the seeding of the noise."""
    if _SEEDING_RANK[capabilities.seeding] >= _SEEDING_RANK[need.seeding]:
        return None
    return f"the request needs {need.seeding} seeding, found {capabilities.seeding}"


def tie_rule(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Compare the treatment of tokens tied with the last kept token."""
    if need.tie_rule in (None, "either", capabilities.tie_rule):
        return None
    return f"the request needs tie rule {need.tie_rule}, found {capabilities.tie_rule}"


CHECKS: tuple[Check, ...] = (dtype, vocab_size, filter_orders, gumbel_dtype, seeding, tie_rule)
"""The checks, in the order in which a person would look."""


def logprobs_mode(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for the mode of logprobs, for an operation that is about nothing else."""
    if need.logprobs_mode in capabilities.logprobs_modes:
        return None
    return f"the request needs {need.logprobs_mode}, found {all_of(capabilities.logprobs_modes)}"


def processed_logprobs(capabilities: Capabilities, host: Host, need: Need) -> str | None:
    """Look for logprobs after the filters, which only the sampler that filters can tell.

    Not among ``CHECKS``: an explicit choice that lacks them stands if a companion can serve the rows that ask
    for logprobs. The default choice does not go to such a sampler. Raw and temperature logprobs depend on the
    logits alone, so a sampler without them is no worse for the rows that do not ask.
    """
    return logprobs_mode(capabilities, host, need) if need.logprobs_mode.startswith("processed_") else None
