"""The FlashInfer plugin on a CPU, against stand-ins with the signatures of two versions: the kit, which kernels serve
which batch, and what its kernels do not do by themselves.
"""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import flashinfer_stand_in as stand_in
import tokendraw_flashinfer
from call_tables import pairs
from fake_candidates import H100
from fake_dists import fake_dists
from special_rows import NAN, V, gaussians
from tokendraw import Need, PluginError, SamplingMetadata, SamplingParams, operations
from tokendraw.calls import negotiator
from tokendraw.providers import gather
from tokendraw.resolution import Choice
from tokendraw_flashinfer import kernel_sequences, plugin
from tokendraw_flashinfer.sampler import FlashInferSampler, _fused_softmax
from tokendraw_flashinfer.signatures import EntryPoints
from tokendraw_flashinfer.verifier import FlashInferVerifier
from tokendraw_testing import Effort, Status, Subject, properties, run
from verifying import gaussian, softmax, verify

CPU = torch.device("cpu")
OLD, NEW = stand_in.SOURCES
EITHER = Need(tie_rule="either")
KNOWN = torch.tensor([0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]).log()
TWO_FILTERS = SamplingParams(top_k=4, top_p=0.82)
JOINT = replace(TWO_FILTERS, filter_order="joint")
ALL = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05)


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


@pytest.fixture(scope="module")
def verifier(version):
    return FlashInferVerifier(CPU, Need())


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


def calls_of(name):
    """The arguments of each call of a function."""
    return [arguments for called_name, arguments in stand_in.CALLS if called_name == name]


# The kit.


NEED_MORE_DRAWS = ("verify distribution",)
"""Lines that need more draws than the smallest effort has."""
KIT = {
    "all": (
        [prop.name for prop in properties() if prop.name not in ("tails", *NEED_MORE_DRAWS)],
        Effort.tiny(),
    ),
    "more draws": (NEED_MORE_DRAWS, None),
}
"""Lines, and the effort of each run. The tails are those of the stand-in."""


@pytest.mark.fast_first
@pytest.mark.parametrize("lines", KIT)
def test_every_line_of_the_kit_passes(version, lines):
    names, effort = KIT[lines]
    kinds = {"sample": FlashInferSampler, "verify": FlashInferVerifier}
    offered = plugin.tokendraw_describe().operations
    subject = Subject(
        "flashinfer",
        capabilities={name: replace(offered[name], device_types=("cpu",)) for name in kinds},
        device=CPU,
        build=lambda operation, need: kinds[operation](CPU, need),
        effort=effort,
        quick=True,
    )
    result = run(subject, only=names)
    assert [line for line in result.lines if line.status is Status.FAILED] == []
    assert any(line.status is Status.PASSED for line in result.lines)


@pytest.mark.parametrize("tie_rule", [None, "value", "either"])
@pytest.mark.parametrize(
    ("operation", "kind"), [("sample", FlashInferSampler), ("verify", FlashInferVerifier)]
)
def test_the_core_builds_and_proves_it(version, tmp_path, monkeypatch, operation, kind, tie_rule):
    """A draft keeps all ties whatever the need admits, as the verification keeps them."""
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("tokendraw-flashinfer", "0.1.0", plugins={"flashinfer": "tokendraw_flashinfer:plugin"})
        need, record = Need(tie_rule=tie_rule), operations.find_operation(operation)
        found = gather(H100, Choice(sampler="flashinfer"))
        (candidate,) = [c for c in found.candidates(record, Need()) if c.name == "flashinfer"]
        assert (candidate.first_party, candidate.upstream_version) == (True, version)
        offered = found.offered("flashinfer", record)
        backend = negotiator.build(record, found.hooks["flashinfer"], offered, CPU, need)
    assert type(backend) is kind
    tied = set(tokens_of(backend, torch.zeros(50), SamplingParams(top_k=5)).tolist())
    is_fused = (operation, tie_rule, version) == ("sample", "either", NEW)
    assert tied == set(range(5 if is_fused else 50))


