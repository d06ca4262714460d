"""Axes beyond shape and filters: special rows, tie rules, log-probabilities, unusual logits, caches, single calls."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from command_line import call
from fake_dists import EVERYTHING, plugin
from tokendraw import SamplerUnavailableError, SamplingParams
from tokendraw_bench import make_inputs, mean_nucleus, metadata_of, operations
from tokendraw_bench.cells import FAMILIES, UNUSUAL, Cell, min_vocab_size
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.floor import extra_memory
from tokendraw_bench.operations.process_logits import BITMASKS, BOTH, ProcessCell
from tokendraw_bench.report import BenchReport, CellResult, header, rows
from tokendraw_bench.timing import SamplePlan, TimedCall, Timing, WallTimer

CPU = torch.device("cpu")
CELL = Cell(5, 300, "float32", "both", "gaussian")
COMMON = SamplingParams(temperature=0.8, top_k=50, top_p=0.9)


class TestRequests:
    def test_rows_take_the_parameters_of_the_cell(self):
        cell = replace(CELL, temperature=1.5, top_k=7, top_p=0.3, filter_order="joint", logprobs=4)
        expected = SamplingParams(temperature=1.5, top_k=7, top_p=0.3, filter_order="joint", logprobs=4)
        assert cell.requests == [expected] * 5
        assert replace(cell, filters="min-p", min_p=0.2).requests[0].min_p == 0.2

    @pytest.mark.parametrize(("special", "rows"), [("none", ()), ("seeded", (0,)), ("three", (0, 2, 4))])
    def test_the_first_special_row_has_the_single_seed_of_the_batch(self, special, rows):
        cell = replace(CELL, special=special)
        changes = [{}, {"temperature": 0.0}, {"logprobs": 5}]
        expected = [COMMON] * 5
        for row, change in zip(rows, changes, strict=False):
            expected[row] = replace(COMMON, **change)
        assert (cell.special_rows, cell.requests) == (rows, expected)
        assert cell.seeds == ([0, *[None] * 4] if rows else [0, 1, 2, 3, 4])
        facts = metadata_of(cell, CPU).facts
        assert (facts.any_seeded, facts.all_seeded) == (True, not rows)

    @pytest.mark.parametrize(
        ("special", "change"),
        [
            ("top-k-200", {"top_k": 200}),
            ("top-k-1000", {"top_k": 1000}),
            ("top-p-alone", {"top_k": 0}),
            ("logprobs-5", {"logprobs": 5}),
        ],
    )
    def test_a_special_row_without_a_seed_differs_in_its_parameters_alone(self, special, change):
        cell = replace(CELL, special=special)
        assert cell.requests == [replace(COMMON, **change), *[COMMON] * 4]
        assert cell.seeds == [None] * 5

    def test_a_small_batch_has_as_many_special_rows_as_rows(self):
        assert Cell(1, 300, "float32", "none", "flat", special="three").special_rows == (0,)
        assert Cell(2, 300, "float32", "none", "flat", special="three").special_rows == (0, 1)

    def test_kinds_are_seeded_unseeded_greedy_and_min_p_rows_in_turn(self):
        cell = replace(CELL, filters="kinds")
        four = [COMMON, COMMON, replace(COMMON, temperature=0.0), replace(COMMON, min_p=0.05)]
        assert cell.requests == [*four, COMMON]
        assert cell.seeds == [0, None, 2, 3, 4]

    def test_a_need_has_the_tie_rule_the_mode_and_the_ranks_of_the_cell(self):
        need = operations.get("sample").need
        assert (need(CELL).tie_rule, need(CELL).logprob_ranks) == (None, True)
        cell = replace(CELL, tie_rule="either", logprobs_mode="raw_logits", logprob_ranks=False)
        assert (need(cell).tie_rule, need(cell).logprobs_mode, need(cell).logprob_ranks) == (
            "either",
            "raw_logits",
            False,
        )

    def test_a_renewed_batch_is_at_the_next_positions(self):
        metadata = metadata_of(CELL, CPU)
        operations.get("sample").renew(metadata)
        assert metadata.positions.tolist() == [1, 2, 3, 4, 5]
        operations.get("sample").renew(metadata_of(replace(CELL, seeded=False), CPU))

    @pytest.mark.parametrize(
        ("change", "part"),
        [
            ({"filters": "kinds"}, "greedy rows"),
            ({"filter_order": "joint"}, "the filter order joint"),
            ({"filter_order": "temperature_last"}, "the filter order temperature_last"),
            ({"logprobs": 0}, "log-probabilities"),
        ],
        ids=str,
    )
    def test_a_baseline_refuses_rows_beyond_the_pipeline_of_sorts(self, change, part):
        cell = replace(CELL, **change)
        (baseline,) = select_contenders(("torch-sort",), CPU)
        with pytest.raises(SamplerUnavailableError, match=f"^it does not serve {part}$"):
            baseline.prepare(cell, metadata_of(cell, CPU), make_inputs(cell, CPU, 1)[0])


class TestUnusualLogits:
    @pytest.mark.parametrize("family", UNUSUAL)
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_rows_have_the_form_of_their_family(self, family, dtype):
        (logits,) = make_inputs(replace(CELL, family=family, dtype=dtype, vocab_size=4000), CPU, 1)
        assert (logits.shape, logits.dtype) == ((5, 4000), getattr(torch, dtype))
        finite = logits.isfinite()
        expected = {
            "equal": (logits == logits[:, :1]).all,
            "two-values": lambda: all(len(row.unique()) == 2 for row in logits),
            "ascending": (logits.diff() >= 0).all,
            "descending": (logits.diff() <= 0).all,
            "cauchy": lambda: logits.abs().max() > 100,
            "masked": lambda: 0.005 < finite.float().mean() < 0.015,
        }
        assert expected[family]()
        assert bool(finite.all()) == (family != "masked")
        assert finite[:, 2000].all()

    def test_every_family_has_a_nucleus(self):
        for family in FAMILIES:
            size = max(4000, min_vocab_size(family))
            (logits,) = make_inputs(replace(CELL, family=family, vocab_size=size), CPU, 1)
            assert 1 <= mean_nucleus(logits, 1.0, 0.5) <= mean_nucleus(logits, 1.0, 0.9) <= size

    def test_notes_compare_the_slowest_unusual_logits_with_common_logits(self):
        times = {"peaked-30": 10.0, "gaussian": 20.0, "equal": 30.0, "cauchy": 15.0}
        lines = tuple(
            line(replace(CELL, family=family, filters=filters), us * factor)
            for filters, factor in (("both", 1.0), ("none", 2.0))
            for family, us in times.items()
        )
        (note,) = report(*lines, line(replace(CELL, filters="top-p"), 5.0)).notes[1:]
        assert note == (
            "acme: the slowest unusual logits take 1.50 times the slowest common ones under the same filters, 3.00 "
            "times the fastest."
        )


def timing(us, **fields):
    return Timing(us=us, q1_us=us, q3_us=us, **{"host_us": None, "how": "graph", **fields})


def line(cell, us, **fields):
    floor = timing(1.0, host_us=7.0, largest_us=fields.get("largest_us"))
    return CellResult(
        cell=cell, buffers=2, floor=floor, floor_by="torch.sum", entries={"acme": timing(us, **fields)}
    )


def report(*lines):
    return BenchReport(
        command="", device="cuda:0", host="cuda", method="", repeats=3, threads=1, versions={},
        contenders=("acme",), lines=lines, seconds=1.0,
    )  # fmt: skip


class TestTables:
    def test_an_optional_axis_has_a_column_where_a_cell_deviates(self):
        plain, best = (line(replace(CELL, logprobs=n), 2.0) for n in (None, 5))
        axes = ["batch", "vocabulary", "dtype", "filters", "logits"]
        assert header(report(plain)) == [*axes, "read us", "acme us"]
        assert header(report(plain, best)) == [*axes, "logprobs", "read us", "acme us"]
        assert [row[5] for row in rows(report(plain, best))] == ["none", "5"]

    def test_an_axis_of_a_single_value_has_a_column_and_a_key_where_cells_deviate(self):
        constant, swept = (
            report(*(line(replace(CELL, top_k=k), 2.0) for k in values)) for values in ((50, 50), (50, 100))
        )
        assert ("top_k" in header(constant), "top_k" in header(swept)) == (False, True)
        assert (constant.as_json()["top_k"], "top_k" in swept.as_json()) == (50, False)
        assert [cell["top_k"] for cell in swept.as_json()["cells"]] == [50, 100]

    def test_single_calls_show_the_largest_time_and_the_least_host_time(self):
        single = report(line(CELL, 2.0, host_us=30.0, largest_us=3.0, least_host_us=29.0))
        assert header(single)[-4:] == ["acme us", "largest", "host us", "least host us"]
        assert rows(single)[0][-4:] == ["2.0 (2.00x)", "3.0 (1.50x)", "30.0", "29.0"]
        assert single.notes[-1] == "The read keeps the host for 7.0 to 7.0 us."

    def test_memory_has_a_column_and_a_key(self):
        measured = report(replace(line(CELL, 2.0), memory={"acme": 2500}))
        assert (header(measured)[-1], rows(measured)[0][-1]) == ("extra memory", "2.5 KB")
        assert measured.as_json()["cells"][0]["entries"]["acme"]["extra_memory"] == 2500


class TestTimers:
    def test_a_sample_of_a_single_call_is_renewed_before_and_keeps_the_largest(self):
        seconds = iter(itertools.count())
        log = []
        renewed = TimedCall(draw=lambda inputs: log.append("draw"), renew=lambda: log.append("renew"))
        timer = WallTimer(3, clock=lambda: 1e-6 * next(seconds) ** 2, plan=SamplePlan(single=True))
        found = timer.time({"a": renewed}, [0, 1])["a"]
        assert log == ["renew", "draw"] * 5
        assert found.largest_us == pytest.approx(found.q3_us + (found.q3_us - found.us))
        assert timer.method.endswith(", single calls")

    def test_a_plan_may_have_a_number_of_buffers(self):
        timer = WallTimer(3, plan=SamplePlan(input_sets=60))
        assert (timer.buffers(1), timer.method) == (60, "wall clock over 60 buffers in rotation")

    def test_a_warm_cache_has_a_single_buffer(self):
        timer = WallTimer(3, plan=SamplePlan(warm=True))
        assert (timer.buffers(1), timer.method) == (1, "wall clock over one buffer")

    def test_extra_memory_is_the_peak_beside_inputs_and_result(self):
        def draw(logits):
            doubled = logits * 2  # 400 bytes
            return (doubled + 1)[:, :1].clone()  # 400 bytes more beside a result of 40

        assert extra_memory(draw, torch.zeros(10, 10), CPU) == 800


class TestSplitBatches:
    def test_special_rows_are_drawn_by_the_companion(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("'counter'", "'launch'")))
        (both,) = select_contenders(("acme+native",), CPU)
        (native,) = select_contenders(("native",), CPU)
        cell = replace(CELL, special="seeded", top_k=0, top_p=1.0)
        assert both.name == "acme+native"
        assert set(both.versions) >= {"acme-tokendraw", "tokendraw-native"}
        (logits,) = make_inputs(cell, CPU, 1)
        metadata = metadata_of(cell, CPU)
        (divided,) = both.prepare(cell, metadata, logits)
        (whole,) = native.prepare(cell, metadata, logits)
        tokens, valid, _ = divided.draw(logits)
        assert tokens[0] == whole.draw(logits).token_ids[0]
        assert tokens[1:].tolist() == logits[1:].argmax(-1).tolist()  # as the plugin of the tests draws
        assert valid.all()

    def test_a_batch_without_special_rows_is_not_split(self):
        (both,) = select_contenders(("native+native",), CPU)
        with pytest.raises(SamplerUnavailableError) as error:
            both.prepare(CELL, metadata_of(CELL, CPU), make_inputs(CELL, CPU, 1)[0])
        assert str(error.value) == "it needs rows for the companion, found none; add --special"


class TestEdits:
    CELL = ProcessCell(3, 3200, "float32", "bitmask", 40)
    BENCH = operations.get("process_logits")

    @pytest.mark.parametrize(
        ("bitmask", "share"),
        [*zip(BITMASKS, (0.5, 0.5, 0.5, 0.01, 1.0), strict=True)],
    )
    def test_a_bitmask_allows_a_share_of_the_ids(self, bitmask, share):
        words = self.BENCH.arguments(replace(self.CELL, bitmask=bitmask), CPU).bitmask
        bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
        assert words.shape == (3, 100)
        assert bits.mean() == pytest.approx(share, abs=0.15 if bitmask == "runs" else 0.02)
        edges = np.abs(np.diff(bits.astype(int), axis=1)).sum(1)
        assert (edges <= {"runs": 13, "lower-half": 1, "all": 0}.get(bitmask, 3200)).all()

    def test_dense_penalties_equal_native(self):
        cell = replace(self.CELL, edits="penalties")
        native, dense = select_contenders(("native", "torch-dense"), CPU, "process_logits")
        arguments = self.BENCH.arguments(cell, CPU)
        edited = []
        for contender in (native, dense):
            (logits,) = make_inputs(cell, CPU, 1)
            contender.prepare(cell, arguments, logits)[0].draw(logits)
            edited.append(logits)
        torch.testing.assert_close(*edited)

    def test_dense_penalties_take_part_without_a_name(self):
        assert [c.name for c in select_contenders((), CPU, "process_logits")] == ["native", "torch-dense"]

    def test_a_graph_for_any_edit_has_the_facts_of_any(self):
        (native,) = select_contenders(("native",), CPU, "process_logits")
        results = []
        for graph in ("requested", "any"):
            cell = replace(self.CELL, edits=BOTH, graph=graph)
            (logits,) = make_inputs(cell, CPU, 1)
            arguments = self.BENCH.arguments(cell, CPU)
            native.prepare(cell, arguments, logits)[0].draw(logits)
            results.append((logits, arguments.slots.captured_edits))
        (one, requested), (other, any_edit) = results
        assert torch.equal(one, other)
        assert requested != any_edit


SHORT = ("--device", "cpu", "--repeats", 3, "--json")


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        (("--special", "three", "--sampler", "native+native", "--sampler", "native"), {"special": "three"}),
        (
            ("--filters", "kinds", "--filter-order", "joint", "--tie-rule", "either"),
            {"filter_order": "joint"},
        ),
        (("--logprobs", 5, "--logprobs", "none", "--logprobs-mode", "raw_logits"), {"logprobs": 5}),
        (("--family", "masked", "--top-k", 20, "--top-p", 0.5, "--temperature", 1.5), {"family": "masked"}),
        (("--single", "--memory", "--filters", "top-p"), {"filters": "top-p"}),
        (("--cache", "warm", "--no-logprob-ranks", "--min-p", 0.1, "--filters", "min-p"), {}),
        (("--op", "process_logits", "--bitmask", "runs", "--graph-edits", "any"), {"bitmask": "runs"}),
        (("--op", "verify", "--logprobs", 2, "--special", "three", "--memory"), {"logprobs": 2}),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_run_along_an_axis_has_a_time_for_every_cell(options, axes, monkeypatch):
    monkeypatch.setattr(WallTimer, "buffers", lambda timer, nbytes: 2)
    shape = ("--batch", 4, "--vocab-size", 256)
    sampler = () if "--sampler" in options else ("--sampler", "native")
    result = call("bench", *options, *shape, *sampler, *SHORT)
    assert result.exit_code == 0, (result.stderr, result.stdout)
    cells = json.loads(result.stdout)["cells"]
    assert {name: cells[0][name] for name in axes} == axes
    for entry in (entry for cell in cells for entry in cell["entries"].values()):
        assert entry["us"] > 0, entry
        assert (entry["largest_us"] is None) != ("--single" in options)
        assert ("extra_memory" in entry) == ("--memory" in options)


def test_the_command_repeats_none(monkeypatch):
    monkeypatch.setattr(WallTimer, "buffers", lambda timer, nbytes: 2)
    result = call(
        "bench", "--batch", 1, "--vocab-size", 128, "--filters", "none", "--family", "flat",
        "--logprobs", "none", "--sampler", "native", *SHORT,
    )  # fmt: skip
    assert " --logprobs none --sampler native " in json.loads(result.stdout)["command"]
