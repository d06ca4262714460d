"""DESIGN section 3: the counters, the uniform, the exponential and the Gumbel variate."""

import numpy as np
import pytest
import torch

from tokendraw import philox
from tokendraw.philox import numpy_is_usable
from tokendraw_testing import reference

ONES = 0xFFFFFFFF
STREAMS = ("TOKEN", "TILE", "ACCEPT", "RESIDUAL_TOKEN", "RESIDUAL_TILE", "DRAFT_TOKEN", "DRAFT_TILE", "XTC")


def tensors(*values, device="cpu"):
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


def test_the_counter_is_index_position_and_stream_and_the_key_is_the_seed(device):
    assert [getattr(philox, name) for name in STREAMS] == list(range(8))
    rng = np.random.default_rng(2)
    seeds = signed(rng.integers(0, 1 << 64, 4000, dtype=np.uint64))
    positions, indices = rng.integers(0, 1 << 63, 4000), rng.integers(0, 1 << 31, 4000)
    words = []
    for stream in range(8):
        w0, w1 = philox.random_words(*tensors(seeds, positions, indices, device=device), stream)
        expected = reference.random_words(seeds, positions, indices, stream)
        assert np.array_equal(w0.cpu().numpy(), expected[0].astype(np.int64))
        assert np.array_equal(w1.cpu().numpy(), expected[1].astype(np.int64))
        assert all(int((w0 == other).sum()) <= 1 for other in words)  # streams share no noise
        words.append(w0)


def inverse_philox(output, key):
    """Invert Philox, a bijection of the counter for every key: from output words to counter."""
    inverses = [pow(multiplier, -1, 1 << 32) for multiplier in (0xD2511F53, 0xCD9E8D57)]
    c = list(output)
    for step in reversed(range(10)):
        k0, k1 = ((key[i] + step * weyl) % (1 << 32) for i, weyl in enumerate((0x9E3779B9, 0xBB67AE85)))
        low0, low1 = c[3] * inverses[0] % (1 << 32), c[1] * inverses[1] % (1 << 32)
        high0, high1 = low0 * 0xD2511F53 >> 32, low1 * 0xCD9E8D57 >> 32
        c = [low0, c[0] ^ high1 ^ k0, low1, c[2] ^ high0 ^ k1]
    return tuple(c)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "words", [(0, 0, 5, 6), (0, 1, 5, 6), (1, 0, 5, 6), (ONES, ONES, 5, 6), (ONES, 0, 5, 6)]
)
def test_variates_at_both_ends_of_the_words_are_finite_and_inside_0_and_1(device, dtype, words):
    """Philox is a bijection, so the counter of given extreme words can be computed."""
    index, low, high, stream = inverse_philox(words, (11, 22))
    seed, position = signed([11 | 22 << 32, low | high << 32])
    arguments = tensors(seed, position, index, device=device)
    assert [int(word) for word in philox.random_words(*arguments, stream)] == list(words[:2])
    assert bool(philox.gumbel(*arguments, stream, dtype=dtype).isfinite())
    assert 0.0 < float(philox.uniform(*arguments, stream, dtype=dtype)) < 1.0
    exponential = philox.exponential(philox.random_words(*arguments, stream)[0])
    torch.testing.assert_close(-exponential.log(), philox.gumbel(*arguments, stream), rtol=1e-5, atol=1e-3)


# Other ways to the same noise


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
    stream = {"one a row": seed & 3, "one a column": index & 3}.get(stream, stream)
    found = philox.random_words(seed, position, index, stream)
    monkeypatch.setattr(philox, "numpy_is_usable", lambda: False)
    for word, same in zip(found, philox.random_words(seed, position, index, stream), strict=True):
        assert word.dtype == torch.int64
        assert torch.equal(word, same)


def test_a_torch_without_numpy_makes_its_own_words_with_any_default_dtype_or_device(monkeypatch):
    """Engines load their sampler while building a model, with bfloat16 and the model's device as defaults."""

    def unavailable(_):
        raise RuntimeError("Numpy is not available")

    numpy_is_usable.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "numpy", unavailable)
        assert int(philox.random_words(*tensors(0, 0, 0), 0)[0]) == 0x6627E8D5
    numpy_is_usable.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert numpy_is_usable()
    finally:
        torch.set_default_dtype(before)
        numpy_is_usable.cache_clear()