# Which kernels serve which batch.


@pytest.mark.parametrize(("requests", "functions"), pairs(Path(__file__).with_name("entry_points.txt")))
def test_rows_go_to_their_entry_points(sampler, requests, functions):
    sampler.sample(gaussians(3), metadata_of(eval(requests, globals()), 3))
    assert " ".join(called()) == functions


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(min_p=0.1), []),
        (SamplingParams(top_k=4), ["top_k_renorm_probs"]),
        (SamplingParams(top_p=0.5), ["top_p_renorm_probs"]),
        (ALL, ["top_k_renorm_probs", "top_p_renorm_probs"]),
    ],
)
def test_targets_and_drafts_with_logits_are_filtered_and_given_probabilities_are_not(
    verifier, params, expected
):
    last, rows = ["chain_speculative_sampling", "sampling_from_probs"], gaussian(4)
    verify(verifier, gaussian(6), [[1, 2], [3, 4]], params, draft_probs=softmax(rows))
    assert called() == ["softmax", *expected, *last]
    stand_in.CALLS.clear()
    verify(verifier, gaussian(6), [[1, 2], [3, 4]], params, draft_logits=rows)
    assert called() == ["softmax", *expected] * 2 + last


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("top_k", SamplingParams(top_k=3)),
        ("top_k_first", TWO_FILTERS),
        ("joint", JOINT),
        ("min_p", SamplingParams(min_p=0.5)),
    ],
)
def test_every_sequence_of_a_kind_keeps_the_same_tokens(version, kind, params):
    sequences = kernel_sequences.available(kernel_sequences.SEQUENCES, EntryPoints.installed(), "either")[
        kind
    ]
    assert len(sequences) == (1 if kind.startswith("top_k") and version == OLD else 2)
    found = {}
    for sequence in sequences:
        single = FlashInferSampler(CPU, EITHER, kernel_sequences.SEQUENCES | {kind: (sequence, *sequences)})
        assert single.sequence(metadata_of(params, 1), len(KNOWN)) is sequence
        found[sequence.name] = frozenset(tokens_of(single, KNOWN, params).tolist())
    assert len(set(found.values())) == 1, found


FUSED = [
    ([SamplingParams(top_k=50, top_p=0.9)] * 2, False, 5000, True),
    ([SamplingParams(top_k=1025)] * 2, False, 5000, False),
    ([SamplingParams(top_k=50), SamplingParams()], False, 5000, False),
    ([SamplingParams(top_k=50)] * 2, False, 50, False),  # k is the vocabulary
    ([SamplingParams(top_k=50)] * 2, True, 5000, False),  # a graph would repeat its tokens
    ([SamplingParams(top_k=50, top_p=0.5, filter_order="joint")] * 2, False, 5000, False),
]
"""Requests, whether a graph is captured, V, and whether the fused sampler of the newer version draws."""


@pytest.mark.parametrize(("params", "capturing", "vocab_size", "is_fused"), FUSED)
def test_the_fused_sampler_draws_where_it_can_and_ties_do_not_matter(
    either, sampler, version, params, capturing, vocab_size, is_fused
):
    metadata = metadata_of(params, 2)
    for backend, may_be_fused in ((either, version == NEW), (sampler, False)):
        found = backend.sequence(metadata, vocab_size, capturing=capturing)
        assert (found is kernel_sequences.FUSED) == (may_be_fused and is_fused)


def test_building_calls_every_sequence_once_so_requests_compile_nothing(version):
    FlashInferSampler(CPU, EITHER)
    by_kind = kernel_sequences.available(kernel_sequences.SEQUENCES, EntryPoints.installed(), "either")
    assert called().count("softmax") == len({sequence for kind in by_kind.values() for sequence in kind})
    assert ("fused" in called()) == (version == NEW)
    FlashInferVerifier(CPU, Need())
    last = ["softmax", "top_k_renorm_probs", "top_p_renorm_probs", "chain_speculative_sampling"]
    assert called()[-5:] == [*last, "sampling_from_probs"]


