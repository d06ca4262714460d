"""docs/worked-draw.md is true: its Python makes its tables and draws the tokens of native."""

import json
import math
import random
import re

import pytest
import torch

import pages
import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, philox

PAGE = pages.text_of("docs/worked-draw.md")
DRAW = {"seed": 0x0123456789ABCDEF, "position": 8589934602, "temperature": 2.0}
SEED, POSITION, TEMPERATURE = DRAW.values()
PRINTED = []
PYTHON = {"print": PRINTED.append}
exec("\n".join(pages.blocks(PAGE, "python")), PYTHON)
LOGITS, MASK = PYTHON["logits"], PYTHON["MASK"]


def words(text):
    return tuple(int(word, 16) for word in text.split())


def test_the_words_of_philox():
    lines = [row for row in pages.rows(PAGE, 3) if re.fullmatch(r"[\da-f]{8}( [\da-f]{8})*|\d+", row[0])]
    answers, rounds = lines[:3], lines[3:]
    assert [words(row[2]) for row in answers] == [
        PYTHON["philox"](words(counter), words(key)) for counter, key, _ in answers
    ]
    counter, key = (1, POSITION & MASK, POSITION >> 32, philox.TILE), (SEED & MASK, SEED >> 32)
    assert [words(row[1]) for row in rounds] == [PYTHON["philox"](counter, key, done) for done in range(11)]
    increments = 0x9E3779B9, 0xBB67AE85
    keys = [tuple((k + done * i) & MASK for k, i in zip(key, increments, strict=True)) for done in range(10)]
    assert [words(row[2]) for row in rounds] == [*keys, ()]


def race(stream, values):
    """The line of each index, the best first: the largest sum of value and noise."""
    lines = []
    for index, value in values.items():
        w0, w1, *_ = PYTHON["words"](SEED, POSITION, index, stream)
        u, noise = (w0 + 0.5) / 2**32, PYTHON["gumbel"](SEED, POSITION, index, stream)
        numbers = u, -math.log1p(-u), noise, value, value + noise
        lines.append([str(index), f"{w0:08x} {w1:08x}", *(f"{number:.5f}" for number in numbers)])
    return sorted(lines, key=lambda line: -float(line[-1]))


def test_the_noise_and_the_sums_of_tiles_and_tokens():
    y = [(x - max(LOGITS)) / TEMPERATURE for x in LOGITS]
    ids = [range(2500)[first : first + 1024] for first in (0, 1024, 2048)]
    masses = {tile: math.log(math.fsum(math.exp(y[i]) for i in part)) for tile, part in enumerate(ids)}
    tiles = race(philox.TILE, masses)
    tokens = race(philox.TOKEN, {i: y[i] for i in ids[int(tiles[0][0])]})
    assert [row for row in pages.rows(PAGE, 7) if row[0].isdigit()] == [*sorted(tiles), *tokens[:4]]
    assert [int(tokens[0][0])] == PRINTED
    for name, bits, noise in list(pages.rows(PAGE, 3))[-2:]:
        stream, index = philox.TILE if "tile" in name else philox.TOKEN, int(name.split()[1])
        w0, w1, *_ = PYTHON["words"](SEED, POSITION, index, stream)
        assert int(bits) == (w0 << 21) | (w1 >> 11)
        assert noise == f"{-math.log(-math.log1p(-(int(bits) + 0.5) / 2**53)):.12f}"


def drawn(logits, rows, gumbel_dtype="fp32"):
    """Draw a token for each row by native."""
    sampler = tokendraw.load_sampler("native", device="cpu", need=tokendraw.Need(gumbel_dtype=gumbel_dtype))
    params = [SamplingParams(**{name: row[name] for name in row if name != "position"}) for row in rows]
    metadata = SamplingMetadata.from_params(params, positions=[row["position"] for row in rows])
    return sampler.sample(torch.tensor(logits), metadata).token_ids.tolist()


@pytest.mark.parametrize(("request_", "token"), [row for row in pages.rows(PAGE, 2) if row[1].isdigit()])
def test_the_token_of_a_request(request_, token):
    fields = {name: json.loads(value) for name, value in re.findall(r"^`(\w+)` (-?[\d.]+)", request_)}
    assert drawn([LOGITS], [DRAW | fields], "fp64" if "float64" in request_ else "fp32") == [int(token)]
    assert fields.keys() & {"top_k", "min_p"} or PYTHON["draw"](LOGITS, **(DRAW | fields)) == int(token)


def test_the_python_of_the_page_draws_the_tokens_of_native():
    rng = random.Random(7)
    logits = [[rng.gauss(0, 2) for _ in range(1500)] for _ in range(100)]
    rows = [
        {"seed": rng.getrandbits(64) - 2**63, "position": rng.getrandbits(40), "temperature": t, "top_p": p}
        for t in (0.0, 0.3, 0.8, 1.0, 2.0)
        for p in (1.0, 0.99, 0.9, 0.5)
    ] * 5
    by_hand = [PYTHON["draw"](x, **row) for x, row in zip(logits, rows, strict=True)]
    assert drawn(logits, rows) == by_hand


def test_the_contract_lists_the_counter_and_every_stream():
    contract = pages.text_of("docs/contract.md")
    assert "| counter | (index, position low 32 bits, position high 32 bits, stream) |" in contract
    listed = re.findall(r"^\| (\d) \| `(\w+)` \|", contract, re.MULTILINE)
    assert [(str(getattr(philox, name)), name) for _, name in listed] == listed
    assert len(listed) == 8
