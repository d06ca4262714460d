"""What ``tokendraw bench`` times: cells of presets and sweeps, their requests, and their inputs."""

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from call_tables import pairs
from tokendraw import SamplingParams
from tokendraw_bench import make_inputs, mean_nucleus, metadata_of, operations
from tokendraw_bench.cells import FAMILIES, UNUSUAL, Cell, min_vocab_size
from tokendraw_bench.operations.process_logits import BITMASKS, ProcessCell
from tokendraw_bench.operations.verify import VerifyCell, draft_ids
from tokendraw_bench.sweeps import SWEEPS
from tokendraw_testing import reference

CPU = torch.device("cpu")
CELL = Cell(5, 300, "float32", "both", "gaussian")
VERIFIED = VerifyCell(3, 300, "float32", "both", "peaked-7", 4, "rejection")
EDITED = ProcessCell(3, 3200, "float32", "all", 40)


GRIDS = {
    **{
        f"{name} {preset}": (name, operations.get(name).grid(preset))
        for name in operations.NAMES
        for preset in operations.get(name).presets
    },
    **{name: (sweep.operation, sweep.cells()) for name, sweep in SWEEPS.items()},
    **{f"small {name}": (sweep.operation, sweep.cells(small=True)) for name, sweep in SWEEPS.items()},
}


class TestGrids:
    @pytest.mark.parametrize(("operation", "cells"), GRIDS.values(), ids=GRIDS)
    def test_a_preset_or_sweep_has_each_cell_once_and_neighbours_share_their_inputs(self, operation, cells):
        keys = [operations.get(operation).input_key(cell) for cell in cells]
        assert len(cells) == len(set(cells)) > 1
        assert 1 + sum(here != there for here, there in itertools.pairwise(keys)) == len(set(keys))

    def test_options_replace_values_of_the_preset(self):
        grid = operations.get("sample").grid
        assert grid("design", batch=[2, 2], dtype=["float16"], filters=["mixed"], family=["flat"]) == (
            Cell(2, 151_936, "float16", "mixed", "flat"),
            Cell(2, 128_256, "float16", "mixed", "flat"),
        )
        assert grid("quick", batch=[1, 2], vocab_size=[300, 400], filters=["none"]) == tuple(
            Cell(batch, size, "float32", "none", "peaked-30") for size in (300, 400) for batch in (1, 2)
        )


def asked_by(cell):
    """Return the request of each row of a cell: the fields that are not at their default, and the seed."""
    neutral = asdict(SamplingParams())
    for params, seed in zip(cell.requests, cell.seeds, strict=True):
        given = {name: value for name, value in asdict(params).items() if value != neutral[name]}
        yield ", ".join(f"{name}={value}" for name, value in (given | {"seed": seed}).items())


class TestRequests:
    @pytest.mark.parametrize(("changes", "requests"), pairs(Path(__file__).with_name("requests.txt")))
    def test_rows_ask_for_what_the_cell_says(self, changes, requests):
        cell = replace(CELL, **eval(f"dict({changes})"))
        assert "\n".join(asked_by(cell)) == requests
        metadata = metadata_of(cell, CPU)
        assert metadata.facts.any_seeded == any(seed is not None for seed in cell.seeds)
        assert metadata.facts.all_seeded == (None not in cell.seeds)
        assert metadata.positions is None or len(set(metadata.positions.tolist())) == cell.batch

    def test_a_need_has_the_ties_the_mode_the_ranks_and_the_noise_of_the_cell(self):
        need = operations.get("sample").need
        assert (need(CELL).tie_rule, need(CELL).logprob_ranks, need(CELL).gumbel_dtype) == (
            None,
            True,
            "fp32",
        )
        own = {
            "tie_rule": "either",
            "logprobs_mode": "raw_logits",
            "logprob_ranks": False,
            "gumbel_dtype": "fp64",
        }
        assert {name: getattr(need(replace(CELL, **own)), name) for name in own} == own

    @pytest.mark.parametrize(
        ("edits", "asked"), [("penalties", (True, False)), ("bitmask", (False, False)), ("all", (True, True))]
    )
    def test_requests_in_slots_ask_for_the_edits_of_their_cell(self, edits, asked):
        arguments = operations.get("process_logits").arguments(replace(EDITED, edits=edits), CPU)
        slots = arguments.slots
        assert (slots.facts.any_penalty, slots.facts.any_bias) == asked
        assert slots.tables.num_distinct.tolist() == [40] * 3
        assert (slots.tables.num_tokens - slots.tables.num_prompt).tolist() == [16] * 3
        assert (arguments.bitmask is None) == (edits == "penalties")
        assert arguments.row_index.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(("bitmask", "share"), [*zip(BITMASKS, (0.5, 0.5, 0.5, 0.01, 1.0), strict=True)])
    def test_a_bitmask_allows_a_share_of_the_ids(self, bitmask, share):
        words = operations.get("process_logits").arguments(replace(EDITED, bitmask=bitmask), CPU).bitmask
        bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
        assert words.shape == (3, 100)
        assert bits.mean() == pytest.approx(share, abs=0.15 if bitmask == "runs" else 0.02)
        edges = np.abs(np.diff(bits.astype(int), axis=1)).sum(1)
        assert (edges <= {"runs": 13, "lower-half": 1, "all": 0}.get(bitmask, 3200)).all()


