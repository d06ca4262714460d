"""The FlashInfer sampler on a CPU, against stand-ins with the signatures of two versions."""

from dataclasses import replace

import pytest
import torch

import flashinfer_stand_in as stand_in
import tokendraw_flashinfer
from fake_candidates import H100
from fake_dists import fake_dists
from goodness_of_fit import INF, NAN, POISON, V, gaussians
from tokendraw import (
    BatchFacts,
    Need,
    PluginError,
    SamplingMetadata,
    SamplingParams,
    operations,
)
from tokendraw.backends import proof
from tokendraw.providers.resolve import gather
from tokendraw.resolution import Choice
from tokendraw_flashinfer import kernel_sequences
from tokendraw_flashinfer.sampler import FlashInferSampler
from tokendraw_flashinfer.signatures import EntryPoints
from tokendraw_testing import Effort, Status, Subject, check, properties

CPU = torch.device("cpu")
SAMPLE = operations.find_operation("sample")
OLD, NEW = stand_in.SOURCES
EITHER = Need(tie_rule="either")
KNOWN = torch.tensor([0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]).log()
TWO_FILTERS = SamplingParams(top_k=4, top_p=0.82)
JOINT = replace(TWO_FILTERS, filter_order="joint")


@pytest.fixture(scope="module", params=[OLD, NEW])
def version(request, tmp_path_factory):
    """An installed FlashInfer."""
    with pytest.MonkeyPatch.context() as patch, fake_dists(tmp_path_factory.mktemp("dists"), patch) as dists:
        dists.add("flashinfer-python", request.param, modules=stand_in.SOURCES[request.param])
        yield request.param


@pytest.fixture(scope="module")
def sampler(version):
    return FlashInferSampler(CPU, Need())


@pytest.fixture(scope="module")
def either(version):
    return FlashInferSampler(CPU, EITHER)


@pytest.fixture(autouse=True)
def no_calls_yet():
    stand_in.CALLS.clear()


def metadata_of(params, rows):
    return SamplingMetadata.from_params([params] * rows if isinstance(params, SamplingParams) else params)


def tokens_of(sampler, row, params, rows=2000):
    torch.manual_seed(5)
    return sampler.sample(row.repeat(rows, 1), metadata_of(params, rows)).token_ids


def called():
    return [name for name, _ in stand_in.CALLS]


@pytest.fixture(scope="module")
def subject(version):
    capabilities = tokendraw_flashinfer.capabilities(EntryPoints.installed())
    return Subject(
        "flashinfer",
        capabilities={"sample": replace(capabilities, device_types=("cpu",))},
        device=CPU,
        build=lambda operation, need: FlashInferSampler(CPU, need),
        effort=Effort.tiny(),
    )


@pytest.mark.fast_first
@pytest.mark.parametrize("prop", properties("sample"), ids=lambda prop: prop.name)
def test_the_conformance_kit(subject, prop):
    if prop.name == "tails":
        pytest.skip("the tails are those of the stand-in")
    line = check(subject, prop)
    if line is not None:
        assert line.status is not Status.FAILED, f"{line}\n{line.traceback}"


