"""Launches of triton-gumbel, with kernels that only record arguments."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel.compiled_calls import CompiledCall
from tokendraw_triton_gumbel.plan import Scratch
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import compilations, flat

KERNELS = ("tile_statistics", "draw_rows", "draw_large_sets")
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)
V = 3008


def sampler_here():
    return TritonGumbelSampler(torch.device("cpu"), Need())


def draw(sampler, *params, dtype=torch.float32, offset=0, vocab_size=V):
    """Make a call; return its logits and metadata."""
    logits = torch.zeros(len(params) * vocab_size + offset, dtype=dtype)[offset:].view(-1, vocab_size)
    metadata = SamplingMetadata.from_params(params, positions=range(len(params)))
    sampler.sample(logits, metadata)
    return logits, metadata


def test_every_launch_is_given_addresses_and_numbers(kernels):
    sampler = sampler_here()
    for _ in range(2):
        logits, metadata = draw(sampler, FILTERED, FILTERED)
        for name in KERNELS:
            _, arguments = kernels[name].launches[-1]
            assert arguments[0] == (logits.data_ptr(), V, V)
            assert {type(argument) for argument in flat(arguments[:-1])} <= {int, bool, type(None)}
            assert len(arguments) == len(kernels[name].arg_names)
        assert metadata.temperature.data_ptr() in flat(kernels["tile_statistics"].launches[-1][1])
        drawn = flat(kernels["draw_rows"].launches[-1][1])
        for name in ("temperature", "seed", "seeded", "positions", "top_k", "top_p"):
            assert getattr(metadata, name).data_ptr() in drawn, name


def test_scratch_is_a_single_allocation_of_disjoint_aligned_pieces():
    scratch = Scratch()
    for dtype, each, of in (
        (torch.float32, 3, 0),
        (torch.bool, 1, 0),
        (torch.int64, 5, 1),
        (torch.int32, 7, 0),
    ):
        scratch.reserve(dtype, each, of)
    for rows in range(1, 300):
        counts = (rows, 2)
        size = scratch.offsets(counts)[-1]
        memory = torch.zeros(size, dtype=torch.uint8)
        pieces = scratch.buffers(memory, counts)
        assert [piece.shape[0] for piece in pieces] == [3 * rows, rows, 10, 7 * rows]
        for i, piece in enumerate(pieces):
            piece.fill_(1)
            assert (piece.data_ptr() - memory.data_ptr()) % 256 == 0
            assert all(int(other.to(torch.int64).sum()) == 0 for other in pieces[i + 1 :])


def test_another_dtype_compiles_anew(kernels):
    sampler = sampler_here()
    draw(sampler, FILTERED)
    before = compilations(kernels)
    draw(sampler, FILTERED, dtype=torch.bfloat16)
    assert compilations(kernels) == {name: n + (name in KERNELS) for name, n in before.items()}


@pytest.mark.parametrize(
    ("vocab_size", "more"), [(V, 1), (V + 1, 0)], ids=["rows at multiples of 16", "rows anywhere"]
)
def test_another_alignment_compiles_anew_only_where_rows_may_be_read_16_bytes_at_once(
    kernels, vocab_size, more
):
    sampler = sampler_here()
    draw(sampler, FILTERED, vocab_size=vocab_size)
    before = compilations(kernels)
    draw(sampler, FILTERED, vocab_size=vocab_size, offset=1)
    assert compilations(kernels) == {name: n + more * (name in KERNELS) for name, n in before.items()}


def test_another_kind_of_request_is_served_by_what_is_compiled(kernels):
    sampler = sampler_here()
    draw(sampler, FILTERED)
    before = compilations(kernels)
    draw(sampler, SamplingParams(top_k=9, top_p=0.5, min_p=0.1, filter_order="joint"))
    assert compilations(kernels) == before
    assert [len(kernels[name].launches) for name in KERNELS] == [2, 2, 2]


def test_without_filters_nothing_is_launched_for_large_sets(kernels):
    draw(sampler_here(), SamplingParams())
    assert [len(kernels[name].launches) for name in KERNELS] == [1, 1, 0]


def test_rows_of_one_logit_are_no_kind_of_their_own(kernels):
    """Triton would take the 1 for a constant."""
    sampler = sampler_here()
    draw(sampler, FILTERED, vocab_size=V + 1)
    before = compilations(kernels)
    draw(sampler, FILTERED, vocab_size=1)
    assert compilations(kernels) == before


def test_another_number_of_rows_is_laid_out_without_looking_at_anything_else(kernels, monkeypatch):
    """The test counts the omitted work; benchmarks/results/h200_triton_gumbel_host.md has its time."""
    sampler = sampler_here()
    draw(sampler, FILTERED)
    made = []
    monkeypatch.setattr(CompiledCall, "__init__", lambda *_, **__: made.append(1))
    for rows in (2, 3, 127, 128):
        draw(sampler, *[FILTERED] * rows)
    assert made == []
    assert [kernels["draw_rows"].launches[-1][0]] == [(128, 1, 1)]


def test_a_filter_that_reads_no_moments_has_floors_too(kernels, dists):
    dists.add_filter("return -value")
    draw(sampler_here(), SamplingParams(filters={"acme": 0.5}))
    assert len(kernels["combine_floors"].launches) == 1