class TestLogits:
    @pytest.mark.parametrize(
        ("family", "vocab_size", "least", "most"),
        [
            *((f"peaked-{n}", size, n, n) for n in (7, 30) for size in (128, 151_936)),
            *((f"peaked-{n}", 4096, n, n) for n in (1, 100, 300, 1000, 2000, 3000)),
            ("peaked-300", 334, 300, 300),
            ("peaked-30000", 40_000, 30_000, 30_000),
            ("gaussian", 32_000, 600, 2000),
            ("flat", 32_000, 28_300, 28_900),
        ],
    )
    def test_the_nucleus_of_a_family_has_its_size_at_every_vocabulary(self, family, vocab_size, least, most):
        (logits,) = make_inputs(Cell(2, vocab_size, "float32", "none", family), CPU, 1)
        assert least <= mean_nucleus(logits) <= most

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_measured_nucleus_equals_the_reference_and_every_run_makes_the_same_rows(self, family):
        cell = Cell(3, max(4000, min_vocab_size(family)), "bfloat16", "none", family)
        buffers = make_inputs(cell, CPU, 2)
        params = SamplingParams(temperature=0.8, top_p=0.9)
        kept = [reference.prepare(row, params).kept.sum() for row in buffers[0].float().numpy()]
        assert mean_nucleus(buffers[0]) == pytest.approx(np.mean(kept))
        assert len({tuple(row.tolist()) for buffer in buffers for row in buffer}) == 6 or family in UNUSUAL
        assert all(map(torch.equal, buffers, make_inputs(cell, CPU, 2)))

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("family", UNUSUAL)
    def test_unusual_rows_have_the_form_of_their_family(self, family, dtype):
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


class TestDrafts:
    def test_drafts_lie_below_the_target_and_are_the_target_plus_noise(self):
        cell = replace(VERIFIED, dtype="bfloat16", family="gaussian", batch=200)
        first, second = make_inputs(cell, CPU, 2)
        assert (cell.num_target_rows, cell.num_rows, list(first.shape)) == (1000, 1800, [1800, 300])
        noise = first[1000:].float() - first[:1000].view(200, 5, 300)[:, :4].reshape(800, 300).float()
        assert (noise.std().item(), noise.mean().item()) == pytest.approx((0.5, 0.0), abs=0.02)
        (target,) = make_inputs(replace(cell, mode="coupled"), CPU, 1)  # whose mode reads no logits of drafts
        assert (torch.equal(first[:1000], target), torch.equal(first, second)) == (True, False)
        ids = draft_ids(cell, CPU)
        assert (ids.shape, len(ids.unique()) > 250) == ((800,), True)
        for draft in (buffer[1000:].float() / 0.8 for buffer in (first, second)):
            best = draft.topk(50).values
            probability = best.softmax(-1)
            kept = probability.cumsum(-1) - probability < 0.9
            assert (draft.gather(-1, ids[:, None])[:, 0] >= best.where(kept, torch.inf).amin(-1)).all()
