"""DESIGN section 3: a seeded token depends on seed, position and logits alone."""

import numpy as np
import pytest
import torch

import tokendraw
from calling import call, tokens, uniform_tokens
from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES

V = 2500
NAN = float("nan")
SEEDED = [
    SamplingParams(seed=11),
    SamplingParams(seed=12, temperature=0.7),
    SamplingParams(seed=13, top_k=40),
    SamplingParams(seed=14, top_p=0.9),
    SamplingParams(seed=15, min_p=0.02),
    SamplingParams(seed=16, temperature=0.8, top_k=50, top_p=0.9, min_p=0.01),
    SamplingParams(seed=17, top_k=50, top_p=0.9, filter_order="joint"),
]
MATES = {
    "greedy": SamplingParams(temperature=0.0),
    "unseeded": SamplingParams(),
    "top_k": SamplingParams(top_k=7, seed=1),
    "large top_k": SamplingParams(top_k=V - 1, seed=1),
    "top_p": SamplingParams(top_p=0.5, seed=1),
    "min_p": SamplingParams(min_p=0.2, seed=1),
    "joint": SamplingParams(top_k=9, top_p=0.5, filter_order="joint", seed=1),
    "logprobs": SamplingParams(logprobs=5, seed=1),
    "all logprobs": SamplingParams(logprobs=-1, seed=1),
    "hot": SamplingParams(temperature=50.0, seed=1),
}


def eighths(rows, seed=0, size=V):
    """Make values exact in float32, bfloat16 and float16: multiples of 1/8 below 16."""
    rng = np.random.default_rng(seed)
    values = np.stack([FAMILIES["gaussian"](rng, size) for _ in range(rows)])
    return torch.from_numpy((values * 8).round().clip(-127, 127) / 8)


@pytest.fixture(scope="module")
def alone(sampler):
    """The seven seeded rows, and the token of each as a batch of a single row at position 100 + i."""
    logits = eighths(len(SEEDED))
    return logits, [
        tokens(call(sampler, logits[i : i + 1], SEEDED[i], [100 + i]))[0] for i in range(len(SEEDED))
    ]


def test_the_rows_used_here_are_no_near_ties(alone):
    """Else a test of invariance could fail, or pass, by rounding alone."""
    logits, drawn = alone
    for i, params in enumerate(SEEDED):
        row = reference.prepare(logits[i], params)
        token, lead = reference.draw(row, params.seed, 100 + i)
        assert row.certain
        assert lead > 1e-3
        assert token == drawn[i]


@pytest.mark.fast_first
@pytest.mark.parametrize("size", [1, 7, 64, 65])
def test_a_seeded_row_draws_its_token_at_any_index_of_any_batch(sampler, alone, size):
    logits, drawn = alone
    others = eighths(size, seed=1)
    for kind in range(len(SEEDED)) if size < 7 else [0]:
        for shift in range(size):
            picks = [(kind + i) % len(SEEDED) if size < 7 or i < 7 else None for i in range(size)]
            at = [(i + shift) % size for i in range(size)]
            batch, params, positions = others.clone(), [MATES["top_k"]] * size, [5] * size
            for i, pick in zip(at, picks, strict=True):
                if pick is not None:
                    batch[i], params[i], positions[i] = logits[pick], SEEDED[pick], 100 + pick
            found = tokens(call(sampler, batch, params, positions))
            assert [found[i] for i in at][:7] == [drawn[pick] for pick in picks if pick is not None]


@pytest.mark.parametrize("mate", [*MATES, "NaN", "+inf", "-inf"])
@pytest.mark.parametrize("size", [8, 65])
@pytest.mark.fast_first
def test_a_seeded_row_draws_its_token_beside_any_mate(sampler, alone, mate, size):
    logits, drawn = alone
    batch = eighths(size, seed=2)
    special = {"NaN": NAN, "+inf": float("inf"), "-inf": -float("inf")}
    if mate in special:
        batch[:, ::5] = special[mate]
    params, positions = [MATES.get(mate, MATES["unseeded"])] * size, [5] * size
    for i, one in enumerate(SEEDED):
        batch[i], params[i], positions[i] = logits[i], one, 100 + i
    assert tokens(call(sampler, batch, params, positions))[:7] == drawn
    batch, params, positions = batch.flip(0), params[::-1], positions[::-1]
    assert tokens(call(sampler, batch, params, positions))[::-1][:7] == drawn