KINDS = {
    "no filter": (SamplingParams(temperature=0.7), ["softmax", "sampling_from_probs"]),
    "min-p": (SamplingParams(min_p=0.1), ["softmax", "min_p_sampling_from_probs"]),
    "top-k": (SamplingParams(top_k=4), ["softmax", "top_k_sampling_from_probs"]),
    "top-k and min-p": (SamplingParams(top_k=4, min_p=0.1), ["softmax", "top_k_sampling_from_probs"]),
    "top-p": (SamplingParams(top_p=0.8), ["softmax", "top_p_sampling_from_probs"]),
    "both": (TWO_FILTERS, ["softmax", "top_k_renorm_probs", "top_p_sampling_from_probs"]),
    "joint": (JOINT, ["softmax", "top_k_top_p_sampling_from_probs"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_go_to_their_entry_points(sampler, kind):
    params, expected = KINDS[kind]
    sampler.sample(gaussians(3), metadata_of(params, 3))
    assert called() == expected


@pytest.mark.parametrize(("params", "kept"), [(TWO_FILTERS, {0, 1, 2}), (JOINT, {0, 1, 2, 3})])
def test_the_two_orders_keep_their_tokens(sampler, params, kept):
    assert set(tokens_of(sampler, KNOWN, params).tolist()) == kept


def test_each_row_keeps_its_own_order_in_a_batch_of_both(sampler):
    found = tokens_of(sampler, KNOWN, [TWO_FILTERS, JOINT] * 1000)
    assert called() == ["softmax", "top_k_renorm_probs", "top_p_sampling_from_probs"]
    assert set(found[::2].tolist()) == {0, 1, 2}
    assert set(found[1::2].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["top_k", "top_k_first", "joint", "min_p"])
def test_every_sequence_of_a_kind_keeps_the_same_tokens(version, kind):
    params = {
        "top_k": SamplingParams(top_k=3),
        "top_k_first": TWO_FILTERS,
        "joint": JOINT,
        "min_p": SamplingParams(min_p=0.5),
    }[kind]
    sequences = kernel_sequences.available(kernel_sequences.SEQUENCES, EntryPoints.installed(), "either")[
        kind
    ]
    assert len(sequences) == (1 if kind.startswith("top_k") and version == OLD else 2)
    found = {}
    for sequence in sequences:
        single = FlashInferSampler(CPU, EITHER, kernel_sequences.SEQUENCES | {kind: (sequence, *sequences)})
        assert single.sequence(metadata_of(params, 1), len(KNOWN)) is sequence
        found[sequence.name] = set(tokens_of(single, KNOWN, params).tolist())
    assert len(set(map(frozenset, found.values()))) == 1, found


def test_a_sequence_is_named_by_its_steps():
    names = {
        kind: [sequence.name for sequence in sequences]
        for kind, sequences in kernel_sequences.SEQUENCES.items()
    }
    fused = "cake_sampling.top_k_top_p_sampling_from_probs"
    in_two = "top_k_renorm_probs, top_p_sampling_from_probs"
    assert names == {
        "none": ["sampling_from_probs"],
        "min_p": ["min_p_sampling_from_probs", "sampling_from_probs"],
        "top_k": [fused, "top_k_sampling_from_probs"],
        "top_p": ["top_p_sampling_from_probs"],
        "top_k_first": [fused, in_two],
        "joint": ["top_k_top_p_sampling_from_probs", in_two],
        "both orders": [in_two],
    }


def test_kernels_see_a_disabled_filter_as_a_number_in_range(sampler):
    metadata = SamplingMetadata(
        top_k=torch.tensor([0, -1, 2**40, 3]), top_p=torch.tensor([NAN, 1.0, 0.0, 0.5], dtype=torch.float64)
    )
    output = sampler.sample(gaussians(4), metadata)
    arguments_by_name = dict(stand_in.CALLS)
    assert arguments_by_name["top_k_renorm_probs"]["top_k"].tolist() == [V, V, V, 3]
    assert arguments_by_name["top_p_sampling_from_probs"]["top_p"].tolist() == pytest.approx(
        [2.0, 2.0, 1e-30, 0.5]
    )
    assert output.valid.all()
    assert output.token_ids[2] == gaussians(4)[2].argmax()


def test_a_seed_is_drawn_for_each_launch_from_the_generator_of_torch(sampler):
    def seeds():
        stand_in.CALLS.clear()
        for _ in range(2):
            sampler.sample(torch.zeros(2, 50), metadata_of(SamplingParams(), 2))
        return [int(arguments["seed"][0]) for name, arguments in stand_in.CALLS if "seed" in arguments]

    torch.manual_seed(1)
    first = seeds()
    torch.manual_seed(1)
    again = seeds()
    assert first == again
    assert first[0] != first[1]


def test_more_rows_than_kernels_can_count_are_drawn_in_parts_with_noise_of_their_own(version):
    sampler = FlashInferSampler(CPU, Need(), max_elements=3 * 1000)
    stand_in.CALLS.clear()
    params = [SamplingParams(top_k=k) for k in (1, 1000, 1, 1000, 1, 1000, 1)]
    row = gaussians(1, size=1000)
    output = sampler.sample(row.repeat(7, 1), metadata_of(params, 7))
    drawn = [arguments for name, arguments in stand_in.CALLS if name == "top_k_sampling_from_probs"]
    assert [len(arguments["probs"]) for arguments in drawn] == [3, 3, 1]
    assert len({int(arguments["seed"][0]) for arguments in drawn}) == 3
    assert output.token_ids[::2].tolist() == [int(row.argmax())] * 4


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_row_is_invalid_and_its_batch_neighbours_are_valid(sampler, name, kind):
    logits = gaussians(3)
    logits[1] = POISON[name]
    output = sampler.sample(logits, metadata_of(KINDS[kind][0], 3))
    is_clean = not POISON[name].isnan().any() and bool((POISON[name] > -INF).any())
    assert output.valid.tolist() == [True, is_clean, True]
    assert ((output.token_ids >= 0) & (output.token_ids < V)).all()


def test_the_valid_flag_of_the_kernel_counts_too(sampler, monkeypatch):
    def degenerate(probs, **others):
        return torch.zeros(len(probs), dtype=torch.int32), torch.tensor([True, False])

    monkeypatch.setitem(sampler._functions, "sampling.sampling_from_probs", degenerate)
    assert sampler.sample(gaussians(2), metadata_of(SamplingParams(), 2)).valid.tolist() == [True, False]


@pytest.mark.parametrize("shape", [(0, 50), (3, 1)])
def test_batches_without_a_choice_launch_nothing(sampler, shape):
    output = sampler.sample(torch.zeros(shape), metadata_of(TWO_FILTERS, shape[0]))
    assert (output.token_ids.tolist(), output.valid.tolist()) == ([0] * shape[0], [True] * shape[0])
    assert called() == []


def test_building_calls_every_sequence_once_so_requests_compile_nothing(version):
    FlashInferSampler(CPU, EITHER)
    sequences = {
        sequence
        for kind in kernel_sequences.available(
            kernel_sequences.SEQUENCES, EntryPoints.installed(), "either"
        ).values()
        for sequence in kind
    }
    assert called().count("softmax") == len(sequences)
    assert ("fused" in called()) == (version == NEW)


def test_the_fused_sampler_draws_where_it_can_and_ties_do_not_matter(either, version):
    metadata = metadata_of(SamplingParams(top_k=50, top_p=0.9), 2)
    either.sample(gaussians(2), metadata)
    assert called()[1] == ("fused" if version == NEW else "top_k_renorm_probs")
    assert either.sequence(metadata, V) is (
        kernel_sequences.FUSED if version == NEW else kernel_sequences.TOP_K_RENORM_TOP_P
    )


@pytest.mark.parametrize(
    ("params", "capturing", "vocab_size"),
    [
        pytest.param([SamplingParams(top_k=1025)] * 2, False, 5000, id="k is above 1024"),
        pytest.param([SamplingParams(top_k=50), SamplingParams()], False, 5000, id="a row has no k"),
        pytest.param([SamplingParams(top_k=50)] * 2, False, 50, id="k is the vocabulary"),
        pytest.param([SamplingParams(top_k=50)] * 2, True, 5000, id="a graph would repeat its tokens"),
        pytest.param(
            [SamplingParams(top_k=50, top_p=0.5, filter_order="joint")] * 2, False, 5000, id="joint"
        ),
    ],
)
def test_the_fused_sampler_is_passed_over_where(either, params, capturing, vocab_size):
    assert (
        either.sequence(metadata_of(params, 2), vocab_size, capturing=capturing) is not kernel_sequences.FUSED
    )


def test_the_fused_sampler_is_passed_over_where_the_largest_k_is_unknown(either):
    ready = SamplingMetadata(top_k=torch.tensor([5, 5]), facts=BatchFacts(all_top_k=True))
    assert either.sequence(ready, 5000) is not kernel_sequences.FUSED


def test_without_leave_ties_are_kept_whatever_the_batch(sampler):
    tied = torch.zeros(50)
    assert len(set(tokens_of(sampler, tied, SamplingParams(top_k=5)).tolist())) == 50


def test_the_fused_sampler_keeps_k_of_the_tied_tokens(either, version):
    found = set(tokens_of(either, torch.zeros(50), SamplingParams(top_k=5)).tolist())
    assert found == (set(range(5)) if version == NEW else set(range(50)))


def test_fused_sequences_need_a_supported_device():
    class Everything:
        def unsupported(self, *steps):
            return None

    for capability, expected in (((8, 9), False), ((9, 0), True), (None, True)):
        sequences = kernel_sequences.available(
            kernel_sequences.SEQUENCES, Everything(), "either", capability
        )["top_k"]
        assert (kernel_sequences.FUSED in sequences) == expected


def test_an_upstream_without_the_least_entry_points_is_refused(monkeypatch):
    monkeypatch.setattr(EntryPoints, "installed", classmethod(lambda cls: cls({}, None)))
    with pytest.raises(PluginError) as error:
        FlashInferSampler(CPU, Need())
    assert str(error.value) == (
        "rows without filters need softmax and sampling_from_probs, found no such entry points"
    )


@pytest.mark.parametrize("tie_rule", [None, "value", "either"])
def test_the_core_builds_and_proves_it(version, tmp_path, monkeypatch, tie_rule):
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("tokendraw-flashinfer", "0.1.0", plugins={"flashinfer": "tokendraw_flashinfer:plugin"})
        need = Need(tie_rule=tie_rule)
        found = gather(H100, Choice(sampler="flashinfer"))
        (candidate,) = [c for c in found.candidates(SAMPLE, Need()) if c.name == "flashinfer"]
        assert (candidate.first_party, candidate.upstream_version) == (True, version)
        backend = proof.build(
            SAMPLE, found.hooks["flashinfer"], found.offered("flashinfer", SAMPLE), CPU, need
        )
    assert isinstance(backend, FlashInferSampler)
