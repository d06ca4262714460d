"""``tokendraw bench --ranks``: shards of ranks, traffic, peak memory, refusals, and runs."""

import json
import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

import tokendraw
from command_line import call
from tokendraw.resolution import detect_host
from tokendraw_bench import Cell, Timing, make_inputs, operations
from tokendraw_bench.operations.sample_on_ranks import RankCell
from tokendraw_bench.ranks import launch, worker
from tokendraw_bench.ranks.traffic import CountingTransport
from tokendraw_bench.ranks.worker import RankTask
from tokendraw_bench.report.table import as_text, header, rows
from tokendraw_bench.timing.memory import memory_use
from tokendraw_bench.timing.timer import Failure, TimedCall, WallTimer
from tokendraw_testing.shards.thread_ranks import on_ranks

CPU = torch.device("cpu")
BENCH = operations.get("sample_on_ranks")
CELL = RankCell(4, 257, "float32", "none", "gaussian", ranks=2)
TINY = ("--batch", 4, "--vocab-size", 257, "--filters", "none", "--device", "cpu", "--sampler", "native")


@pytest.fixture
def alone():
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class TestWhatARankHolds:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_buffers_of_all_ranks_are_equally_wide_and_hold_the_logits_of_a_single_device(
        self, rank, monkeypatch
    ):
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        (whole,) = make_inputs(Cell(4, 257, "float32", "none", "gaussian"), CPU, 1)
        (buffer,) = make_inputs(CELL, CPU, 1)
        held = (129, 128)[rank]
        assert buffer.shape == (4, 129)
        assert buffer.nbytes == CELL.nbytes
        assert torch.equal(buffer[:, :held], whole[:, 129 * rank :][:, :129])

    @pytest.mark.parametrize(("rank", "start"), [(0, 0), (1, 2), (2, 4), (3, 5)])
    def test_a_rank_behind_the_last_id_holds_none(self, rank, start, monkeypatch):
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        _, shard = BENCH.arguments(replace(CELL, vocab_size=5, ranks=4), CPU)
        assert (shard.start, shard.vocab_size) == (start, 5)


class TestCounting:
    def test_a_rank_receives_the_parts_of_all_ranks_but_itself(self):
        def work(rank):
            counting = CountingTransport(rank)
            counting.all_gather(torch.zeros(4, 10))
            counting.broadcast_from_first(torch.zeros(8, dtype=torch.int64))()
            counting.all_sum(torch.zeros(3, dtype=torch.int64))
            counting.gather_objects("once a shard")
            return counting.collectives, counting.received

        assert on_ranks(3, work) == [(3, 2 * 160 + 32), (3, 2 * 160 + 64 + 32), (3, 2 * 160 + 64 + 32)]

    def test_the_peak_is_of_tensors_alive_at_the_same_time(self):
        logits = torch.zeros(100, 10)
        with memory_use(CPU) as use:
            for _ in range(5):
                one = logits + 1  # 4,000 bytes, gone when the next one is there
            two = one[:, :3]
            del one
            two.add_(1)
            logits[0].mul_(2)
        assert use.peak() == 8000


class Fast:
    """The faster of two ranks."""

    def __init__(self):
        self.met = 0

    def wait(self):
        self.met += 1

    def maximum(self, number):
        return 2 * number


def test_the_slowest_rank_decides_on_the_time_and_on_the_number_of_calls():
    time, calls, fast = [0.0], [], Fast()

    def draw(buffer):
        time[0] += 1e-4
        calls.append(buffer)

    timer = WallTimer(3, clock=lambda: time[0], group=fast)
    found = timer.time({"a": TimedCall(draw=draw)}, [1, 2])["a"]
    assert found.us == pytest.approx(200)
    assert len(calls) == 1 + 5 + 3 * 5
    assert fast.met == 5


def task(**changes):
    settings = {
        "cells": (replace(CELL, ranks=1),), "names": ("native",), "device_type": "cpu", "backend": "gloo",
        "host": detect_host("cpu"), "repeats": 3, "command": "tokendraw bench --ranks 1",
    }  # fmt: skip
    return RankTask(**settings | changes)


class StandingTimer:
    """Calls everything once, and says the same of all."""

    method, repeats = "a clock that stands", 3

    def buffers(self, nbytes):
        return 1

    def time(self, calls, buffers):
        for one in calls.values():
            one.draw(buffers[0])
        return {name: Timing(us=10, q1_us=10, q3_us=10, host_us=None, how="wall clock") for name in calls}


