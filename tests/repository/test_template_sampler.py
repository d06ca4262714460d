"""The sampler that ``tokendraw new`` writes: held against the float64 reference, and against native bit by bit."""

import numpy as np
import pytest
import torch

import tokendraw
from calling import assert_same_rows, call, shown_values
from command_line import call as command
from goodness_of_fit import DTYPES, KINDS, MODES, POISON, drawn_with, gaussians
from pages import importable, install
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw._torch.threads import one_thread
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES

ROWS = 48
SIZES = [1, 2, 31, 1024, 1025, 5000]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """``load(name, mode, dtype)``: the template's sampler under the name acme, or native; both on the CPU."""
    folder = tmp_path_factory.mktemp("vendor")
    assert command("new", "acme", folder / "acme-tokendraw").exit_code == 0
    install(folder / "acme-tokendraw", folder / "site")
    samplers = {}

    def load(name, mode="raw_logprobs", dtype="fp32"):
        key = (name, mode, dtype)
        if key not in samplers:
            need = tokendraw.Need(gumbel_dtype=dtype)
            samplers[key] = tokendraw.load_sampler(name, device="cpu", logprobs_mode=mode, need=need)
        return samplers[key]

    with importable(folder / "site"), one_thread():
        yield load


def random_params(rng, size, **rest):
    """Every filter is off in a part of the rows, so that all combinations occur."""

    def pick(*values):
        return values[rng.integers(len(values))]

    return SamplingParams(
        temperature=pick(0.0, 0.3, 1.0, 2.0),
        top_k=pick(0, 0, 1, 2, 50, max(1, size // 2), size - 1, size),
        top_p=pick(1.0, 1.0, 0.1, 0.5, 0.9, 0.999),
        min_p=pick(0.0, 0.0, 0.01, 0.2, 1.0),
        filter_order=pick("top_k_first", "joint"),
        **rest,
    )


def batch_of(family, size, **rest):
    rng = np.random.default_rng(sum(map(ord, family)) * 10_000 + size)
    logits = np.stack([FAMILIES[family](rng, size) for _ in range(ROWS)])
    return logits, [random_params(rng, size, seed=int(rng.integers(2**63)), **rest) for _ in range(ROWS)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.fast_first
def test_kept_sets_draws_and_logprobs_equal_the_reference(load, family, size):
    logits, params = batch_of(family, size, logprobs=-1)
    out = call(load("acme", "processed_logprobs"), logits, params)
    found = shown_values(out)
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    assert len(judged) >= 0.7 * ROWS
    for i in judged:
        np.testing.assert_array_equal(np.isfinite(found[i]), rows[i].kept)
        token, lead = reference.draw(rows[i], params[i].seed, i)
        assert out.token_ids[i] == token or lead < reference.NEAR_TIE
        wanted = reference.values(rows[i], int(out.token_ids[i]), "processed_logprobs")
        np.testing.assert_allclose(found[i], wanted, rtol=2e-6, atol=2e-6)
        assert float(out.log_kept_mass[i]) == pytest.approx(reference.log_kept_mass(rows[i]), abs=2e-6)
        assert out.logprobs.ranks[i] == np.sum(rows[i].x >= rows[i].x[int(out.token_ids[i])])


@pytest.mark.fast_first
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_seeded_draws_are_native_s_token_for_token(load, family, dtype):
    for size in (*SIZES, 50_257):
        logits, params = batch_of(family, size)
        drawn = [call(load(name, dtype=dtype), logits, params).token_ids for name in ("acme", "native")]
        assert drawn[0].tolist() == drawn[1].tolist(), size


@pytest.mark.parametrize("logits_dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_draw_as_their_float32_values_do(load, logits_dtype):
    logits, params = batch_of("gaussian", 3000, logprobs=3)
    half = torch.from_numpy(logits).to(logits_dtype)
    assert_same_rows(call(load("acme"), half, params), call(load("acme"), half.float(), params))
    assert_same_rows(call(load("acme"), half, params), call(load("native"), half, params))


def same_logprobs(left, right):
    """Whether two outputs name the same tokens in the same order, with values that differ by rounding at most."""
    assert left.token_ids.tolist() == right.token_ids.tolist()
    assert left.valid.tolist() == right.valid.tolist()
    assert left.logprobs.token_ids.tolist() == right.logprobs.token_ids.tolist()
    assert left.logprobs.ranks.tolist() == right.logprobs.ranks.tolist()
    torch.testing.assert_close(left.logprobs.logprobs, right.logprobs.logprobs)
    torch.testing.assert_close(left.log_kept_mass, right.log_kept_mass)
    assert left.logprobs.logprobs.dtype == left.log_kept_mass.dtype == torch.float32


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["gaussian", "tied", "flat"])
@pytest.mark.fast_first
def test_logprobs_of_every_mode_are_native_s(load, mode, family):
    for size in (1, 31, 1025):
        logits, params = batch_of(family, size)
        for wanted in ([3, None, 0, 7], [2, 40, -1, 1]):
            asked = [
                tokendraw.SamplingParams(
                    **{f: getattr(p, f) for f in p.__slots__} | {"logprobs": wanted[i % 4]}
                )
                for i, p in enumerate(params)
            ]
            same_logprobs(call(load("acme", mode), logits, asked), call(load("native", mode), logits, asked))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unseeded"])
def test_rows_with_nan_and_infinities_answer_as_native_does(load, mode, kind):
    logits = torch.stack(list(POISON.values()))
    same_logprobs(
        call(load("acme", mode), logits, KINDS[kind]), call(load("native", mode), logits, KINDS[kind])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_empty_tensors(load, kind):
    metadata = SamplingMetadata.from_params([], positions=[])
    out = load("acme").sample(torch.empty(0, 2000), metadata)
    assert (list(out.token_ids.shape), out.token_ids.dtype) == ([0], torch.int64)
    assert (list(out.valid.shape), out.valid.dtype) == ([0], torch.bool)


def test_an_empty_batch_with_logprobs_gives_empty_tensors(load):
    facts = BatchFacts(max_logprobs=3)
    out = load("acme").sample(torch.empty(0, 2000), SamplingMetadata(top_p=torch.empty(0), facts=facts))
    assert list(out.logprobs.token_ids.shape) == list(out.logprobs.logprobs.shape) == [0, 4]
    assert list(out.logprobs.ranks.shape) == list(out.log_kept_mass.shape) == [0]


def test_rows_without_a_seed_draw_anew_and_torch_s_seed_repeats_them(load):
    logits, params = torch.zeros(64, 5000), SamplingParams()
    runs = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        runs.append([call(load("acme"), logits, params).token_ids.tolist() for _ in range(2)])
    assert runs[0] == runs[2]
    assert runs[0] != runs[1]
    assert runs[0][0] != runs[0][1]
    assert len(set(runs[0][0])) > 55


def test_a_seeded_batch_leaves_torch_s_generator_alone(load):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    call(load("acme"), torch.zeros(4, 50), SamplingParams(seed=1))
    assert torch.equal(before, torch.get_rng_state())


def test_values_in_ready_tensors_are_clamped_to_the_table(load):
    nan, inf = float("nan"), float("inf")
    logits = gaussians(8, seed=5)
    metadata = SamplingMetadata(
        temperature=torch.tensor([-1.0, nan, inf, 1e-45, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        top_k=torch.tensor([3, 3, 3, 3, -7, 10**9, 5, 0], dtype=torch.int32),
        top_p=torch.tensor([1.0, 1.0, 1.0, 1.0, nan, 7.0, -1.0, 0.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, nan, -3.0, 0.0, 2.0]),
        seed=torch.arange(8),
        positions=torch.arange(8),
        facts=BatchFacts(max_logprobs=9),
    )
    same_logprobs(*(load(name, "processed_logprobs").sample(logits, metadata) for name in ("acme", "native")))


def test_parameters_may_live_in_slots(load):
    params = [
        SamplingParams(seed=1, top_k=9),
        SamplingParams(temperature=0.0),
        SamplingParams(seed=3, top_p=0.5),
    ]
    logits, slots = gaussians(6, seed=6), [2, 0, 0, 1, 2, 0]
    drawn = [
        call(load(name), logits, params, positions=list(range(6)), row_index=slots).token_ids.tolist()
        for name in ("acme", "native")
    ]
    assert drawn[0] == drawn[1]


def test_a_row_answers_alone_as_it_does_in_a_batch_and_at_any_stride(load):
    logits, params = batch_of("gaussian", 3000, logprobs=5)
    logits = torch.from_numpy(logits)
    whole = call(load("acme"), logits, params)
    wide = torch.full((ROWS, 2, 3005), float("nan"))
    wide[:, 1, :3000] = logits
    assert_same_rows(whole, call(load("acme"), wide[:, 1, :3000], params))
    for i in range(0, ROWS, 7):
        alone = call(load("acme"), logits[i : i + 1], params[i], positions=[i])
        assert alone.token_ids[0] == whole.token_ids[i]


def test_the_logits_are_left_as_they_were(load):
    logits = torch.stack(list(POISON.values()))
    bits = logits.clone().view(torch.int32)
    params = [SamplingParams(top_k=3, top_p=0.5, logprobs=2)] * len(logits)
    load("acme").sample(logits, SamplingMetadata.from_params(params))
    assert torch.equal(logits.view(torch.int32), bits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_noise_is_of_the_precision_that_was_asked_for(load, dtype):
    assert drawn_with(load("acme", dtype=dtype)) == dtype
    assert drawn_with(load("acme", dtype=dtype), top_k=2000) == dtype
