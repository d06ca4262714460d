"""Timers of ``tokendraw bench`` on a fake clock: medians, quartiles, turns, and failing calls."""

import pytest
import torch

from tokendraw_bench import floor
from tokendraw_bench.timing import Failure, TimedCall, Timing, WallTimer, summary

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


def test_a_time_is_the_median_of_the_samples_with_quartiles():
    clock = Clock()
    timer = WallTimer(5, clock=clock)
    warm_up, samples = (9000, 9000), (2000, 6000, 4000, 3000, 5000)
    found = timer.time({"a": clock.takes("a", *warm_up, *samples)}, buffers(2))
    assert found["a"] == Timing(
        us=pytest.approx(4000),
        q1_us=pytest.approx(3000),
        q3_us=pytest.approx(5000),
        host_us=None,
        how="wall clock",
    )
    assert found["a"].spread == pytest.approx(0.25)


def test_contenders_take_turns_and_each_goes_through_the_buffers():
    clock = Clock()
    WallTimer(2, clock=clock).time({"a": clock.takes("a", 5000), "b": clock.takes("b", 7000)}, buffers(3))
    assert clock.log == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 0), ("b", 0)]


def test_fast_calls_are_timed_by_the_millisecond():
    clock = Clock()
    found = WallTimer(3, clock=clock).time({"a": clock.takes("a", 300)}, buffers(2))
    assert len(clock.log) == 1 + 4 + 3 * 4  # 4 x 300 us are a millisecond
    assert found["a"].us == pytest.approx(300)


def test_a_device_is_waited_for_before_and_after_a_sample():
    clock, waits = Clock(), []

    def synchronize():
        waits.append(clock.now)
        clock.now += 2000 * MICROSECOND

    found = WallTimer(1, clock=clock, synchronize=synchronize).time({"a": clock.takes("a", 1000)}, buffers(2))
    assert len(waits) == 2 * 3
    assert found["a"].us == pytest.approx(3000)


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_raising_call_is_a_failure_and_leaves_the_rest_alone(calls_before):
    clock, left = Clock(), [None] * calls_before

    def draw(logits):
        if not left:
            raise RuntimeError("no [kernels]\nfor this")
        left.pop()
        clock.now += 1

    found = WallTimer(5, clock=clock).time(
        {"a": TimedCall(draw=draw), "b": clock.takes("b", 2000)}, buffers(2)
    )
    assert found["a"] == Failure(reason="RuntimeError: no [kernels] for this")
    assert found["b"].us == pytest.approx(2000)


def test_a_table_of_times_names_the_call_that_raised():
    timing = Timing(us=2.0, q1_us=1.0, q3_us=3.0, host_us=None, how="wall clock")
    measured = floor.Measured(read=timing, read_by="sum", calls={"a": timing})
    assert measured.microseconds() == {"a": 2.0}
    measured.calls["b"] = Failure(reason="ValueError: top_k")
    with pytest.raises(RuntimeError, match=r"^b has no time: ValueError: top_k$"):
        measured.microseconds()


def test_an_interrupt_is_no_failure():
    def draw(logits):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WallTimer(3).time({"a": TimedCall(draw=draw)}, buffers(2))


def test_a_single_sample_has_no_spread():
    assert summary([7.0], how="graph", host=[1.0, 2.0, 4.0]) == Timing(
        us=7.0, q1_us=7.0, q3_us=7.0, host_us=2.0, how="graph"
    )


@pytest.mark.parametrize(("nbytes", "count"), [(512, 1024), (32 << 20, 4), ((32 << 20) - 1, 5), (1 << 30, 2)])
def test_buffers_make_a_working_set_beyond_every_cache(nbytes, count):
    assert WallTimer(3).buffers(nbytes) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4, 64), (3, 7)])
def test_the_read_passes_see_every_word_of_the_logits(shape, dtype):
    logits = torch.randn(shape).to(dtype)
    words = floor.words_of(logits)
    assert words.data_ptr() == logits.data_ptr()
    assert words.nbytes == logits.nbytes // 4 * 4
    readers = floor.readers(torch.device("cpu"))
    assert list(readers) == ["torch.sum", "torch.amax"]
    assert readers["torch.amax"].draw(logits) == words.max()
    assert readers["torch.sum"].draw(logits) == words.sum()


def test_the_read_of_padded_rows_is_of_the_padding_too_without_a_copy():
    buffer = torch.arange(12.0).view(3, 4)
    words = floor.words_of(buffer[:, :3])
    assert words.data_ptr() == buffer.data_ptr()
    assert words.tolist() == list(range(11))
