"""The aiter sampler on a CPU, against a stand-in with aiter's operators and their faults. It has no hardware here."""

from dataclasses import replace

import pytest
import torch

import aiter_stand_in as stand_in
from fake_candidates import MI300X
from fake_dists import fake_dists
from special_rows import V, gaussians
from tokendraw import Need, SamplingMetadata, SamplingParams, operations
from tokendraw.calls import negotiator
from tokendraw.providers import gather
from tokendraw.resolution import Choice, State
from tokendraw_aiter import plugin
from tokendraw_aiter.sampler import AiterSampler
from tokendraw_testing import Effort, Status, Subject, properties, run

CPU = torch.device("cpu")
SAMPLE = operations.find_operation("sample")
INFO = plugin.tokendraw_describe()
TWO_FILTERS = SamplingParams(top_k=4, top_p=0.82)
JOINT = replace(TWO_FILTERS, filter_order="joint")


@pytest.fixture(scope="module")
def sampler(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, fake_dists(tmp_path_factory.mktemp("dists"), patch) as dists:
        dists.add("amd-aiter", "0.1.13", modules=stand_in.MODULES)
        yield AiterSampler(CPU, Need())


@pytest.fixture(autouse=True)
def no_calls_yet():
    stand_in.CALLS.clear()


def sample(sampler, logits, params):
    params = [params] * len(logits) if isinstance(params, SamplingParams) else params
    return sampler.sample(logits, SamplingMetadata.from_params(params))


def called():
    return [name for name, _ in stand_in.CALLS]


def test_every_line_of_the_kit_passes(sampler):
    """But the tails, whose draws the stand-in makes."""
    subject = Subject(
        "aiter",
        capabilities={"sample": replace(INFO.operations["sample"], device_types=("cpu",))},
        device=CPU,
        build=lambda operation, need: sampler,
        effort=Effort.tiny(),
    )
    lines = run(subject, only=[prop.name for prop in properties("sample") if prop.name != "tails"]).lines
    assert [line for line in lines if line.status is Status.FAILED] == []
    assert any(line.status is Status.PASSED for line in lines)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), ["top_p_sampling_from_probs"]),
        (SamplingParams(top_p=0.8), ["top_p_sampling_from_probs"]),
        (SamplingParams(top_k=4), ["top_k_top_p_sampling_from_probs"]),
        (JOINT, ["top_k_top_p_sampling_from_probs"]),
        (TWO_FILTERS, ["top_k_renorm_probs", "top_p_sampling_from_probs"]),
        ([TWO_FILTERS, JOINT, JOINT], ["top_k_renorm_probs", "top_p_sampling_from_probs"]),
    ],
)
def test_rows_go_to_their_operators(sampler, params, expected):
    sample(sampler, gaussians(3), params)
    assert called() == expected


def renorm_call():
    return next(arguments for name, arguments in stand_in.CALLS if name == "top_k_renorm_probs")


@pytest.mark.parametrize(
    ("ks", "expected"),
    [
        pytest.param((4, 60, 51), 60, id="every row has one"),
        pytest.param((4, 0, 51), V, id="a row has none, which the kernel takes as all"),
    ],
)
def test_the_largest_k_goes_beside_the_tensor(sampler, ks, expected):
    sample(sampler, gaussians(3), [SamplingParams(top_k=k, top_p=0.9) for k in ks])
    assert renorm_call()["top_k_val"] == expected
    assert max(renorm_call()["top_k"].tolist()) == expected


def test_more_rows_than_kernels_can_count_are_drawn_in_parts(sampler):
    parts = AiterSampler(CPU, Need(), max_elements=2 * V)
    assert sample(parts, gaussians(5), SamplingParams(top_k=1)).token_ids.tolist() == (
        gaussians(5).argmax(-1).tolist()
    )
    assert len(called()) == 3


def test_the_core_builds_and_proves_it(sampler, tmp_path, monkeypatch):
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add("tokendraw-aiter", "0.1.0", plugins={"aiter": "tokendraw_aiter:plugin"})
        found = gather(MI300X, Choice(sampler="aiter"))
        (candidate,) = [c for c in found.candidates(SAMPLE, Need()) if c.name == "aiter"]
        assert (candidate.state, candidate.upstream_version) == (State.AVAILABLE, "0.1.13")
        backend = negotiator.build(SAMPLE, found.hooks["aiter"], found.offered("aiter", SAMPLE), CPU, Need())
    assert isinstance(backend, AiterSampler)
