"""The conformance kit, which tests sampler plugins: as pytest tests, as a command, and as tools for your own tests.

========================================  ==============================================================================
:class:`SamplerConformance`               a class of pytest tests; a plugin's authors subclass it and give one fixture
:class:`Subject`                          the sampler under test: built by itself, with what it advertises
:func:`run`                               checks every property of a subject, as ``tokendraw check`` does: a
                                          :class:`Report` of a :class:`Line` a property, each with its :class:`Status`
:func:`properties`                        lists every :class:`Property`; :func:`check` checks one of them
:class:`Effort`                           how much a run does: quick, full, or tiny for kernels in an interpreter
:func:`sync_is_an_error`                  a context in which torch raises where it would wait for the CUDA device
:func:`fake_dist`                         a real distribution on ``sys.path``, for tests of discovery
:mod:`tokendraw.testing.fixtures`         pytest fixtures: no waiting for the GPU, poisoned buffers
:mod:`tokendraw.testing.logits_families`  shapes of logits that samplers meet, or stumble over
:mod:`tokendraw.testing.reference`        one sampling step in float64, with numpy alone
:mod:`tokendraw.testing.reference_walk`   one verification of drafts, likewise
========================================  ==============================================================================

Needs numpy, scipy and, for the class and the fixtures, pytest, which tokendraw's extra ``testing`` brings.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.testing.conformance import SamplerConformance
    from tokendraw.testing.fake_distributions import fake_dist
    from tokendraw.testing.kit.device import sync_is_an_error
    from tokendraw.testing.kit.effort import Effort
    from tokendraw.testing.kit.operation import properties
    from tokendraw.testing.kit.property import Property
    from tokendraw.testing.kit.report import Line, Report, Status
    from tokendraw.testing.kit.run import check, run
    from tokendraw.testing.kit.subject import Subject

_HOMES = {
    "testing.conformance": ("SamplerConformance",),
    "testing.fake_distributions": ("fake_dist",),
    "testing.kit.device": ("sync_is_an_error",),
    "testing.kit.effort": ("Effort",),
    "testing.kit.operation": ("properties",),
    "testing.kit.property": ("Property",),
    "testing.kit.report": ("Line", "Report", "Status"),
    "testing.kit.run": ("check", "run"),
    "testing.kit.subject": ("Subject",),
}

__all__ = [
    "Effort",
    "Line",
    "Property",
    "Report",
    "SamplerConformance",
    "Status",
    "Subject",
    "check",
    "fake_dist",
    "properties",
    "run",
    "sync_is_an_error",
]

if importlib.util.find_spec("pytest"):
    import pytest

    pytest.register_assert_rewrite(f"{__name__}.conformance", f"{__name__}.fixtures")


__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
