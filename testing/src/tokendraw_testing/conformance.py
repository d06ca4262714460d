"""Offers the kit as a class of pytest tests for the authors of a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tokendraw_testing.kit.property import Property, properties
from tokendraw_testing.kit.report import Status
from tokendraw_testing.kit.run import check
from tokendraw_testing.kit.subject import Subject


class SamplerConformance:
    """A test class with one test for each property of samplers.

    Subclass it and say which sampler is meant::

        import pytest
        from tokendraw_testing import SamplerConformance, Subject

        class TestAcme(SamplerConformance):
            @pytest.fixture(scope="class")
            @classmethod
            def subject(cls):
                return Subject.installed("acme", device="cpu", quick=True)

    A fixture of scope ``module`` or ``session`` in place of the method does as well. The class has tests of your own
    like any other. A test whose capability the sampler does not advertise checks that requests for it are refused.

    A line that the plugin is known to fail stands with its reason in ``PluginInfo.expected_failures``, and its test is
    an expected failure of pytest; a standard test that a subclass or a mixin overrides is a TypeError.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        """The sampler under test: the fixture required of every subclass."""
        pytest.fail(
            f"{cls.__name__} needs a fixture 'subject' that returns a tokendraw_testing.Subject, found none. "
            "Define it in the class.",
            pytrace=False,
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in map(test_name, properties()):
            test = inspect.getattr_static(cls, name)
            if test is not vars(SamplerConformance)[name]:
                raise TypeError(
                    f"{cls.__name__}.{name} overrides a standard test. If it is known to fail, say so in "
                    "PluginInfo.expected_failures, or leave the test alone."
                )


def _test_of(prop: Property) -> Callable[[SamplerConformance, Subject], None]:
    def test(self: SamplerConformance, subject: Subject) -> None:
        if not isinstance(subject, Subject):
            raise TypeError(
                "the fixture 'subject' needs to return a tokendraw_testing.Subject, "
                f"found {type(subject).__name__}. Return Subject.installed(...)."
            )
        line = check(subject, prop)
        if line is None:
            pytest.skip(f"{subject.name} does not advertise it")
        elif line.status is Status.NOT_RUN:
            pytest.skip(line.detail)
        elif line.status is Status.EXPECTED:
            pytest.xfail(line.detail)
        elif line.status is Status.FAILED:
            pytest.fail(str(line), pytrace=False)  # the frames that matter are those of the sampler

    test.__name__ = test_name(prop)
    test.__qualname__ = f"SamplerConformance.{test.__name__}"
    test.__doc__ = prop.about
    return test


def test_name(prop: Property) -> str:
    """Name the test of a property: ``test_inf_is_drawn_evenly`` for ``+inf is drawn evenly``."""
    words = "".join(c if c.isalnum() else " " for c in prop.name.lower()).split()
    return f"test_{'_'.join(words)}"


test_name.__test__ = False  # type: ignore[attr-defined]

for _property in properties():
    setattr(SamplerConformance, test_name(_property), _test_of(_property))
