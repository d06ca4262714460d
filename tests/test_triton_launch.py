"""How triton-gumbel launches, with kernels that only note what they are given."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import plan as triton_plan
from tokendraw_triton_gumbel import sampler as triton_sampler

KERNELS = ("tile_statistics", "draw_rows", "draw_wide")
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1)


class Kernel:
    """Notes what Triton gets, and what the variant gets that it compiled: itself, too."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.calls.append((grid, arguments, constants))
            return self

        return launch


@pytest.fixture
def kernels(monkeypatch):
    found = {name: Kernel() for name in KERNELS}
    for name, kernel in found.items():
        monkeypatch.setattr(triton_plan, name, kernel)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


def draw(sampler, *params, dtype=torch.float32, offset=0):
    """The logits and the metadata of a call that was made."""
    logits = torch.zeros(len(params) * 3000 + offset, dtype=dtype)[offset:].view(len(params), 3000)
    metadata = SamplingMetadata.from_params(params, positions=range(len(params)))
    sampler.sample(logits, metadata)
    return logits, metadata


def test_the_second_call_passes_the_addresses_of_what_the_first_passed_as_tensors(kernels):
    sampler = triton_sampler.TritonGumbelSampler(torch.device("cpu"), Need())
    draw(sampler, FILTERED, FILTERED)
    logits, metadata = draw(sampler, FILTERED, FILTERED)
    for kernel in kernels.values():
        (grid, tensors, constants), (again, addresses, none) = kernel.calls
        assert grid == again
        assert none == {}
        given = [constants[name] for name in constants if name not in ("num_warps", "maxnreg")]
        assert list(addresses[len(tensors) :]) == given
        for tensor, address in zip(tensors, addresses, strict=False):
            if isinstance(tensor, torch.Tensor):
                assert isinstance(address, int)
            else:
                assert tensor == address
        assert addresses[0] == logits.data_ptr()
    for name in ("tile_statistics", "draw_rows"):
        assert metadata.temperature.data_ptr() in kernels[name].calls[1][1]
    draw_again = kernels["draw_rows"].calls[1][1]
    for tensor in (metadata.seed, metadata.seeded, metadata.positions, metadata.top_k, metadata.top_p):
        assert tensor.data_ptr() in draw_again


def test_scratch_lies_where_it_lay_before(kernels):
    sampler = triton_sampler.TritonGumbelSampler(torch.device("cpu"), Need())
    draw(sampler, FILTERED)
    draw(sampler, FILTERED)
    (_, tensors, _), (_, addresses, _) = kernels["draw_wide"].calls
    storage = tensors[3].untyped_storage()  # of the maxima, and so of all scratch
    pieces = [
        i
        for i, t in enumerate(tensors)
        if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() == storage.data_ptr()
    ]
    assert len(pieces) == 10 + 2  # the maxima stand in for floors and kept masses
    for i in pieces:
        assert addresses[i] - addresses[3] == tensors[i].data_ptr() - tensors[3].data_ptr()


@pytest.mark.parametrize("other", [{"dtype": torch.bfloat16}, {"offset": 1}], ids=["dtype", "alignment"])
def test_what_triton_compiles_anew_is_not_taken_for_what_it_compiled(kernels, other):
    sampler = triton_sampler.TritonGumbelSampler(torch.device("cpu"), Need())
    draw(sampler, FILTERED)
    draw(sampler, FILTERED, **other)
    for kernel in kernels.values():
        assert all(isinstance(arguments[0], torch.Tensor) for _, arguments, _ in kernel.calls)


def test_another_kind_of_request_is_served_by_what_is_compiled(kernels):
    sampler = triton_sampler.TritonGumbelSampler(torch.device("cpu"), Need())
    draw(sampler, FILTERED)
    draw(sampler, SamplingParams(top_k=9, top_p=0.5, min_p=0.1, filter_order="joint"))
    for kernel in kernels.values():
        assert [isinstance(arguments[0], torch.Tensor) for _, arguments, _ in kernel.calls] == [True, False]


def test_without_filters_nothing_is_launched_for_wide_rows(kernels):
    draw(triton_sampler.TritonGumbelSampler(torch.device("cpu"), Need()), SamplingParams())
    assert [len(kernels[name].calls) for name in KERNELS] == [1, 1, 0]
