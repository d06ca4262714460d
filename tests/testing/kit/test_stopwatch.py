"""The stopwatch behind a busy device, with a fake clock and a fake device."""

import pytest
import torch

from tokendraw_testing.kit import device
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, seconds_behind_a_busy_device


class Machine:
    """A clock and a device with a time to wake up; a cycle is a nanosecond."""

    def __init__(self):
        self.now, self.awake_at = 0.0, 0.0

    def sleep(self, cycles):
        self.awake_at = self.now + cycles * 1e-9

    def wait(self):
        self.now = max(self.now, self.awake_at)

    def event(self):
        return self

    def record(self):
        pass

    def query(self):
        return self.now >= self.awake_at


@pytest.fixture
def machine(monkeypatch):
    here = Machine()
    monkeypatch.setattr(device, "_cycles_per_second", lambda: 1e9)
    monkeypatch.setattr(device.time, "perf_counter", lambda: here.now)
    monkeypatch.setattr(torch.cuda, "synchronize", here.wait)
    monkeypatch.setattr(torch.cuda, "_sleep", here.sleep)
    monkeypatch.setattr(torch.cuda, "Event", here.event)
    return here


def calls_taking(machine, *seconds):
    """Make a call of given durations, the last duration repeated. Three calls precede the measurement."""
    left = [0.0, 0.0, 0.0, *seconds]

    def work():
        machine.now += left.pop(0) if len(left) > 1 else left[0]

    return work


def test_a_call_that_returns_at_once_is_measured_once(machine):
    assert seconds_behind_a_busy_device(calls_taking(machine, 0.001, 0.5)) == (pytest.approx(0.001), True)


@pytest.mark.parametrize("held_up", [(0.03,), (0.03, 0.05)])
def test_a_call_that_another_program_holds_up_is_measured_again(machine, held_up):
    work = calls_taking(machine, *held_up, 0.001)
    assert seconds_behind_a_busy_device(work) == (pytest.approx(0.001), True)


def test_a_slow_call_is_reported_as_slow(machine):
    seconds, slept = seconds_behind_a_busy_device(calls_taking(machine, 0.04, 0.03, 0.05))
    assert slept
    assert seconds == pytest.approx(0.03)
    assert seconds > LONGEST_CALL_SECONDS


@pytest.mark.parametrize("slow", [0, 1])
def test_a_waiting_call_is_reported_in_any_reading(machine, slow):
    times = iter([0.0] * 3 + [0.03] * slow)

    def work():
        try:
            machine.now += next(times)
        except StopIteration:
            machine.wait()

    seconds, slept = seconds_behind_a_busy_device(work)
    assert not slept
    assert seconds == pytest.approx(0.2)
