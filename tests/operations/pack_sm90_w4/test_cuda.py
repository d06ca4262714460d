"""The native packer on a GPU: a single launch, the bytes of a CPU, no more memory than the result."""

import pytest
import torch

import tokendraw
from cuda_batches import WAYS, random_bytes
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.device import sync_is_an_error
from tokendraw_testing.kit.report import Status

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def packers():
    return [tokendraw.load("pack_sm90_w4", "native", device=device) for device in ("cpu", "cuda")]


@pytest.mark.parametrize(("format", "layout"), WAYS)
def test_weights_at_an_odd_address_are_packed_too(packers, format, layout):
    on_cpu, on_gpu = packers
    buffer = random_bytes((2 * 64 * 64 + 3,))
    weights, there = (b[3:].view(2, 64, 64) for b in (buffer, buffer.cuda()))
    packed = on_gpu.pack_weights(there, format=format, layout=layout)
    assert torch.equal(packed.cpu(), on_cpu.pack_weights(weights, format=format, layout=layout))


@pytest.mark.parametrize(("format", "layout"), WAYS)
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "not aligned"])
def test_extra_memory_stays_under_two_experts(packers, format, layout, offset):
    packer, shape = packers[1], (8, 1024, 2048)
    weights = torch.zeros(8 * 1024 * 2048 + offset, dtype=torch.uint8, device="cuda")[offset:].view(shape)
    packer.pack_weights(weights, format=format, layout=layout)
    for call in (packer.pack_weights, packer.unpack_weights):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call(weights, format=format, layout=layout)
        extra = torch.cuda.max_memory_allocated() - before - result.nbytes
        assert extra < 2 * weights[0].nbytes
        del result


def test_more_bytes_than_32_bits_count_are_packed(packers):
    packer = packers[1]
    weights = torch.randint(256, (9, 16384, 16384 * 2), dtype=torch.uint8, device="cuda")
    assert weights.nbytes > 2**32
    packed = packer.pack_weights(weights, format="fp4", layout="v2")
    for expert in (0, 4, 8):
        alone = packer.pack_weights(weights[expert : expert + 1], format="fp4", layout="v2")
        assert torch.equal(packed[expert : expert + 1], alone)
    back = packer.unpack_weights(packed, format="fp4", layout="v2")
    assert all(torch.equal(one, other) for one, other in zip(back, weights, strict=True))


def test_a_call_does_not_wait_for_the_device(packers):
    packer, weights = packers[1], torch.zeros(2, 64, 64, dtype=torch.uint8, device="cuda")
    for format, layout in WAYS:
        packed = packer.pack_weights(weights, format=format, layout=layout)
        packer.unpack_weights(packed, format=format, layout=layout)
        with sync_is_an_error():
            packed = packer.pack_weights(weights, format=format, layout=layout)
            packer.unpack_weights(packed, format=format, layout=layout)


def test_every_line_of_the_kit_is_green_but_that_of_a_cpus_threads():
    report = run(Subject.installed("native", device="cuda"), operation="pack_sm90_w4")
    others = {line.name: line.detail for line in report.lines if line.status is not Status.PASSED}
    assert others == {"pack threads": "needs a CPU, found cuda"}
