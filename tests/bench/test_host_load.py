"""Warnings of a busy machine, for planted loads and times."""

import os

import pytest

from tokendraw_bench.timing import HostLoad, busy, read_host_load

IDLE = HostLoad(cores=4, load=0.3)
HALF = HostLoad(cores=4, load=1.9)
FULL = HostLoad(cores=2, load=3.9)
UNKNOWN = HostLoad(cores=2, load=None)


def told(machine, threads=2, **spreads):
    return busy(machine, spreads, threads=threads, repeats=15)


@pytest.mark.parametrize("machine", [IDLE, HALF, UNKNOWN, None])
def test_steady_times_are_no_news(machine):
    assert told(machine, native=0.09, acme=0.02) == ""


def test_nothing_timed_is_no_news():
    assert told(IDLE) == ""


def test_spread_times_are_a_sign_without_a_load():
    assert told(UNKNOWN, native=1.74, acme=0.2) == (
        "The machine was busy: times spread by up to ±174 % (native). Repeat it on an idle one, or with "
        "OMP_NUM_THREADS=1 (2 threads here) and more --repeats (15 here)."
    )
    assert told(IDLE, 1, native=0.51) == (
        "The machine was busy: times spread by up to ±51 % (native). Repeat it on an idle one, or with "
        "more --repeats (15 here)."
    )


def test_more_work_than_cores_tells_without_a_spread():
    assert told(FULL, native=0.01) == (
        "The machine was busy: 3.9 programs were at work on 2 cores before the run. Repeat it on an idle one, or "
        "with OMP_NUM_THREADS=1 (2 threads here) and more --repeats (15 here)."
    )


def test_more_threads_than_free_cores_tell_once_times_spread():
    assert told(HALF, 4, native=0.09) == ""
    assert told(HALF, 2, native=0.2) == ""
    assert told(HALF, 4, native=0.2) == (
        "The machine was busy: 1.9 programs were at work on 4 cores before the run, and times spread by up to ±20 % "
        "(native). Repeat it on an idle one, or with OMP_NUM_THREADS=2 (4 threads here) and more --repeats (15 here)."
    )


def test_on_a_device_the_times_are_the_only_sign():
    assert told(None, native=1.74) == (
        "The machine or its device was busy: times spread by up to ±174 % (native). Repeat it on an idle one, or "
        "with more --repeats (15 here)."
    )


def test_a_process_on_some_cores_shares_the_load_last(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (30.0, 0.0, 0.0), raising=False)
    assert read_host_load() == HostLoad(cores=2, load=0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (63.5, 0.0, 0.0), raising=False)
    assert read_host_load() == HostLoad(cores=2, load=1.5)


def test_a_system_without_a_count_has_no_load(monkeypatch):
    def unknown():
        raise OSError

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "getloadavg", unknown, raising=False)
    assert read_host_load() == HostLoad(cores=3, load=None)
