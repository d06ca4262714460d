"""A timer that stands still, for tests of what is timed and said."""

import pytest
import torch

from command_line import FixedTimer
from tokendraw_bench import run
from tokendraw_bench.timing import HostLoad


@pytest.fixture
def fixed(monkeypatch):
    """Runs with fixed times on an idle host of four cores."""
    monkeypatch.setattr(run, "timer_for", lambda device, repeats, **_: FixedTimer(repeats))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(run, "read_host_load", lambda: HostLoad(cores=4, load=0.25))
