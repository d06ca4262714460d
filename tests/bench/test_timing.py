"""Timers on a fake clock, the reads that ratios refer to, the memory of a call, and warnings of a busy machine."""

import itertools
from pathlib import Path

import pytest
import torch

from call_tables import pairs
from tokendraw_bench import floor
from tokendraw_bench.timing import (
    Failure,
    HostLoad,
    SamplePlan,
    TimedCall,
    WallTimer,
    busy,
)

MICROSECOND = 1e-6


class Clock:
    """A clock that advances by the planted times of calls alone."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def takes(self, name, *times):
        """Make a call with planted microseconds, the last value repeated."""
        left = list(times)

        def draw(logits):
            self.log.append((name, int(logits[0])))
            self.now += (left.pop(0) if len(left) > 1 else left[0]) * MICROSECOND

        return TimedCall(draw=draw)


def buffers(count):
    return [torch.tensor([index]) for index in range(count)]


class TestTimers:
    def test_a_time_is_the_median_of_the_samples_with_quartiles(self):
        clock = Clock()
        warm_up, samples = (9000, 9000), (2000, 6000, 4000, 3000, 5000)
        call = clock.takes("a", *warm_up, *samples)
        found = WallTimer(5, clock=clock).time({"a": call}, buffers(2))["a"]
        assert (found.us, found.q1_us, found.q3_us) == pytest.approx((4000, 3000, 5000))
        assert (found.host_us, found.how, found.spread) == (None, "wall clock", pytest.approx(0.25))

    def test_contenders_take_turns_and_each_goes_through_the_buffers(self):
        clock = Clock()
        WallTimer(2, clock=clock).time({"a": clock.takes("a", 5000), "b": clock.takes("b", 7000)}, buffers(3))
        assert clock.log == [(name, buffer) for buffer in (0, 1, 2, 0) for name in ("a", "b")]

    def test_fast_calls_are_timed_by_the_millisecond(self):
        clock = Clock()
        found = WallTimer(3, clock=clock).time({"a": clock.takes("a", 300)}, buffers(2))
        assert len(clock.log) == 1 + 4 + 3 * 4  # 4 x 300 us are a millisecond
        assert found["a"].us == pytest.approx(300)

    def test_a_device_is_waited_for_before_and_after_a_sample(self):
        clock, waits = Clock(), []

        def synchronize():
            waits.append(clock.now)
            clock.now += 2000 * MICROSECOND

        timer = WallTimer(1, clock=clock, synchronize=synchronize)
        found = timer.time({"a": clock.takes("a", 1000)}, buffers(2))
        assert len(waits) == 2 * 3
        assert found["a"].us == pytest.approx(3000)

    @pytest.mark.parametrize("calls_before", [0, 3])
    def test_a_raising_call_is_a_failure_and_leaves_the_rest_alone(self, calls_before):
        clock, left = Clock(), [None] * calls_before

        def draw(logits):
            if not left:
                raise RuntimeError("no [kernels]\nfor this")
            left.pop()
            clock.now += 1

        calls = {"a": TimedCall(draw=draw), "b": clock.takes("b", 2000)}
        found = WallTimer(5, clock=clock).time(calls, buffers(2))
        assert found["a"] == Failure(reason="RuntimeError: no [kernels] for this")
        assert found["b"].us == pytest.approx(2000)

    def test_a_sample_of_a_single_call_is_renewed_before_and_keeps_the_largest(self):
        seconds, log = iter(itertools.count()), []
        renewed = TimedCall(draw=lambda inputs: log.append("draw"), renew=lambda: log.append("renew"))
        timer = WallTimer(3, clock=lambda: 1e-6 * next(seconds) ** 2, plan=SamplePlan(single=True))
        found = timer.time({"a": renewed}, [0, 1])["a"]
        assert log == ["renew", "draw"] * 5
        assert found.largest_us == pytest.approx(found.q3_us + (found.q3_us - found.us))

    @pytest.mark.parametrize(
        ("plan", "nbytes", "count", "method"),
        [
            (SamplePlan(), 512, 1024, "over buffers of 128 MiB in rotation"),
            (SamplePlan(), 32 << 20, 4, "over buffers of 128 MiB in rotation"),
            (SamplePlan(), (32 << 20) - 1, 5, "over buffers of 128 MiB in rotation"),
            (SamplePlan(), 1 << 30, 2, "over buffers of 128 MiB in rotation"),
            (SamplePlan(input_sets=60), 1, 60, "over 60 buffers in rotation"),
            (SamplePlan(warm=True, single=True), 1, 1, "over one buffer, single calls"),
        ],
    )
    def test_buffers_make_a_working_set_beyond_every_cache_unless_the_plan_differs(
        self, plan, nbytes, count, method
    ):
        timer = WallTimer(3, plan=plan)
        assert (timer.buffers(nbytes), timer.method) == (count, f"wall clock {method}")


class TestFloors:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("shape", [(4, 64), (3, 7)])
    def test_the_read_passes_see_every_word_of_the_logits(self, shape, dtype):
        logits = torch.randn(shape).to(dtype)
        words = floor.words_of(logits)
        assert (words.data_ptr(), words.nbytes) == (logits.data_ptr(), logits.nbytes // 4 * 4)
        readers = floor.readers(torch.device("cpu"))
        assert list(readers) == ["torch.sum", "torch.amax"]
        assert readers["torch.amax"].draw(logits) == words.max()
        assert readers["torch.sum"].draw(logits) == words.sum()

    def test_extra_memory_is_the_peak_beside_inputs_and_result(self):
        def draw(logits):
            doubled = logits * 2  # 400 bytes
            return (doubled + 1)[:, :1].clone()  # 400 bytes more beside a result of 40

        assert floor.extra_memory(draw, torch.zeros(10, 10), torch.device("cpu")) == 800


class TestBusyMachines:
    @pytest.mark.parametrize(("signs", "said"), pairs(Path(__file__).with_name("busy.txt")))
    def test_work_of_others_is_told_of_by_its_signs_with_the_settings_to_change(self, signs, said):
        def told(native=0.0, threads=2, **machine):
            load = HostLoad(**machine) if machine else None
            spreads = {} if native is None else {"native": native, "acme": 0.0}
            return busy(load, spreads, threads=threads, repeats=15)

        assert (eval(f"told({signs})", {"told": told}) or "nothing") == said
