"""docs/worked-draw.md agrees with the code: numbers of the kit's reference, and tokens of native."""

import math
import re

import numpy as np
import pytest
import torch

import pages
import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, philox
from tokendraw_testing import reference

PAGE = pages.text_of("docs/worked-draw.md")
CONTRACT = pages.text_of("docs/contract.md")
MASK = 0xFFFFFFFF
SEED, POSITION, TEMPERATURE, VOCAB_SIZE = 0x0123456789ABCDEF, 8589934602, 2.0, 2500
LOGITS = [((37 * i) % 101) / 8 for i in range(VOCAB_SIZE)]
SCALED = np.array([(x - max(LOGITS)) / TEMPERATURE for x in LOGITS])
MASSES = np.log([np.exp(SCALED[first : first + 1024]).sum() for first in range(0, VOCAB_SIZE, 1024)])


def in_hex(words):
    return " ".join(f"{int(word):08x}" for word in words)


def rows(lines):
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def known_answers():
    for counter, key in (
        ((0, 0, 0, 0), (0, 0)),
        ((MASK,) * 4, (MASK,) * 2),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
    ):
        yield in_hex(counter), in_hex(key), in_hex(reference.philox4x32(counter, key))


def rounds():
    """One round after another, which ends where the reference does."""
    counter, key = (1, POSITION & MASK, POSITION >> 32, philox.TILE), (SEED & MASK, SEED >> 32)
    output = reference.philox4x32(counter, key)
    for done in range(10):
        yield done, in_hex(counter), in_hex(key)
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        high = (second >> 32) ^ counter[1] ^ key[0], (first >> 32) ^ counter[3] ^ key[1]
        counter = high[0], second & MASK, high[1], first & MASK
        key = (key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK
    assert in_hex(counter) == in_hex(output)
    yield 10, in_hex(counter), ""


def race(indices, stream, values):
    """The index with the largest sum of value and noise, and the line of each index, the best first."""
    w0, w1, *_ = reference.random_words(SEED, POSITION, indices, stream)
    gumbel = reference.gumbel(SEED, POSITION, indices, stream)
    lines = []
    for place in np.argsort(-(values + gumbel)):
        u = (int(w0[place]) + 0.5) / 2**32
        numbers = u, -math.log1p(-u), gumbel[place], values[place], values[place] + gumbel[place]
        words = in_hex((w0[place], w1[place]))
        lines.append([int(indices[place]), words, *(f"{number:.5f}" for number in numbers)])
    return lines[0][0], lines


TILE, TILES = race(np.arange(len(MASSES)), philox.TILE, MASSES)
IDS = np.arange(1024 * TILE, 1024 * (TILE + 1))
TOKEN, TOKENS = race(IDS, philox.TOKEN, SCALED[IDS])


def in_float64():
    for name, index, stream in (("tile", TILE, philox.TILE), ("token", TOKEN, philox.TOKEN)):
        w0, w1, *_ = map(int, reference.random_words(SEED, POSITION, index, stream))
        gumbel = float(reference.gumbel(SEED, POSITION, index, stream, "fp64"))
        yield f"{name} {index}", (w0 << 21) | (w1 >> 11), f"{gumbel:.12f}"


REQUESTS = [
    ("as above", {}, POSITION),
    ("float64 noise", {"gumbel_dtype": "fp64"}, POSITION),
    ("`temperature` 0", {"temperature": 0.0}, POSITION),
    ("`top_k` 50", {"top_k": 50}, POSITION),
    ("`top_p` 0.5", {"top_p": 0.5}, POSITION),
    ("`min_p` 0.5", {"min_p": 0.5}, POSITION),
    ("`seed` -1, which is 2^64 - 1", {"seed": -1}, POSITION),
    ("`position` 0", {}, 0),
    ("`position` 10", {}, POSITION & MASK),
]


def drawn(position, gumbel_dtype="fp32", **fields):
    """Draw a token by native."""
    sampler = tokendraw.load_sampler("native", device="cpu", need=tokendraw.Need(gumbel_dtype=gumbel_dtype))
    params = SamplingParams(**{"temperature": TEMPERATURE, "seed": SEED, **fields})
    metadata = SamplingMetadata.from_params([params], positions=[position])
    return int(sampler.sample(torch.tensor([LOGITS]), metadata).token_ids)


@pytest.mark.parametrize(
    "lines",
    [
        known_answers,
        rounds,
        lambda: sorted(TILES),
        lambda: TOKENS[:4],
        in_float64,
        lambda: [(words, drawn(position, **fields)) for words, fields, position in REQUESTS],
    ],
    ids=["known answers", "rounds", "tiles", "tokens", "float64", "requests"],
)
def test_a_table_is_what_is_recomputed(lines):
    assert rows(lines()) in PAGE


def test_the_contract_lists_the_counter_and_every_stream():
    (counter,) = re.findall(r"^\| counter \| (.*) \|$", CONTRACT, re.MULTILINE)
    assert counter == "(index, position low 32 bits, position high 32 bits, stream)"
    listed = re.findall(r"^\| (\d) \| `(\w+)` \|", CONTRACT, re.MULTILINE)
    assert [int(number) for number, _ in listed] == list(range(8))
    assert all(getattr(philox, name) == int(number) for number, name in listed)
