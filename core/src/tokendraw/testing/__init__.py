"""The conformance kit: what a sampler plugin is held to, as tests, as a command, and as tools for tests of one's own.

=======================================  ==============================================================================
:class:`SamplerConformance`              a class of pytest tests; a plugin's authors subclass it and give one fixture
:class:`Subject`                         the sampler under test: built by itself, with what it advertises
:func:`run`                              every property of a subject, as ``tokendraw check`` runs them
:func:`fake_dist`                        a real distribution on ``sys.path``, for tests of discovery
:mod:`tokendraw.testing.fixtures`        pytest fixtures: no waiting for the GPU, poisoned buffers
:mod:`tokendraw.testing.reference`       one sampling step in float64, with numpy alone
:mod:`tokendraw.testing.reference_walk`  one verification of drafts, likewise
=======================================  ==============================================================================

Needs numpy, scipy and, for the class and the fixtures, pytest, which tokendraw's extra ``testing`` brings.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendraw.testing.conformance import SamplerConformance
    from tokendraw.testing.fake_distributions import fake_dist
    from tokendraw.testing.kit.run import run
    from tokendraw.testing.kit.subject import Subject

_HOME_OF = {
    "SamplerConformance": "conformance",
    "Subject": "kit.subject",
    "fake_dist": "fake_distributions",
    "run": "kit.run",
}

__all__ = ["SamplerConformance", "Subject", "fake_dist", "run"]

if importlib.util.find_spec("pytest"):
    import pytest

    pytest.register_assert_rewrite(f"{__name__}.conformance", f"{__name__}.fixtures")


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
