"""The plugin keeps its promises: a test for each property of tokendraw's conformance kit."""

import pytest

from tokendraw_testing import SamplerConformance, Subject


class TestTopNSigma(SamplerConformance):
    """The same properties as `tokendraw check top-n-sigma`, for a test suite and its reports."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        """The installed plugin. Without quick=True: more draws, and larger vocabularies."""
        return Subject.installed("top-n-sigma", device="cpu", quick=True)
