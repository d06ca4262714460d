"""Every test here has tokendraw-engine-ops installed, as its project declares it."""

import pytest


@pytest.fixture(autouse=True)
def installed(dists):
    dists.add_engine_ops()
