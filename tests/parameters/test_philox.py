"""DESIGN section 3: the counters, the uniform, the exponential and the Gumbel variate."""

import numpy as np
import pytest
import torch

from cuda_batches import Operations
from tokendraw import philox
from tokendraw.philox import numpy_is_usable
from tokendraw_testing import reference

ONES = 0xFFFFFFFF
STREAMS = ("TOKEN", "TILE", "ACCEPT", "RESIDUAL_TOKEN", "RESIDUAL_TILE", "DRAFT_TOKEN", "DRAFT_TILE")


def tensors(*values, device):
    return tuple(torch.as_tensor(v, dtype=torch.int64, device=device) for v in values)


def signed(words):
    """Unsigned 64-bit integers as the int64 of the same bits."""
    return np.asarray(words, np.uint64).view(np.int64)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(device, counter, key, words):
    output = philox.philox4x32(tensors(*counter, device=device), tensors(*key, device=device))
    assert tuple(int(word) for word in output) == words
    assert tuple(int(word) for word in reference.philox4x32(counter, key)) == words


def test_counters_and_keys_broadcast_against_each_other(device):
    rows, columns = torch.arange(3, device=device)[:, None], torch.arange(5, device=device)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    output = philox.philox4x32((columns, zero, zero, zero), (rows, zero))
    assert [tuple(word.shape) for word in output] == [(3, 5)] * 4
    assert int(output[0][2, 4]) == int(reference.philox4x32((4, 0, 0, 0), (2, 0))[0])


def test_streams_are_numbered_from_0_to_6_in_the_documented_order():
    assert [getattr(philox, name) for name in STREAMS] == list(range(7))


def test_the_counter_is_index_then_position_low_and_high_then_stream_and_the_key_is_the_seed(device):
    rng = np.random.default_rng(2)
    seeds = signed(rng.integers(0, 1 << 64, 4000, dtype=np.uint64))
    positions = rng.integers(0, 1 << 63, 4000)
    indices = rng.integers(0, 1 << 31, 4000)
    for stream in range(7):
        w0, w1 = philox.random_words(*tensors(seeds, positions, indices, device=device), stream)
        expected = reference.random_words(seeds, positions, indices, stream)
        assert np.array_equal(w0.cpu().numpy(), expected[0].astype(np.int64))
        assert np.array_equal(w1.cpu().numpy(), expected[1].astype(np.int64))


def test_a_draft_and_its_verification_never_share_noise(device):
    arguments = tensors(7, 3, np.arange(1000), device=device)
    noise = torch.stack([philox.random_words(*arguments, stream)[0] for stream in range(7)])
    for one in range(7):
        for other in range(one):
            assert not torch.equal(noise[one], noise[other])
            assert int((noise[one] == noise[other]).sum()) <= 1


def test_u_lies_strictly_between_0_and_1_at_both_ends_of_w0(device):
    (ends,) = tensors([0, 1, ONES - 1, ONES], device=device)
    exponential = philox.exponential(ends)
    assert exponential.dtype == torch.float32
    assert bool((exponential > 0).all())
    assert bool(exponential.isfinite().all())
    assert bool((-exponential.log()).isfinite().all())


def test_u_is_formed_without_losing_low_bits(device):
    (w0,) = tensors(np.arange(1 << 16), device=device)
    exponential = philox.exponential(w0)
    assert len(set(exponential[:4].tolist())) == 4
    assert bool((exponential.diff() > 0).all())


def test_the_exponential_variate_is_minus_log1p_of_minus_u(device):
    rng = np.random.default_rng(3)
    powers = 2.0 ** rng.uniform(
        0, 31, 100_000
    )  # every magnitude of u below 1/2, where the winners are decided
    w0 = np.concatenate([np.arange(1000), powers.astype(np.int64)])
    found = philox.exponential(*tensors(w0, device=device)).cpu().numpy()
    np.testing.assert_allclose(found, -np.log1p(-reference.uniform(w0)), rtol=4e-7)


def test_the_exponential_variate_grows_with_u_up_to_the_end(device):
    rng = np.random.default_rng(4)
    w0 = np.sort(np.concatenate([rng.integers(1 << 31, 1 << 32, 100_000), np.arange(ONES - 1000, ONES + 1)]))
    found = philox.exponential(*tensors(w0, device=device)).cpu().numpy()
    u = reference.uniform(w0)
    assert (np.diff(found) >= 0).all()
    coarse = 1 - u > 1e-3  # beyond, one step of a float32 u is a step of several per mille
    np.testing.assert_allclose(found[coarse], -np.log1p(-u[coarse]), rtol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "rtol", "result"), [("fp32", 3e-6, torch.float32), ("fp64", 1e-12, torch.float64)]
)
def test_the_gumbel_variate_agrees_with_the_reference(device, dtype, rtol, result):
    rng = np.random.default_rng(5)
    seeds = signed(rng.integers(0, 1 << 64, 100_000, dtype=np.uint64))
    positions, indices = rng.integers(0, 1 << 62, 100_000), rng.integers(0, 1 << 20, 100_000)
    noise = philox.gumbel(*tensors(seeds, positions, indices, device=device), philox.TOKEN, dtype=dtype)
    assert noise.dtype == result
    expected = reference.gumbel(seeds, positions, indices, reference.TOKEN, dtype)
    likely_winners = expected > 0
    np.testing.assert_allclose(
        noise.cpu().numpy()[likely_winners], expected[likely_winners], rtol=rtol, atol=rtol
    )
    np.testing.assert_allclose(noise.cpu().numpy(), expected, atol=1e-3 if dtype == "fp32" else rtol)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "words", [(0, 0, 5, 6), (0, 1, 5, 6), (1, 0, 5, 6), (ONES, ONES, 5, 6), (ONES, 0, 5, 6)]
)
def test_variates_at_both_ends_of_the_words_are_finite_and_inside_0_and_1(device, dtype, words):
    """Philox is a bijection, so the counter of given extreme words can be computed."""
    index, low, high, stream = reference.inverse_philox4x32(words, (11, 22))
    seed, position = signed([11 | 22 << 32, low | high << 32])
    arguments = tensors(seed, position, index, device=device)
    assert [int(word) for word in philox.random_words(*arguments, stream)] == list(words[:2])
    assert bool(philox.gumbel(*arguments, stream, dtype=dtype).isfinite())
    assert 0.0 < float(philox.uniform(*arguments, stream, dtype=dtype)) < 1.0