def test_a_table_has_the_sampler_beside_itself_behind_an_all_gather(alone, monkeypatch):
    monkeypatch.setattr(worker, "timer_for", lambda device, repeats, group: StandingTimer())
    report = worker._report(task(), CPU)
    assert report.head[0].startswith("cpu, 1 rank by gloo, ")
    assert "The vocabulary lies on 1 ranks; the slowest one's time counts." in report.head[1]
    nucleus = round(report.lines[0].figures["nucleus"])
    peaks = {name: f"{took.peak / 1000:.1f} KB" for name, took in report.lines[0].traffic.items()}
    assert re.sub(" +", " ", "\n".join(as_text(report))) == (
        "batch vocabulary dtype filters logits nucleus read us native us of all-gather collectives received a row peak "
        "all-gather, native us collectives received a row peak\n"
        f" 4 257 float32 none gaussian {nucleus} 10.0 10.0 (1.00x) 1.00x 1 0 B 0 B {peaks['native']} "
        f"10.0 (1.00x) 1 0 B 0 B {peaks['all-gather, native']}"
    )
    assert report.lines[0].traffic["all-gather, native"].peak >= 4 * 257 * 4


class Halving(StandingTimer):
    """A timer that doubles the time of the all-gather, or lets it fail."""

    def __init__(self, *, fails):
        self.fails = fails

    def time(self, calls, buffers):
        found = super().time(calls, buffers)
        other = Failure(reason="no") if self.fails else replace(found["native"], us=20)
        return found | {"all-gather, native": other}


@pytest.mark.parametrize(("fails", "share"), [(False, "0.50x"), (True, "-")])
def test_a_sampler_is_held_against_itself_behind_an_all_gather(alone, monkeypatch, fails, share):
    monkeypatch.setattr(worker, "timer_for", lambda device, repeats, group: Halving(fails=fails))
    report = worker._report(task(), CPU)
    (row,) = rows(report)
    assert row[header(report).index("of all-gather")] == share


class TestRefusals:
    @pytest.mark.parametrize("found", [0, 1, 3])
    def test_of_fewer_gpus_than_ranks(self, found, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
        with pytest.raises(tokendraw.TokendrawError) as caught:
            launch._backend(torch.device("cuda"), 4)
        assert str(caught.value) == (
            f"'--ranks' needs a GPU for each of the 4 ranks, found {found}. Pass fewer, or add --device cpu."
        )

    @pytest.mark.parametrize("missing", ["is_available", "is_gloo_available"])
    def test_of_a_torch_without_distributed(self, missing, monkeypatch):
        monkeypatch.setattr(dist, missing, lambda: False)
        result = call("bench", "--ranks", 2, "--device", "cpu")
        assert result.stderr == (
            f"'--ranks' needs a torch with torch.distributed and gloo, found torch {torch.__version__} without. "
            "Install a build of torch that has them.\n"
        )
        assert result.exit_code == 1

    def test_of_devices_without_a_backend(self):
        with pytest.raises(tokendraw.TokendrawError) as caught:
            launch._backend(torch.device("mps"), 2)
        assert str(caught.value) == "'--ranks' needs CPUs or CUDA devices, found mps. Add --device cpu."

    @pytest.mark.parametrize(
        ("native", "mend"),
        [
            (None, "`pip install ./plugins/native` in tokendraw's checkout"),
            ("0.1.0", "`tokendraw doctor`"),
        ],
    )
    def test_where_no_sampler_draws_over_ranks(self, monkeypatch, native, mend):
        monkeypatch.setattr(worker, "rank_samplers", lambda names, device: ())
        monkeypatch.setattr(launch, "installed_version", {"tokendraw-native": native}.get)
        result = call("bench", "--ranks", 2, "--device", "cpu")
        assert result.stderr == (
            "'--ranks' needs a sampler that draws from a vocabulary that is split over ranks, found none. "
            f"Run {mend}.\n"
        )


@pytest.mark.slow
def test_two_processes_time_the_same_calls():
    result = call("bench", "--ranks", 2, *TINY, "--repeats", 3, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["operation"], found["ranks"], found["contenders"]) == (
        "sample", 2, ["native", "all-gather, native"],
    )  # fmt: skip
    (cell,) = found["cells"]
    sharded, gathered = cell["entries"].values()
    assert (sharded["collectives"], sharded["received"]) == (1, 4 * 40)
    assert (gathered["collectives"], gathered["received"]) == (1, 4 * 129 * 4)
    assert min(sharded["us"], gathered["us"], sharded["peak"], gathered["peak"]) > 0


def test_a_failed_rank_ends_the_run_with_the_error(monkeypatch, tmp_path):
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": "KeyError: 'none'", "extraInfo": {"timestamp": "1"}}}))
    failure = ProcessFailure(local_rank=1, pid=99, exitcode=1, error_file=str(file))

    def fail(config, entry):
        def launched(*given):
            raise ChildFailedError("time_task", {1: failure})

        return launched

    monkeypatch.setattr(api, "elastic_launch", fail)
    with pytest.raises(tokendraw.TokendrawError) as caught:
        launch._launched(task(), 2)
    assert str(caught.value) == "rank 1 of 2 failed: KeyError: 'none'"


def test_an_error_of_every_rank_is_printed_once(monkeypatch):
    monkeypatch.setattr(api, "elastic_launch", lambda config, entry: lambda *given: {0: "no memory.", 1: "."})
    with pytest.raises(tokendraw.TokendrawError) as caught:
        launch._launched(task(), 2)
    assert str(caught.value) == "no memory."
