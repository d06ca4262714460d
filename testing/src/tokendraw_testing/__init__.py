"""The conformance kit for sampler plugins: as pytest tests, as a command, and as tools for your own tests.

========================================  ==============================================================================
:class:`SamplerConformance`               a class of pytest tests; a plugin's authors subclass it and give one fixture
:class:`Subject`                          the sampler under test: built by itself, with what it advertises
:func:`run`                               checks every property of a subject, as ``tokendraw check`` does: a
                                          :class:`Report` of a :class:`Line` a property, each with its :class:`Status`
:func:`properties`                        lists every :class:`Property`; :func:`check` checks one of them
:func:`check_filter`                      checks a filter from moments, as ``tokendraw check --filter`` does
:class:`Effort`                           how much a run does: quick, full, or tiny for kernels in an interpreter
:func:`sync_is_an_error`                  a context in which torch raises where it would wait for the CUDA device
:func:`fake_dist`                         a real distribution on ``sys.path``, for tests of discovery
:mod:`tokendraw_testing.fixtures`         pytest fixtures: no waiting for the GPU, poisoned buffers
:mod:`tokendraw_testing.logits_families`  shapes of logits that samplers meet, or stumble over
:mod:`tokendraw_testing.reference`        one sampling step in float64, with numpy alone
:mod:`tokendraw_testing.reference_walk`   one verification of drafts, likewise
========================================  ==============================================================================

The distribution also brings the commands ``tokendraw check`` and ``tokendraw new``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tokendraw.tools import lazy_names

if TYPE_CHECKING:
    from tokendraw_testing.conformance import SamplerConformance as SamplerConformance
    from tokendraw_testing.fake_distributions import fake_dist as fake_dist
    from tokendraw_testing.filter_check import FilterReport as FilterReport
    from tokendraw_testing.filter_check import check_filter as check_filter
    from tokendraw_testing.kit.device import sync_is_an_error as sync_is_an_error
    from tokendraw_testing.kit.effort import Effort as Effort
    from tokendraw_testing.kit.property import Property as Property
    from tokendraw_testing.kit.property import properties as properties
    from tokendraw_testing.kit.report import Line as Line
    from tokendraw_testing.kit.report import Report as Report
    from tokendraw_testing.kit.report import Status as Status
    from tokendraw_testing.kit.run import check as check
    from tokendraw_testing.kit.run import run as run
    from tokendraw_testing.kit.subject import Subject as Subject

if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.conformance", f"{__name__}.fixtures")

__getattr__, __dir__ = lazy_names(__name__)
