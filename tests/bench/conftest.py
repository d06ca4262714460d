"""Fixtures of the bench: a timer that stands still, and plugins that are not installed."""

import pytest
import torch

from command_line import FixedTimer
from fake_dists import fake_dists
from tokendraw_bench import run
from tokendraw_bench.timing import HostLoad


@pytest.fixture
def fixed(monkeypatch):
    """Runs with fixed times on an idle host of four cores."""
    monkeypatch.setattr(run, "timer_for", lambda device, repeats, **_: FixedTimer(repeats))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(run, "read_host_load", lambda: HostLoad(cores=4, load=0.25))


@pytest.fixture
def dists(tmp_path, monkeypatch):
    """Adds distributions with plugins to the path."""
    with fake_dists(tmp_path, monkeypatch) as found:
        yield found
