"""The distribution tokendraw-ranks as if it were installed, and other fresh seeds on each rank."""

import sys

import pytest

from rank_threads import seeds_of_thread
from timing import install
from tokendraw import philox


@pytest.fixture(autouse=True, scope="module")
def installed_ranks(tmp_path_factory):
    path = list(sys.path)
    install(tmp_path_factory.mktemp("site"), "ranks")
    yield
    sys.path[:] = path


@pytest.fixture(autouse=True)
def seeds_by_rank(monkeypatch):
    monkeypatch.setattr(philox, "fresh_seeds", seeds_of_thread)