@pytest.mark.parametrize("kind", range(len(SEEDED)))
def test_a_seeded_row_draws_its_token_in_a_batch_of_its_own_kind(sampler, alone, kind):
    """A batch of a single kind may take a special path."""
    logits, drawn = alone
    for size in (2, 64):
        batch = eighths(size, seed=3)
        batch[-1] = logits[kind]
        positions = [5] * (size - 1) + [100 + kind]
        assert tokens(call(sampler, batch, SEEDED[kind], positions))[-1] == drawn[kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stride", ["contiguous", "padded rows", "every second row", "transposed"])
def test_a_seeded_row_draws_its_token_from_any_storage_of_its_values(sampler, device, alone, dtype, stride):
    logits, drawn = alone
    rows = logits.to(device, dtype)
    assert torch.equal(rows.float().cpu(), logits)
    if stride == "padded rows":
        rows = torch.nn.functional.pad(rows, (3, 61), value=NAN)[:, 3 : V + 3]
    elif stride == "every second row":
        rows = torch.stack([rows, torch.full_like(rows, NAN)], 1).flatten(0, 1)[::2]
    elif stride == "transposed":
        rows = rows.T.contiguous().T
    assert tokens(call(sampler, rows, SEEDED, range(100, 107))) == drawn


def test_tokens_do_not_depend_on_what_was_drawn_before_or_on_torchs_generator(sampler, alone):
    logits, drawn = alone
    for _ in range(3):
        torch.manual_seed(int(torch.randint(1 << 30, ())))
        assert tokens(call(sampler, logits, SEEDED, range(100, 107))) == drawn


def test_seeds_are_taken_modulo_2_to_the_64(sampler):
    """The edges of the range are all seeds of their own, but for s and s + 2**64."""
    seeds = [-(2**63), -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    found = uniform_tokens(sampler, seeds, [9] * len(seeds))
    flat = reference.prepare(np.zeros(1000), SamplingParams())
    assert found == [reference.draw(flat, seed, 9)[0] for seed in seeds]
    assert found[0] == found[7]
    assert found[1] == found[8]
    assert len(set(found)) == len(seeds) - 2


def test_both_halves_of_a_position_count(sampler):
    positions = [0, 1, 2**31, 2**32, 2**32 + 1, 2**40, 2**62, 2**63 - 1]
    found = uniform_tokens(sampler, [3] * len(positions), positions)
    flat = reference.prepare(np.zeros(1000), SamplingParams())
    assert found == [reference.draw(flat, 3, position)[0] for position in positions]
    assert len(set(found)) == len(positions)


@pytest.mark.parametrize("bad", [2.5, "7", -1, 2**63, None])
def test_a_position_that_is_no_index_is_a_value_error(bad):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingMetadata.from_params([SamplingParams(seed=1)] * 3, positions=[0, bad, 2])
    assert str(caught.value) == f"'positions' of row 1 needs an integer >= 0, found {bad!r}."


def test_seeds_without_positions_are_a_value_error():
    params = [SamplingParams(), SamplingParams(seed=0)]
    message = (
        "'seed' of row 1 needs 'positions', found none: without them every step would draw with the same noise. "
        "Pass positions, one integer a row: the sequence length minus one."
    )
    with pytest.raises(InvalidParameterError) as caught:
        SamplingMetadata.from_params(params)
    assert str(caught.value) == message
    with pytest.raises(InvalidParameterError):
        SamplingMetadata(seed=torch.tensor([1, 2]))


def test_positions_as_a_list_and_as_a_tensor_of_any_integer_type_are_the_same(sampler, device):
    expected = uniform_tokens(sampler, [1, 2, 3], [10, 20, 30])
    for dtype in (torch.int64, torch.int32):
        for where in ("cpu", device):
            positions = torch.tensor([10, 20, 30], dtype=dtype, device=where)
            assert uniform_tokens(sampler, [1, 2, 3], positions) == expected


def test_ready_tensors_draw_like_the_params_they_stand_for(sampler, device, alone):
    logits, drawn = alone
    ready = SamplingMetadata(
        temperature=torch.tensor([p.temperature for p in SEEDED], device=device, dtype=torch.float64),
        top_k=torch.tensor([p.top_k for p in SEEDED], device=device),
        top_p=torch.tensor([p.top_p for p in SEEDED], device=device, dtype=torch.float64),
        min_p=torch.tensor([p.min_p for p in SEEDED], device=device, dtype=torch.float64),
        seed=torch.tensor([p.seed for p in SEEDED], device=device),
        positions=torch.arange(100, 107, device=device),
        joint=torch.tensor([p.filter_order == "joint" for p in SEEDED], device=device),
    )
    assert tokens(sampler.sample(logits.to(device), ready)) == drawn
    halves = SamplingMetadata(
        **{name: getattr(ready, name).float() for name in ("temperature", "top_p", "min_p")},
        top_k=ready.top_k.int(),
        seed=ready.seed,
        seeded=torch.ones(7, dtype=torch.bool, device=device),
        positions=ready.positions.int(),
        joint=ready.joint,
    )
    assert tokens(sampler.sample(logits.to(device), halves)) == drawn


ORDERS = [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 3, 3, 0, 6, 6, 1, 2, 2, 5, 4, 4], [5]]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_row_index_gives_each_row_the_parameters_of_its_slot(sampler, device, order, as_tensor):
    """Several rows a request, in any order, each with a separate position."""
    logits, positions = eighths(len(order), seed=4), [1000 + i for i in range(len(order))]
    spread = [SEEDED[slot] for slot in order]
    expected = tokens(call(sampler, logits, spread, positions))
    row_index = torch.tensor(order, dtype=torch.int32, device=device) if as_tensor else order
    assert tokens(call(sampler, logits, SEEDED, positions, row_index)) == expected


def test_row_index_spreads_logprobs_and_greedy_rows_too(load_native):
    sampler = load_native("processed_logprobs")
    slots = [
        SamplingParams(temperature=0.0, logprobs=1),
        SamplingParams(seed=5, top_k=3, logprobs=3),
        SamplingParams(seed=6),
    ]
    order = [1, 0, 2, 1, 0]
    logits, positions = eighths(5, seed=5), [7, 8, 9, 10, 11]
    expected = call(sampler, logits, [slots[i] for i in order], positions)
    found = call(sampler, logits, slots, positions, order)
    assert tokens(found) == tokens(expected)
    assert torch.equal(found.logprobs.token_ids, expected.logprobs.token_ids)
    torch.testing.assert_close(found.logprobs.logprobs, expected.logprobs.logprobs, rtol=0, atol=2e-6)
    assert torch.equal(found.logprobs.ranks, expected.logprobs.ranks)


@pytest.mark.parametrize("bad", [-1, 3, 1.0])
def test_a_row_index_outside_the_slots_is_a_value_error(bad):
    with pytest.raises(InvalidParameterError) as caught:
        SamplingMetadata.from_params([SamplingParams()] * 3, row_index=[0, bad])
    assert str(caught.value) == f"'row_index' of row 1 needs an integer in [0, 2], found {bad!r}."


class TestRanksThatAllHoldTheLogits:
    """Ranks of an engine with gathered logits, each with a separate generator, run in turn."""

    @staticmethod
    def rank(sampler, params, seed, *, use=lambda device: None):
        """Return three calls' tokens on a rank after ``torch.manual_seed(seed)`` and another use of the generator."""
        torch.manual_seed(seed)
        drawn = []
        for position in range(3):
            drawn += tokens(call(sampler, torch.zeros(len(params), V), params, [position] * len(params)))
            use(sampler.device)
        return drawn

    MIXED = (
        SamplingParams(),
        SamplingParams(seed=5),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=9),
    )

    def test_unseeded_rows_agree_where_the_generators_are_in_one_state(self, sampler):
        assert self.rank(sampler, self.MIXED, 3) == self.rank(sampler, self.MIXED, 3)

    def test_unseeded_rows_differ_after_another_use_of_the_generator_on_one_rank(self, sampler):
        one = self.rank(sampler, self.MIXED, 3)
        other = self.rank(sampler, self.MIXED, 3, use=lambda device: torch.rand(1, device=device))
        rows = len(self.MIXED)
        assert one[:rows] == other[:rows]
        assert one[rows::rows] != other[rows::rows]

    def test_seeded_rows_agree_whatever_the_generators(self, sampler):
        params = [SamplingParams(seed=seed) for seed in (5, 6)]
        other = self.rank(sampler, params, 4, use=lambda device: torch.rand(1, device=device))
        assert self.rank(sampler, params, 3) == other

    def test_loading_and_warming_up_on_one_rank_changes_nothing(self, sampler, warmup_on_a_cpu):
        def load_and_warm_up(device):
            again = tokendraw.load_sampler("native", device=device)
            again.warmup(V, dtypes=[torch.float32], batch_sizes=[2])

        other = self.rank(sampler, self.MIXED, 3, use=load_and_warm_up)
        assert self.rank(sampler, self.MIXED, 3) == other