# What reaches the kernels.


def test_kernels_see_a_disabled_filter_as_a_number_in_range(sampler):
    metadata = SamplingMetadata(
        top_k=torch.tensor([0, -1, 2**40, 3]), top_p=torch.tensor([NAN, 1.0, 0.0, 0.5], dtype=torch.float64)
    )
    output = sampler.sample(gaussians(4), metadata)
    ((renormed,), (drawn,)) = (calls_of(name) for name in ("top_k_renorm_probs", "top_p_sampling_from_probs"))
    assert renormed["top_k"].tolist() == [V, V, V, 3]
    assert drawn["top_p"].tolist() == pytest.approx([2.0, 2.0, 1e-30, 0.5])
    assert output.valid.all()
    assert output.token_ids[2] == gaussians(4)[2].argmax()


def test_every_launch_has_a_seed_of_its_own_from_the_generator_of_torch(sampler, verifier):
    """Seeds are tensors: a CUDA graph reads tensors anew, and would keep numbers."""

    def seeds():
        stand_in.CALLS.clear()
        torch.manual_seed(1)
        for _ in range(2):
            sampler.sample(torch.zeros(2, 50), metadata_of(SamplingParams(), 2))
            verify(verifier, gaussian(4), [[1], [2]], SamplingParams(), draft_logits=gaussian(2))
        return [int(arguments["seed"][0]) for _, arguments in stand_in.CALLS if "seed" in arguments]

    first = seeds()
    assert seeds() == first
    assert len(set(first)) == len(first) == 6


def test_more_rows_than_kernels_can_count_are_drawn_in_parts_with_noise_of_their_own(version):
    sampler = FlashInferSampler(CPU, Need(), max_elements=3 * 1000)
    stand_in.CALLS.clear()
    params = [SamplingParams(top_k=k) for k in (1, 1000, 1, 1000, 1, 1000, 1)]
    row = gaussians(1, size=1000)
    output = sampler.sample(row.repeat(7, 1), metadata_of(params, 7))
    drawn = calls_of("top_k_sampling_from_probs")
    assert [len(arguments["probs"]) for arguments in drawn] == [3, 3, 1]
    assert len({int(arguments["seed"][0]) for arguments in drawn}) == 3
    assert output.token_ids[::2].tolist() == [int(row.argmax())] * 4


@pytest.mark.parametrize(("max_elements", "sizes"), [(8 * 3 * 2, [2, 2, 1]), (1, [1] * 5)])
def test_more_than_kernels_can_count_is_verified_in_parts(version, max_elements, sizes):
    """Each part has fresh noise, and each request its parameters."""
    verifier = FlashInferVerifier(CPU, Need(), max_elements=max_elements)
    stand_in.CALLS.clear()
    target = gaussian(15, 8)
    params = [SamplingParams(top_k=1 if request % 2 else 8) for request in range(5)]
    best = target.argmax(-1).reshape(5, 3)
    q = np.zeros((10, 8))
    q[np.arange(10), best[:, :2].ravel()] = 1.0
    output = verify(verifier, target, best[:, :2].tolist(), params, draft_probs=q)
    launches = calls_of("chain_speculative_sampling")
    assert [len(found["draft_probs"]) for found in launches] == sizes
    assert len({int(found["seed"]) for found in launches}) == len(launches)
    assert output.token_ids[1::2].tolist() == best[1::2].tolist()


# What the kernels do not do by themselves.


def test_the_valid_flag_of_the_kernel_counts_too(sampler, monkeypatch):
    def degenerate(probs, **others):
        return torch.zeros(len(probs), dtype=torch.int32), torch.tensor([True, False])

    monkeypatch.setitem(sampler._functions, "sampling.sampling_from_probs", degenerate)
    assert sampler.sample(gaussians(2), metadata_of(SamplingParams(), 2)).valid.tolist() == [True, False]


