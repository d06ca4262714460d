"""Every test has tokendraw-engine-ops installed, as in its project file."""

import pytest


@pytest.fixture(autouse=True)
def installed(dists):
    dists.add_engine_ops()
