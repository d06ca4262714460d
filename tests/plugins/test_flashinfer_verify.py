"""Verification by the FlashInfer plugin on a CPU, against stand-ins with the signatures of two versions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import flashinfer_stand_in as stand_in
import tokendraw_flashinfer
from calling import loaded
from fake_candidates import H100
from fake_dists import fake_dists
from goodness_of_fit import FALSE_ALARM, INF, NAN, binomial_interval, chi_square
from tokendraw import Drafts, Need, PluginError, SamplingMetadata, SamplingParams, operations
from tokendraw.backends import proof
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.operations.row_methods import Verify
from tokendraw.probabilities import Filters
from tokendraw.providers.resolve import gather
from tokendraw.resolution import Choice
from tokendraw_flashinfer.verifier import FlashInferVerifier
from tokendraw_testing import Effort, Status, Subject, check, properties, reference
from tokendraw_testing.reference_walk import distribution
from verifying import chains, gaussian, row_metadata, softmax, verify

CPU = torch.device("cpu")
SAMPLE = operations.find_operation("sample")
VERIFY = operations.find_operation("verify")
OLD, NEW = stand_in.SOURCES
RNG = np.random.default_rng(1)
EIGHT, NEAR_EIGHT = RNG.normal(size=8) * 1.5, RNG.normal(size=8)
ALL = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05)
FILTERS = {
    "none": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.2),
    "top_k and top_p": SamplingParams(top_k=5, top_p=0.8),
    "joint": SamplingParams(top_k=5, top_p=0.8, filter_order="joint"),
    "all": ALL,
    "all, joint": replace(ALL, filter_order="joint"),
}


@pytest.fixture(scope="module", params=[OLD, NEW])
def version(request, tmp_path_factory):
    """An installed FlashInfer."""
    with pytest.MonkeyPatch.context() as patch, fake_dists(tmp_path_factory.mktemp("dists"), patch) as dists:
        dists.add("flashinfer-python", request.param, modules=stand_in.SOURCES[request.param])
        yield request.param


@pytest.fixture(scope="module")
def verifier(version):
    return FlashInferVerifier(CPU, Need())


@pytest.fixture(autouse=True)
def no_calls_yet():
    stand_in.CALLS.clear()


def called():
    return [name for name, _ in stand_in.CALLS]


STATISTICAL = ("verify distribution",)
"""Lines that need more draws than the smallest effort has."""


@pytest.mark.fast_first
@pytest.mark.parametrize("prop", properties("verify"), ids=lambda prop: prop.name)
def test_the_conformance_kit(version, prop):
    subject = Subject(
        "flashinfer",
        capabilities={"verify": replace(advertised()["verify"], device_types=("cpu",))},
        device=CPU,
        build=lambda operation, need: FlashInferVerifier(CPU, need),
        effort=None if prop.name in STATISTICAL else Effort.tiny(),
        quick=True,
    )
    line = check(subject, prop)
    if line is not None:
        assert line.status is not Status.FAILED, f"{line}\n{line.traceback}"


@pytest.mark.fast_first
@pytest.mark.parametrize("name", FILTERS)
def test_with_given_probabilities_only_the_target_is_filtered(verifier, name):
    """The first two tokens together, of unfiltered drafts from another sampler."""
    params, trials = FILTERS[name], 100_000
    q = softmax(NEAR_EIGHT)
    ids = np.random.default_rng(2).choice(8, size=(trials, 1), p=q)
    target = torch.from_numpy(EIGHT).float().expand(2 * trials, 8)
    drafts = Drafts.from_counts(
        torch.from_numpy(ids),
        [1] * trials,
        draft_probs=torch.from_numpy(q).expand(trials, 8),
        any_placeholder=False,
    )
    torch.manual_seed(3)
    output = verifier.verify(target, drafts, row_metadata(drafts, params))
    p = distribution(reference.prepare(EIGHT.astype(np.float32), params))
    tokens = output.token_ids.numpy()
    assert chi_square(tokens[:, 0], p) > FALSE_ALARM
    both = tokens[output.num_accepted.numpy() == 1]
    low, high = binomial_interval(trials, float(np.minimum(p, q).sum()))
    assert low <= len(both) <= high
    joint = np.minimum(p, q)[:, None] * p
    assert chi_square(both[:, 0] * 8 + both[:, 1], joint.ravel() / joint.sum()) > FALSE_ALARM


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [40, 3000])
@pytest.mark.fast_first
def test_the_target_distribution_keeps_the_tokens_of_native(verifier, name, size):
    """Rows with ties at every border, in a batch with unfiltered rows."""
    values = np.random.default_rng(4).normal(size=(6, size)).astype(np.float32).round(1)
    params = [FILTERS[name], SamplingParams()] * 3
    metadata = SamplingMetadata.from_params(params)
    found, valid = verifier._kept(torch.from_numpy(values), Filters.of(metadata, size))
    for row, one in enumerate(params):
        expected = distribution(reference.prepare(values[row], one))
        assert ((found[row] > 0).numpy() == (expected > 0)).all()
        assert found[row].numpy() == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert valid.all()


def test_a_batch_may_mix_both_orders(verifier):
    known = np.log([0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]).astype(np.float32)
    first = SamplingParams(top_k=4, top_p=0.82)
    params = [first, replace(first, filter_order="joint")] * 1000
    q = np.full((2000, 9), 1 / 9)
    output = verify(
        verifier, np.tile(known, (4000, 1)), [[i % 9] for i in range(2000)], params, draft_probs=q
    )
    assert set(output.token_ids[::2, 0].tolist()) == {0, 1, 2}
    assert set(output.token_ids[1::2, 0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), []),
        (SamplingParams(min_p=0.1), []),
        (SamplingParams(top_k=4), ["top_k_renorm_probs"]),
        (SamplingParams(top_p=0.5), ["top_p_renorm_probs"]),
        (ALL, ["top_k_renorm_probs", "top_p_renorm_probs"]),
    ],
)
def test_entry_points_by_filter(verifier, params, expected):
    target, rows = gaussian(6), gaussian(4)
    verify(verifier, target, [[1, 2], [3, 4]], params, draft_probs=softmax(rows))
    assert called() == ["softmax", *expected, "chain_speculative_sampling", "sampling_from_probs"]
    stand_in.CALLS.clear()
    verify(verifier, target, [[1, 2], [3, 4]], params, draft_logits=rows)
    assert called() == ["softmax", *expected] * 2 + ["chain_speculative_sampling", "sampling_from_probs"]


def test_every_launch_has_fresh_noise_from_the_generator_of_torch(verifier):
    """Seeds are tensors: a CUDA graph reads tensors anew, and would keep numbers."""

    def seeds():
        stand_in.CALLS.clear()
        q = torch.full((2, 50), 0.02)
        for _ in range(2):
            verifier.sample(torch.zeros(2, 50), SamplingMetadata(), draft=True)
            verify(verifier, torch.zeros(4, 50), [[1], [2]], SamplingParams(), draft_probs=q)
        inputs = [arguments["seed"] for _, arguments in stand_in.CALLS if "seed" in arguments]
        assert all(isinstance(seed, torch.Tensor) for seed in inputs)
        return [int(seed) for seed in inputs]

    torch.manual_seed(1)
    first = seeds()
    torch.manual_seed(1)
    assert seeds() == first
    assert len(set(first)) == len(first) == 6


@pytest.mark.parametrize("kind", ["draft_probs", "draft_logits"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_dtypes_and_padding(verifier, kind, padded, dtype):
    """Target and drafts may have any stride; the call modifies no input."""
    target = torch.from_numpy(gaussian(12, 50)).to(dtype)
    inputs = torch.from_numpy(gaussian(9, 50, seed=2)).to(dtype)
    if kind == "draft_probs":
        inputs = inputs.softmax(-1)
    storage = torch.nn.functional.pad(inputs, (0, 7))
    ids = torch.arange(9).view(3, 3) if padded else torch.arange(9)
    drafts = Drafts.from_counts(ids, [3] * 3, **{kind: storage[:, :50]})
    before = [tensor.clone() for tensor in (target, storage, ids)]
    output = verifier.verify(target, drafts, row_metadata(drafts, SamplingParams()))
    assert (output.token_ids.shape, output.token_ids.dtype) == ((3, 4), torch.int64)
    assert (output.num_accepted.shape, output.num_accepted.dtype) == ((3,), torch.int32)
    assert output.valid.tolist() == [True] * 3
    assert output.logprobs is None
    for request, tokens in enumerate(chains(output)):  # it looks at the padding
        assert tokens[:-1] == list(range(3 * request, 3 * request + len(tokens) - 1))
        assert 0 <= tokens[-1] < 50
    for tensor, copy in zip((target, storage, ids), before, strict=True):
        assert torch.equal(tensor, copy)


def test_unaligned_probabilities_are_copied(verifier):
    storage = torch.full((1 + 4 * 8,), 1 / 8)
    inputs = storage[1:].view(4, 8)
    verify(verifier, gaussian(6, 8), [[1, 2], [3, 4]], SamplingParams(), draft_probs=inputs)
    (arguments,) = [found for name, found in stand_in.CALLS if name == "chain_speculative_sampling"]
    assert arguments["draft_probs"].data_ptr() % 16 == 0


@pytest.mark.parametrize("requests", [0, 3])
def test_without_drafts_requests_are_sampled(verifier, requests):
    drafts = Drafts.from_counts(
        torch.empty(0, dtype=torch.int64), [0] * requests, draft_probs=torch.empty(0, 7)
    )
    target = torch.full((requests, 7), -INF)
    target[:, 4] = 0.0
    output = verifier.verify(target, drafts, row_metadata(drafts, ALL))
    assert output.token_ids.tolist() == [[4]] * requests
    assert (output.num_accepted.tolist(), output.num_accepted.dtype) == ([0] * requests, torch.int32)
    assert output.valid.tolist() == [True] * requests
    empty = Drafts.from_counts(torch.empty(0, 3, dtype=torch.int64), [], draft_probs=torch.empty(0, 7))
    assert verifier.verify(target[:0], empty, SamplingMetadata()).token_ids.shape == (0, 4)


def test_rows_behind_the_last_request_are_ignored(verifier):
    drafts = Drafts.from_lists([[1], [2]], draft_probs=torch.full((2, 50), 0.02))
    target = torch.cat([torch.from_numpy(gaussian(4, 50)), torch.full((3, 50), NAN)])
    output = verifier.verify(target, drafts, SamplingMetadata(temperature=torch.ones(7)))
    assert output.token_ids.shape == (2, 2)
    assert output.valid.tolist() == [True, True]


@pytest.mark.parametrize("max_elements", [8 * 3 * 2, 1])
def test_more_than_kernels_can_count_is_verified_in_parts(version, max_elements):
    """Each part has fresh noise, and each request its parameters."""
    verifier = FlashInferVerifier(CPU, Need(), max_elements=max_elements)
    stand_in.CALLS.clear()
    target = gaussian(15, 8)
    params = [SamplingParams(top_k=1 if request % 2 else 8) for request in range(5)]
    best = target.argmax(-1).reshape(5, 3)
    q = np.zeros((10, 8))
    q[np.arange(10), best[:, :2].ravel()] = 1.0
    output = verify(verifier, target, best[:, :2].tolist(), params, draft_probs=q)
    launches = [found for name, found in stand_in.CALLS if name == "chain_speculative_sampling"]
    assert [len(found["draft_probs"]) for found in launches] == ([2, 2, 1] if max_elements > 1 else [1] * 5)
    assert len({int(found["seed"]) for found in launches}) == len(launches)
    assert output.token_ids[1::2].tolist() == best[1::2].tolist()


def test_a_grid_takes_at_most_its_limit_of_rows(verifier):
    """65535 rows of the target, 3 a request."""
    requests = 21_900
    drafts = Drafts.from_counts(
        torch.zeros(2 * requests, dtype=torch.int64),
        [2] * requests,
        draft_probs=torch.full((1, 4), 0.25).expand(2 * requests, 4),
    )
    verifier.verify(
        torch.zeros(3 * requests, 4), drafts, SamplingMetadata(top_p=torch.full((3 * requests,), 0.9))
    )
    sizes = [len(found["probs"]) for name, found in stand_in.CALLS if name == "top_p_renorm_probs"]
    assert sizes == [65535, 3 * requests - 65535]


# What a kernel that walks chains does not do by itself.


@pytest.mark.parametrize("kind", ["draft_probs", "draft_logits"])
@pytest.mark.parametrize("params", [SamplingParams(), ALL])
def test_equal_distributions_are_accepted_even_if_u_is_1(verifier, kind, params, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: torch.zeros(*shape, dtype=how.get("dtype")))
    target = gaussian(3000, 16)
    q = target if kind == "draft_logits" else None
    metadata = row_metadata(Drafts.from_lists([[]] * 3000), params)
    found, _ = verifier._kept(torch.from_numpy(target), Filters.of(metadata, 16))
    q = target if kind == "draft_logits" else found
    ids = found.argmax(-1)
    rows = np.repeat(target, 2, axis=0)
    output = verify(verifier, rows, ids.unsqueeze(1).tolist(), params, **{kind: q})
    assert output.num_accepted.tolist() == [1] * 3000


P = np.array([0.4, 0.3, 0.2, 0.1])
RESIDUALS = {
    **{
        f"an impossible draft, q = {bad}": ([bad, 0.05, 0.5, 0.45], 0.0, [0.4, 0.25, 0.0, 0.0], bad == 0.0)
        for bad in (0.0, -0.5, NAN, INF, -INF)
    },
    "invalid probabilities, which count as 0": ([0.8, NAN, -2.0, INF], 0.5, [0.0, 0.5, 1 / 3, 1 / 6], False),
    "q above p everywhere, as after a sum in float16": (2 * P, 0.5, P, True),
}
"""Probabilities of the drafts, the share of accepted ones, where the next token comes from, and the flag."""


@pytest.mark.parametrize(("q", "share", "residual", "is_valid"), RESIDUALS.values(), ids=RESIDUALS)
@pytest.mark.fast_first
def test_a_rejected_draft_is_replaced_from_the_residual(verifier, q, share, residual, is_valid):
    """The rejected token may be drawn again; an empty residual gives way to the target."""
    requests = 40_000
    target = np.tile(np.log(P).astype(np.float32), (2 * requests, 1))
    drafts = torch.tensor(np.asarray(q)).expand(requests, 4)
    output = verify(verifier, target, [[0]] * requests, SamplingParams(), draft_probs=drafts)
    rejected = output.num_accepted.numpy() == 0
    low, high = binomial_interval(requests, 1 - share)
    assert low <= rejected.sum() <= high
    drawn = output.token_ids.numpy()[rejected, 0]
    assert chi_square(drawn, np.array(residual) / np.sum(residual)) > FALSE_ALARM
    assert output.valid.tolist() == [is_valid] * requests


@pytest.mark.parametrize("outside", [-1, 50, 2**31 - 1, -(2**63)])
def test_an_id_outside_the_vocabulary_is_rejected_and_reads_nothing(verifier, outside):
    """The plugin does not advertise such batches, but a caller may have promised that there are none."""
    target = gaussian(6, 50)
    rows = np.full((4, 50), NAN)
    output = verify(verifier, target, [[outside, 5]] * 2, SamplingParams(top_k=1), draft_probs=rows)
    assert output.num_accepted.tolist() == [0, 0]
    assert chains(output) == [[int(target[row].argmax())] for row in (0, 3)]
    assert output.valid.all()


@pytest.mark.parametrize("kind", ["draft_probs", "draft_logits"])
@pytest.mark.parametrize("nothing", [NAN, -INF])
def test_empty_rows_are_token_0_and_invalid(verifier, kind, nothing):
    target = np.full((6, 30), nothing, np.float32)
    output = verify(verifier, target, [[0], [1], [2]], SamplingParams(), **{kind: gaussian(3, 30) ** 2})
    assert [tokens[0] for tokens in chains(output)] == [0, 0, 0]
    assert output.valid.tolist() == [False] * 3


@pytest.mark.parametrize("kind", ["draft_probs", "draft_logits"])
@pytest.mark.parametrize("name", ["none", "all"])
def test_a_nan_row_invalidates_its_request_if_used_and_no_batch_neighbour(verifier, kind, name):
    """In requests 0 and 1 the first of two drafts is rejected, in request 2 both are accepted."""
    target, rows = gaussian(9, seed=9), gaussian(6, seed=10)
    target[[0, 3], 4], target[[6, 7], [4, 5]], target[8, 9] = -60.0, 60.0, 60.0
    rows[:, 4], rows[[1, 3, 5], 5] = 60.0, 70.0
    lists = [[4, 5]] * 3

    def call(target, rows):
        inputs = (
            rows if kind == "draft_logits" else np.where(np.isnan(rows), NAN, softmax(np.nan_to_num(rows)))
        )
        torch.manual_seed(8)
        return verify(verifier, target, lists, FILTERS[name], **{kind: inputs})

    clean = call(target, rows)
    assert clean.num_accepted.tolist() == [0, 0, 2]
    assert clean.valid.all()
    for row, invalid in {0: [0], 1: [], 3: [1], 6: [2], 7: [2], 8: [2]}.items():
        poisoned = target.copy()
        poisoned[row, ::7] = NAN
        found = call(poisoned, rows)
        assert [i for i, fine in enumerate(found.valid.tolist()) if not fine] == invalid
        others = [i for i in range(3) if i != row // 3]
        assert torch.equal(found.token_ids[others], clean.token_ids[others])
        assert bool(((found.token_ids >= -1) & (found.token_ids < 300)).all())
    for row, invalid in {0: [0], 1: [], 2: [1], 4: [2], 5: [2]}.items():
        poisoned = rows.copy()
        poisoned[row, ::7] = NAN
        found = call(target, poisoned)
        assert [i for i, fine in enumerate(found.valid.tolist()) if not fine] == invalid
        others = [i for i in range(3) if i != row // 2]
        assert torch.equal(found.token_ids[others], clean.token_ids[others])


# What is advertised.


def advertised():
    return tokendraw_flashinfer.plugin.tokendraw_describe().operations


def test_the_limits_are_advertised(version):
    found = advertised()["verify"]
    assert found.verify_modes == ("rejection",)
    assert found.draft_kinds == ("probs", "logits")
    assert (found.ragged_drafts, found.placeholder_drafts, found.greedy) == (False, False, False)
    assert (found.seeding, found.tie_rule, found.logprobs_modes) == ("launch", "value", ())
    assert found.filter_orders == ("top_k_first", "joint")
    assert [name for name, _ in found.filters] == ["top_k", "top_p", "min_p"]
    assert (found.graph_safe, found.sync_free, found.valid_flag) == (True, True, True)
    verifier = loaded("flashinfer", None, found, operation="verify")
    q = {"draft_probs": torch.full((2, 4), 0.25)}
    for lists, inputs, mode, reason in (
        ([[1], [2]], q, "rejection", None),
        ([[1], [2]], {"draft_logits": q["draft_probs"]}, "rejection", None),
        ([[1], [2]], q, "coupled", "the mode coupled"),
        ([[1], [2]], {}, "rejection", "drafts that were not drawn"),
        ([[1, 2], []], q, "rejection", "requests with different numbers of drafts"),
        ([[1], [-1]], q, "rejection", "placeholders among drafts"),
    ):
        drafts = Drafts.from_lists(lists, **inputs)
        call = Verify(
            torch.zeros(4, 4), drafts, SamplingMetadata.from_params([SamplingParams()] * 2), mode=mode
        )
        assert verifier.reason_against(call) == reason
    for params, reason in (
        (SamplingParams(temperature=0.0), "greedy rows"),
        (SamplingParams(seed=3), "seeded rows"),
        (SamplingParams(logprobs=1), "rows with logprobs"),
        (FILTERS["all, joint"], None),
    ):
        facts = SamplingMetadata.from_params([params], positions=[1]).facts
        assert verifier.reason_against(RowGroup(facts, 4)) == reason


@pytest.mark.parametrize(
    ("line", "filters"),
    [
        ("def top_k_renorm_probs(", ["top_p", "min_p"]),
        ("def top_p_renorm_probs(", ["top_k", "min_p"]),
        ("def chain_speculative_sampling(", None),
    ],
)
def test_a_missing_entry_point_is_not_advertised(tmp_path, monkeypatch, line, filters):
    modules = dict(stand_in.SOURCES[OLD])
    modules["flashinfer.sampling"] = modules["flashinfer.sampling"].replace(line, line.replace(" ", " _"))
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("flashinfer-python", OLD, modules=modules)
        found = advertised()
        if filters is not None:
            assert [name for name, _ in found["verify"].filters] == filters
            FlashInferVerifier(CPU, Need())
        else:
            assert "verify" not in found
            with pytest.raises(
                PluginError, match=r"needs flashinfer\.sampling\.chain_speculative_sampling, found"
            ):
                FlashInferVerifier(CPU, Need())
            reason = tokendraw_flashinfer.plugin.tokendraw_probe("verify", H100, Need())
            assert reason.startswith(
                "needs flashinfer.sampling.chain_speculative_sampling, found no such thing"
            )


@pytest.mark.parametrize(
    ("lists", "inputs", "mode"),
    [
        ([[1], [2]], {"draft_probs": torch.full((2, 300), 1 / 300)}, "coupled"),
        ([[1, 2], []], {"draft_probs": torch.full((2, 300), 1 / 300)}, "rejection"),
        ([[1], [2]], {}, "rejection"),
    ],
)
def test_batches_unsupported_by_the_host_facts_are_refused(verifier, lists, inputs, mode):
    with pytest.raises(PluginError, match="needs the mode rejection and as many drafts of each request"):
        verify(verifier, gaussian(4), lists, SamplingParams(), mode=mode, **inputs)


@pytest.mark.parametrize("tie_rule", [None, "either"])
def test_the_core_builds_and_proves_it(version, tmp_path, monkeypatch, tie_rule):
    """A draft keeps all ties whatever the need admits, as the verification keeps them."""
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("tokendraw-flashinfer", "0.1.0", plugins={"flashinfer": "tokendraw_flashinfer:plugin"})
        need = Need(tie_rule=tie_rule)
        found = gather(H100, Choice(sampler="flashinfer"))
        offered = found.offered("flashinfer", VERIFY)
        backend = proof.build(VERIFY, found.hooks["flashinfer"], offered, CPU, need)
        sampling = proof.build(
            SAMPLE, found.hooks["flashinfer"], found.offered("flashinfer", SAMPLE), CPU, need
        )
    assert isinstance(backend, FlashInferVerifier)
    assert not isinstance(sampling, FlashInferVerifier)
    drawn = backend.sample(
        torch.zeros(2000, 50), SamplingMetadata.from_params([SamplingParams(top_k=5)] * 2000), draft=True
    )
    assert len(drawn.token_ids.unique()) == 50


def test_building_calls_every_kernel_of_a_verification_once(version):
    FlashInferVerifier(CPU, Need())
    last = ["softmax", "top_k_renorm_probs", "top_p_renorm_probs", "chain_speculative_sampling"]
    assert called()[-5:] == [*last, "sampling_from_probs"]