@pytest.mark.parametrize("params", [SamplingParams(), ALL])
def test_drafts_from_the_distribution_of_the_target_are_accepted_even_if_u_is_1(
    verifier, params, monkeypatch
):
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: torch.zeros(*shape, dtype=how.get("dtype")))
    target = gaussian(3000, 16)
    output = verify(
        verifier,
        np.repeat(target, 2, axis=0),
        target.argmax(-1)[:, None].tolist(),
        params,
        draft_logits=target,
    )
    assert output.num_accepted.tolist() == [1] * 3000


# What it refuses.


KNOWN_Q = {"draft_probs": torch.full((2, 300), 1 / 300)}


@pytest.mark.parametrize(
    ("lists", "inputs", "mode"),
    [([[1], [2]], KNOWN_Q, "coupled"), ([[1, 2], []], KNOWN_Q, "rejection"), ([[1], [2]], {}, "rejection")],
)
def test_batches_unsupported_by_the_host_facts_are_refused(verifier, lists, inputs, mode):
    with pytest.raises(PluginError, match="needs the mode rejection and as many drafts of each request"):
        verify(verifier, gaussian(4), lists, SamplingParams(), mode=mode, **inputs)


def test_an_upstream_without_the_least_entry_points_is_refused(monkeypatch):
    monkeypatch.setattr(EntryPoints, "installed", classmethod(lambda cls: cls({}, None)))
    with pytest.raises(PluginError) as error:
        FlashInferSampler(CPU, Need())
    assert str(error.value) == (
        "rows without filters need softmax and sampling_from_probs, found no such entry points"
    )


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
        found = plugin.tokendraw_describe().operations
        if filters is not None:
            assert [name for name, _ in found["verify"].filters] == filters
            FlashInferVerifier(CPU, Need())
            return
        assert "verify" not in found
        missing = "needs flashinfer.sampling.chain_speculative_sampling, found no such thing"
        with pytest.raises(PluginError, match=missing.partition(",")[0]):
            FlashInferVerifier(CPU, Need())
        assert tokendraw_flashinfer.plugin.tokendraw_probe("verify", H100, Need()).startswith(missing)


# The softmax kernel, on a machine without a GPU.


@pytest.mark.slow
def test_the_kernel_agrees_with_torch_for_any_rows():
    found = pytest.importorskip("triton_stand_ins").interpreted("softmax", "errors")
    assert found["wrong"] == []
    assert found["compared"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
@pytest.mark.parametrize(("dtype", "temperature"), [("fp32", "*fp32"), ("bf16", None), ("fp16", "*fp32")])
def test_the_kernel_compiles(target, dtype, temperature):
    stand_ins = pytest.importorskip("triton_stand_ins")
    softmax = importlib.import_module("tokendraw_flashinfer.softmax")
    types = {"logits": f"*{dtype}", "probs": "*fp32", "valid": "*i1", "row_stride": "i64"}
    constants = {"vocab_size": 128256, "BLOCK": softmax.configuration(1000, 4 if dtype == "fp32" else 2)[0]}
    (types if temperature else constants)["temperature"] = temperature
    assert stand_ins.machine_code(softmax._softmax, types, constants, target, warps=16)


def test_where_triton_cannot_run_torch_does_the_same_and_the_log_says_why(monkeypatch, caplog):
    def broken(logits, temperature):
        raise RuntimeError("Failed to find C compiler")

    class OnCuda:
        device = torch.device("cuda")

    monkeypatch.setattr(pytest.importorskip("tokendraw_flashinfer.softmax"), "softmax", broken)
    with caplog.at_level("INFO", logger="tokendraw"):
        assert _fused_softmax(OnCuda()) is None
    assert caplog.messages == [
        "logits are cleaned by torch, since Triton failed: RuntimeError: Failed to find C compiler"
    ]
