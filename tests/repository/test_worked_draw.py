"""docs/worked-draw.md agrees with the code: numbers from Philox's known answers, and tokens of native."""

import math
import re

import pytest
import torch

import pages
import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, philox

PAGE = pages.text_of("docs/worked-draw.md")
CONTRACT = pages.text_of("docs/contract.md")
MASK = 0xFFFFFFFF
SEED, POSITION, TEMPERATURE, VOCAB_SIZE = 0x0123456789ABCDEF, 8589934602, 2.0, 2500
LOGITS = [((37 * i) % 101) / 8 for i in range(VOCAB_SIZE)]
TILES = 3
SCALED = [(x - max(LOGITS)) / TEMPERATURE for x in LOGITS]
WEIGHTS = [sum(math.exp(y) for y in SCALED[1024 * t : 1024 * (t + 1)]) for t in range(TILES)]


def rounds(counter, key):
    """The states (counter, key) of Philox4x32-10 before each of ten rounds, and at the end."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        yield (c0, c1, c2, c3), (k0, k1)
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & MASK, (first >> 32) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    yield (c0, c1, c2, c3), (k0, k1)


def output(counter, key):
    *_, (words, _) = rounds(counter, key)
    return words


def words_of(index, stream):
    """The four output words of the worked draw at one index of a stream."""
    return output((index, POSITION & MASK, POSITION >> 32, stream), (SEED & MASK, SEED >> 32))


def variates(w0):
    """(u, E, G) of a word, in float64."""
    u = (w0 + 0.5) / 2**32
    exponential = -math.log1p(-u)
    return u, exponential, -math.log(exponential)


def in_hex(words):
    return " ".join(f"{word:08x}" for word in words)


def table(head, alignment, rows):
    lines = (head, alignment, *(" | ".join(row) for row in rows))
    return "".join(f"| {line} |\n" for line in lines)


def table_of_known_answers():
    inputs = [
        ((0, 0, 0, 0), (0, 0)),
        ((MASK,) * 4, (MASK,) * 2),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
    ]
    rows = [[in_hex(counter), in_hex(key), in_hex(output(counter, key))] for counter, key in inputs]
    return table("counter | key | output", "--- | --- | ---", rows)


def table_of_rounds():
    states = rounds((1, POSITION & MASK, POSITION >> 32, philox.TILE), (SEED & MASK, SEED >> 32))
    rows = [[str(done), in_hex(counter), in_hex(key)] for done, (counter, key) in enumerate(states)]
    rows[-1][-1] = ""
    return table("rounds done | counter | key of the next round", "--: | --- | ---", rows)


def scores(indices, stream, values):
    """For each index: (words, u, E, G, value, value plus G)."""
    result = {}
    for index in indices:
        words = words_of(index, stream)
        u, exponential, gumbel = variates(words[0])
        result[index] = (words, u, exponential, gumbel, values[index], values[index] + gumbel)
    return result


def best(scored):
    return max(scored, key=lambda index: scored[index][-1])


def line_of(index, words, *numbers):
    return [str(index), in_hex(words[:2]), *(f"{number:.5f}" for number in numbers)]


def tiles():
    return scores(range(TILES), philox.TILE, [math.log(weight) for weight in WEIGHTS])


def table_of_tiles():
    rows = [line_of(tile, *result) for tile, result in tiles().items()]
    return table(
        "tile t | words 0 and 1 | u | E | G | log W_t | log W_t + G",
        "--: | --- | --: | --: | --: | --: | --:",
        rows,
    )


def tokens():
    first = 1024 * best(tiles())
    return scores(range(first, min(first + 1024, VOCAB_SIZE)), philox.TOKEN, SCALED)


def table_of_tokens():
    result = tokens()
    order = sorted(result, key=lambda index: -result[index][-1])[:4]
    rows = [line_of(token, *result[token]) for token in order]
    return table(
        "id i | words 0 and 1 | u | E | G | y_i | y_i + G", "--: | --- | --: | --: | --: | --: | --:", rows
    )


def table_of_float64():
    rows = []
    for name, index, stream in (
        ("tile", best(tiles()), philox.TILE),
        ("token", best(tokens()), philox.TOKEN),
    ):
        w0, w1, *_ = words_of(index, stream)
        bits = (w0 << 21) | (w1 >> 11)
        gumbel = -math.log(-math.log1p(-(bits + 0.5) / 2**53))
        rows.append([f"{name} {index}", str(bits), f"{gumbel:.12f}"])
    return table("noise of | 53 bits | G", "--- | --: | --:", rows)


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


def table_of_requests():
    rows = [[words, str(drawn(position, **fields))] for words, fields, position in REQUESTS]
    return table("what differs | token", "--- | --:", rows)


TABLES = [
    table_of_known_answers,
    table_of_rounds,
    table_of_tiles,
    table_of_tokens,
    table_of_float64,
    table_of_requests,
]


@pytest.mark.parametrize("recomputed", TABLES)
def test_a_table_is_what_is_recomputed(recomputed):
    assert recomputed() in PAGE


def test_sentences_name_the_recomputed_values():
    tile, token = best(tiles()), best(tokens())
    for sentence in (
        f"key = ({SEED & MASK:08x}, {SEED >> 32:08x})",
        f"(t, {POSITION & MASK:08x}, {POSITION >> 32:08x}, {philox.TILE:08x})",
        f"(i, {POSITION & MASK:08x}, {POSITION >> 32:08x}, {philox.TOKEN:08x})",
        f"The largest `x` is {max(LOGITS)}",
        f"**The tile is {tile}.**",
        f"ids {1024 * tile} to {1024 * tile + 1023}",
        f"**The token is {token}.**",
    ):
        assert sentence in PAGE, sentence


def test_the_contract_lists_the_counter_and_every_stream():
    (counter,) = re.findall(r"^\| counter \| (.*) \|$", CONTRACT, re.MULTILINE)
    assert counter == "(index, position low 32 bits, position high 32 bits, stream)"
    listed = re.findall(r"^\| (\d) \| `(\w+)` \|", CONTRACT, re.MULTILINE)
    assert [int(number) for number, _ in listed] == list(range(8))
    assert all(getattr(philox, name) == int(number) for number, name in listed)
