"""The face for tests and benchmarks of a single plugin: building it, calling it, wording messages, pages of HTML.

================================================  =====================================================================
:class:`InstalledPlugin`                          an installed plugin on one device: judged, built and proven
:func:`make_call`, :func:`find_unsupported`       a call of an operation's method; the part of it beyond a plugin
:func:`run_call`, :func:`dispatch_call`           its output on an object, checked; or what a provider makes of it
:func:`find_operation`, :func:`operation_names`   the records of operations
:func:`find_device`, :func:`find_entry_points`    a device with the facts about it; entry points of installed plugins
``NAME_RULE``, ``FIRST_PARTY``, :func:`is_name`   names that plugins may have, and those that are reserved
:func:`require_torch`, :func:`is_out_of_memory`   torch, or a sentence about what it lacks; errors that prove no fault
:func:`num_threads`, :func:`random_state_kept`    contexts: threads of the caller's operations; torch's random state
:class:`TensorCall`, :func:`example`               the call of a pure function of tensors, and one of random arguments
:func:`on_device`, :func:`tensors_of`             its arguments on a device; the tensors of its result, by name
:func:`difference`                                the first value of its result that is not that of a reference
:func:`all_of`, :func:`one_of`, :func:`nearest`   lists and misspelled words in messages
:func:`format_error`, :func:`format_value`        exceptions and values on one printable line
:func:`how_to_install`                            the command that installs one of tokendraw's distributions
:func:`write_page`, :func:`require_html`          a page of HTML in one file; what it needs, ahead of the work
:class:`PageSection`, :func:`draw_chart`          its texts and tables; its lines and bars
:func:`lazy_names`                                ``__getattr__`` and ``__dir__`` of a module that imports at first use
================================================  =====================================================================

Decisions and their reasons are in :mod:`tokendraw.resolution`, commands in :mod:`tokendraw.commands`. A tool that uses
these functions goes with one version of tokendraw: they may change where the three other faces do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw import _lazy

if TYPE_CHECKING:
    from tokendraw._lazy import lazy_names as lazy_names
    from tokendraw._torch.importing import require_torch as require_torch
    from tokendraw._torch.threads import num_threads as num_threads
    from tokendraw.backends.description.plugin_info import NAME_RULE as NAME_RULE
    from tokendraw.backends.description.plugin_info import is_name as is_name
    from tokendraw.backends.discovery.entry_points import find_entry_points as find_entry_points
    from tokendraw.backends.proof import random_state_kept as random_state_kept
    from tokendraw.backends.resolution.admission import FIRST_PARTY as FIRST_PARTY
    from tokendraw.calls.device_faults import is_out_of_memory as is_out_of_memory
    from tokendraw.calls.tensor_function import TensorCall as TensorCall
    from tokendraw.calls.tensor_function import difference as difference
    from tokendraw.calls.tensor_function import example as example
    from tokendraw.calls.tensor_function import on_device as on_device
    from tokendraw.calls.tensor_function import tensors_of as tensors_of
    from tokendraw.errors.formatting import all_of as all_of
    from tokendraw.errors.formatting import format_error as format_error
    from tokendraw.errors.formatting import format_value as format_value
    from tokendraw.errors.formatting import how_to_install as how_to_install
    from tokendraw.errors.formatting import nearest as nearest
    from tokendraw.errors.formatting import one_of as one_of
    from tokendraw.html_pages import PageSection as PageSection
    from tokendraw.html_pages import draw_chart as draw_chart
    from tokendraw.html_pages import require_html as require_html
    from tokendraw.html_pages import write_page as write_page
    from tokendraw.operations import find_operation as find_operation
    from tokendraw.operations import operation_names as operation_names
    from tokendraw.providers.load import find_device as find_device
    from tokendraw.providers.single_plugin import InstalledPlugin as InstalledPlugin
    from tokendraw.providers.single_plugin import dispatch_call as dispatch_call
    from tokendraw.providers.single_plugin import find_unsupported as find_unsupported
    from tokendraw.providers.single_plugin import make_call as make_call
    from tokendraw.providers.single_plugin import run_call as run_call

_NAMES = {
    "tokendraw._lazy": "lazy_names",
    "tokendraw._torch.importing": "require_torch",
    "tokendraw._torch.threads": "num_threads",
    "tokendraw.backends.description.plugin_info": "NAME_RULE is_name",
    "tokendraw.backends.discovery.entry_points": "find_entry_points",
    "tokendraw.backends.proof": "random_state_kept",
    "tokendraw.backends.resolution.admission": "FIRST_PARTY",
    "tokendraw.calls.device_faults": "is_out_of_memory",
    "tokendraw.calls.tensor_function": "TensorCall difference example on_device tensors_of",
    "tokendraw.errors.formatting": "all_of format_error format_value how_to_install nearest one_of",
    "tokendraw.html_pages": "PageSection draw_chart require_html write_page",
    "tokendraw.operations": "find_operation operation_names",
    "tokendraw.providers.load": "find_device",
    "tokendraw.providers.single_plugin": """
        InstalledPlugin dispatch_call find_unsupported make_call run_call
    """,
}
_REMOVED = dict.fromkeys(
    ("heavy_imports", "slow_start"),
    "run `python -X importtime -c 'import acme_tokendraw'` to see what a plugin imports",
)
__getattr__, __dir__ = _lazy.lazy_names(__name__, _NAMES, removed=_REMOVED)
