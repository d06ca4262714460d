"""The face for tests and benchmarks of a single plugin: building it, calling it, wording messages, pages of HTML.

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
    from tokendraw.backends.description import NAME_RULE as NAME_RULE
    from tokendraw.backends.description import is_name as is_name
    from tokendraw.backends.discovery.entry_points import find_entry_points as find_entry_points
    from tokendraw.backends.resolution.candidate import FIRST_PARTY as FIRST_PARTY
    from tokendraw.calls.negotiator import is_out_of_memory as is_out_of_memory
    from tokendraw.calls.negotiator import random_state_kept as random_state_kept
    from tokendraw.errors import all_of as all_of
    from tokendraw.errors import format_error as format_error
    from tokendraw.errors import format_value as format_value
    from tokendraw.errors import how_to_install as how_to_install
    from tokendraw.errors import nearest as nearest
    from tokendraw.errors import one_of as one_of
    from tokendraw.html_pages import PageSection as PageSection
    from tokendraw.html_pages import draw_chart as draw_chart
    from tokendraw.html_pages import require_html as require_html
    from tokendraw.html_pages import write_page as write_page
    from tokendraw.operations import find_operation as find_operation
    from tokendraw.operations import operation_names as operation_names
    from tokendraw.providers import InstalledPlugin as InstalledPlugin
    from tokendraw.providers import dispatch_call as dispatch_call
    from tokendraw.providers import find_device as find_device
    from tokendraw.providers import find_unsupported as find_unsupported
    from tokendraw.providers import make_call as make_call
    from tokendraw.providers import run_call as run_call

__getattr__, __dir__ = _lazy.lazy_names(__name__)
