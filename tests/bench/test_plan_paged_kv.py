"""``tokendraw bench --op plan_paged_kv``: cells, input batches, the call, and a run of the command."""

from dataclasses import replace

import pytest
import torch

import tokendraw
from command_line import FixedTimer, call
from tokendraw_bench import make_inputs, operations
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.operations.plan_paged_kv import PlanCell

CPU = torch.device("cpu")
BENCH = operations.get("plan_paged_kv")
CELL = PlanCell(5, 7, 16)


class TestCells:
    def test_the_design_grid_has_the_shapes_of_planners(self):
        assert [str(cell) for cell in BENCH.grid("design")] == [
            f"{batch} x {width} pages of 16"
            for batch, width in (
                *((1, 64), (1, 8192), (16, 64), (256, 64), (256, 512), (1024, 128), (1024, 512)),
                *((4096, 512), (16_384, 256)),
            )
        ]

    def test_options_replace_values_of_the_preset(self):
        cells = BENCH.grid("quick", width=[3], batch=[2, 4], page_size=[1, 8], page_indices=[False])
        assert cells == tuple(
            PlanCell(batch, 3, page_size, page_indices=False) for batch in (2, 4) for page_size in (1, 8)
        )

    def test_without_page_indices_the_inputs_are_the_same(self):
        assert BENCH.input_key(CELL) == BENCH.input_key(replace(CELL, page_indices=False))
        assert BENCH.input_key(CELL) != BENCH.input_key(replace(CELL, page_size=8))


class TestInputs:
    def test_lengths_fit_the_table_and_every_run_makes_the_same(self):
        cell = PlanCell(200, 3, 4)
        found = make_inputs(cell, CPU, 2)
        for seq_lens, block_table in found:
            assert (seq_lens.shape, seq_lens.dtype) == ((200,), torch.int32)
            assert (block_table.shape, block_table.dtype) == ((200, 3), torch.int32)
            assert set(seq_lens.tolist()) == set(range(1, 3 * 4 + 1))
            assert 0 <= block_table.min() < block_table.max() < 600
            assert cell.nbytes == seq_lens.nbytes + block_table.nbytes
        assert not torch.equal(found[0][1], found[1][1])
        for ours, theirs in zip(found, make_inputs(cell, CPU, 2), strict=True):
            assert all(map(torch.equal, ours, theirs))

    def test_the_copy_is_of_the_block_table_of_the_turn(self):
        first, second = make_inputs(CELL, CPU, 2)
        ((_, copy),) = BENCH.floor.passes(first).items()
        assert torch.equal(copy.draw(second), second[1])


def planned(cell):
    """Return two sets of inputs, and the native planner's call."""
    (native,) = select_contenders(("native",), CPU, "plan_paged_kv")
    inputs = make_inputs(cell, CPU, 2)
    (one,) = native.prepare(cell, BENCH.arguments(cell, CPU), inputs[0])
    return inputs, one


class TestCall:
    @pytest.mark.parametrize("page_indices", [True, False])
    def test_a_call_plans_the_batch_into_the_same_buffers(self, page_indices):
        cell = replace(CELL, page_indices=page_indices)
        inputs, one = planned(cell)
        planner = tokendraw.load("plan_paged_kv", "native", device="cpu")
        buffers = set()
        for seq_lens, block_table in inputs:
            found = one.draw((seq_lens, block_table))
            expected = planner.plan(seq_lens, block_table, 16, page_indices=page_indices)
            assert torch.equal(found.page_indptr, expected.page_indptr)
            assert torch.equal(found.last_page_len, expected.last_page_len)
            if page_indices:
                assert torch.equal(found.page_indices, expected.page_indices)
            else:
                assert found.page_indices is None
            buffers.add(found.page_indptr.data_ptr())
        assert len(buffers) == 1

    def test_a_graph_safe_planner_is_captured(self):
        assert planned(CELL)[1].graph_safe


def bench(*arguments):
    return call("bench", "--op", "plan_paged_kv", "--device", "cpu", "--sampler", "native", *arguments)


class TestCommand:
    def test_a_run_has_a_row_a_cell(self, fixed):
        result = bench()
        assert (result.stderr, result.exit_code) == ("", 0)
        assert result.stdout.splitlines()[1:] == [
            "Plans with page indices, into buffers that are kept. Medians of 15, in turns; a clock that stands.",
            "In brackets the ratio to the copy; ± half the distance of the quartiles, where it is over 5 %.",
            "",
            "batch  width  page size  copy us      native us",
            "    1     64         16      4.0  100.0 (25.0x)",
            "  256     64         16      4.0  100.0 (25.0x)",
            "",
            "The copy is of the block table, by torch.Tensor.copy_.",
            "Lengths are random, from one token to all that the table has room for.",
        ]

    def test_tables_beyond_the_memory_are_an_error_with_the_options_to_reduce(self, fixed, monkeypatch):
        def no_room(timer, nbytes):
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
            )

        monkeypatch.setattr(FixedTimer, "buffers", no_room)
        result = bench("--batch", 10**6, "--width", 10**7)
        assert (result.stdout, result.stderr, result.exit_code) == (
            "",
            "1000000 x 10000000 pages of 16 needs buffers of 40,000,004 MB on cpu, found no memory for them. "
            "Pass a smaller --batch or --width.\n",
            1,
        )
