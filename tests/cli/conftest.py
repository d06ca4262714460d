"""Fixtures shared by the tests of the command line."""

import numpy as np
import pytest

from fake_dists import fake_dists


@pytest.fixture
def dists(tmp_path, monkeypatch):
    """Fake distributions for this process."""
    with fake_dists(tmp_path, monkeypatch) as distributions:
        yield distributions


@pytest.fixture
def file(tmp_path):
    """A file with two rows of five equal logits."""
    np.save(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    return tmp_path / "x.npy"