def test_fp64_noise_uses_53_bits_of_both_words(device):
    """Neighbouring w1 change the noise by a step of 2**-53."""
    arguments = tensors(np.full(1000, 3), np.arange(1000), np.zeros(1000), device=device)
    fp64 = philox.gumbel(*arguments, philox.TOKEN, dtype="fp64").cpu().numpy()
    w0, w1, _, _ = reference.random_words(3, np.arange(1000), 0, reference.TOKEN)
    thirty_two_bits = -np.log(-np.log1p(-reference.uniform(w0)))
    assert (fp64 != thirty_two_bits).all()
    u = -np.expm1(-np.exp(-fp64))
    np.testing.assert_allclose(u, reference.uniform(w0, w1), rtol=1e-12)
    assert np.abs(thirty_two_bits - fp64).max() > 1e-10


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_the_uniform_variate_is_the_reference_to_the_bit(device, dtype):
    arguments = tensors(np.full(1000, 3), np.arange(1000), np.zeros(1000), device=device)
    found = philox.uniform(*arguments, philox.ACCEPT, dtype=dtype)
    w0, w1, _, _ = reference.random_words(3, np.arange(1000), 0, 2)
    assert found.dtype == torch.float64
    assert np.array_equal(found.cpu().numpy(), reference.uniform(w0, w1 if dtype == "fp64" else None))


SHAPES = [
    ((), (), ()),
    ((), (), (7,)),
    ((3, 1), (3, 1), (500,)),
    ((2, 1, 1), (3, 1), (5,)),
    ((0, 1), (0, 1), (5,)),
]


@pytest.mark.parametrize("stream", [philox.TILE, "one a row", "one a column"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_numpy_and_torch_give_a_cpu_the_same_words(monkeypatch, shapes, stream):
    generator = torch.Generator().manual_seed(3)
    seed, position, index = (torch.randint(0, 2**62, shape, generator=generator) for shape in shapes)
    index &= ONES
    if stream == "one a row":
        stream = seed & 3
    elif stream == "one a column":
        stream = index & 3
    found = philox.random_words(seed, position, index, stream)
    monkeypatch.setattr(philox, "numpy_is_usable", lambda: False)
    expected = philox.random_words(seed, position, index, stream)
    for word, same in zip(found, expected, strict=True):
        assert word.dtype == torch.int64
        assert torch.equal(word, same)


def test_a_torch_without_numpy_makes_its_own_words(monkeypatch):
    def unavailable(_):
        raise RuntimeError("Numpy is not available")

    numpy_is_usable.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "numpy", unavailable)
        w0, _ = philox.random_words(*tensors(0, 0, 0, device="cpu"), 0)
    numpy_is_usable.cache_clear()
    assert int(w0) == 0x6627E8D5


def test_what_a_host_makes_the_default_dtype_and_device_keeps_no_cpu_from_drawing():
    """Engines load their sampler while building a model, with bfloat16 and the model's device as defaults."""
    numpy_is_usable.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert numpy_is_usable()
    finally:
        torch.set_default_dtype(before)
        numpy_is_usable.cache_clear()


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("block", [1, 7, 64])
def test_noise_that_is_made_in_blocks_is_the_noise_of_one_call(monkeypatch, block, dtype):
    generator = torch.Generator().manual_seed(3)
    seed, position = (torch.randint(0, 2**62, (5, 1), generator=generator) for _ in range(2))
    for index, stream in (
        (torch.arange(23), 3),
        (torch.arange(115).view(5, 23), torch.arange(5).unsqueeze(-1)),
    ):
        whole = philox.gumbel(seed, position, index, stream, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(philox, "_BLOCK_VARIATES", block)
            assert torch.equal(philox.gumbel(seed, position, index, stream, dtype), whole)


def test_a_cpu_makes_noise_in_few_operations_of_torch():
    """A launch costs more than the arithmetic on a tile."""
    arguments = tensors([[7]], [[3]], np.arange(1000), device="cpu")
    with Operations() as operations:
        philox.gumbel(*arguments, philox.TOKEN)
    assert operations.count <= 25
