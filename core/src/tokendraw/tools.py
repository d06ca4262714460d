"""The face for tools that test and time plugins: one plugin by itself, its calls, and the words of messages.

================================================  =====================================================================
:class:`InstalledPlugin`                          an installed plugin on one device: judged, built and proven
:func:`make_call`, :func:`find_unsupported`       a call of an operation's method; the part of it beyond a plugin
:func:`run_call`, :func:`dispatch_call`           its output on an object, checked; or what a provider makes of it
:func:`find_operation`, :func:`operation_names`   the records of operations
:func:`find_device`, :func:`find_entry_points`    a device with the facts about it; entry points of installed plugins
``NAME_RULE``, ``FIRST_PARTY``, :func:`is_name`   names that plugins may have, and those that are reserved
:func:`heavy_imports`, :func:`slow_start`         what loading a plugin imports and should not, and its complaint
:func:`require_torch`, :func:`is_out_of_memory`   torch, or a sentence about what it lacks; errors that prove no fault
:func:`num_threads`, :func:`random_state_kept`    contexts: threads of the caller's operations; torch's random state
:func:`packed_weights`, :func:`packed_scales`     the layouts of 4-bit weights by their formulas, on a CPU
:func:`packings`                                  the pairs of format and layout that a packer serves
:func:`all_of`, :func:`one_of`, :func:`nearest`   lists and misspelled words in messages
:func:`format_error`, :func:`format_value`        exceptions and values on one printable line
:func:`how_to_install`                            the command that installs one of tokendraw's distributions
================================================  =====================================================================

Decisions and their reasons are in :mod:`tokendraw.resolution`, commands in :mod:`tokendraw.commands`. A tool that uses
these functions goes with one version of tokendraw: they may change where the three other faces do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw._torch.importing import require_torch
    from tokendraw._torch.threads import num_threads
    from tokendraw.backends.description.plugin_info import NAME_RULE, is_name
    from tokendraw.backends.discovery.heavy_imports import heavy_imports, slow_start
    from tokendraw.backends.proof import random_state_kept
    from tokendraw.backends.resolution.admission import FIRST_PARTY
    from tokendraw.calls.device_faults import is_out_of_memory
    from tokendraw.errors.formatting import all_of, format_error, format_value, nearest, one_of
    from tokendraw.errors.install_commands import how_to_install
    from tokendraw.operations.pack_sm90_w4.capabilities import packings
    from tokendraw.operations.pack_sm90_w4.reference import packed_scales, packed_weights
    from tokendraw.providers.single_plugin import (
        InstalledPlugin,
        dispatch_call,
        find_device,
        find_entry_points,
        find_operation,
        find_unsupported,
        make_call,
        operation_names,
        run_call,
    )

_HOMES = {
    "_torch.importing": ("require_torch",),
    "_torch.threads": ("num_threads",),
    "backends.description.plugin_info": (
        "NAME_RULE",
        "is_name",
    ),
    "backends.discovery.heavy_imports": (
        "heavy_imports",
        "slow_start",
    ),
    "backends.proof": ("random_state_kept",),
    "backends.resolution.admission": ("FIRST_PARTY",),
    "calls.device_faults": ("is_out_of_memory",),
    "errors.formatting": (
        "all_of",
        "format_error",
        "format_value",
        "nearest",
        "one_of",
    ),
    "errors.install_commands": ("how_to_install",),
    "operations.pack_sm90_w4.capabilities": ("packings",),
    "operations.pack_sm90_w4.reference": (
        "packed_scales",
        "packed_weights",
    ),
    "providers.single_plugin": (
        "InstalledPlugin",
        "dispatch_call",
        "find_device",
        "find_entry_points",
        "find_operation",
        "find_unsupported",
        "make_call",
        "operation_names",
        "run_call",
    ),
}

__all__ = [
    "FIRST_PARTY",
    "NAME_RULE",
    "InstalledPlugin",
    "all_of",
    "dispatch_call",
    "find_device",
    "find_entry_points",
    "find_operation",
    "find_unsupported",
    "format_error",
    "format_value",
    "heavy_imports",
    "how_to_install",
    "is_name",
    "is_out_of_memory",
    "make_call",
    "nearest",
    "num_threads",
    "one_of",
    "operation_names",
    "packed_scales",
    "packed_weights",
    "packings",
    "random_state_kept",
    "require_torch",
    "run_call",
    "slow_start",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
