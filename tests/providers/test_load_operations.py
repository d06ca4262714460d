"""``tokendraw.load`` and the arguments ``operations`` and ``companion`` of ``load_sampler``; one discovery for all."""

import sys

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, ONE_OF_THE_OPERATIONS, faulty, plugin, serving_both
from tokendraw import (
    Drafts,
    InvalidParameterError,
    Need,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    load,
    load_sampler,
)

LOGITS = torch.zeros(3, 50)
SEEDED = SamplingMetadata.from_params([SamplingParams(seed=i) for i in range(3)], positions=[0, 1, 2])
DRAFTS = Drafts.from_lists([[1, 2]])
GREEDY = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 3)


# Providers of one operation


def test_a_provider_of_sample_draws_as_a_sampler_does():
    provider = load("sample", "native", device="cpu")
    assert (provider.name, provider.resolution.operation) == ("native", "sample")
    drawn = load_sampler("native", device="cpu").sample(LOGITS, SEEDED)
    assert torch.equal(provider.sample(LOGITS, SEEDED).token_ids, drawn.token_ids)


def test_a_provider_of_verify_verifies_as_a_sampler_does():
    provider = load("verify", "native", device="cpu", need=Need(vocab_size=50))
    assert (provider.name, provider.resolution.need) == ("native", Need(vocab_size=50))
    drafts = Drafts.from_lists([[1, 2]])
    expected = load_sampler("native", device="cpu").verify(LOGITS, drafts, SEEDED)
    assert torch.equal(provider.verify(LOGITS, drafts, SEEDED).token_ids, expected.token_ids)


def test_a_plugin_that_is_no_name_is_a_type_error():
    with pytest.raises(TypeError) as refused:
        load("sample", 3)
    assert str(refused.value) == "'plugin' needs a plugin's name or None, found int. Pass a str."


def test_a_plugin_that_is_not_installed_is_refused():
    with pytest.raises(SamplerUnavailableError) as refused:
        load("verify", "natve", device="cpu")
    assert str(refused.value).startswith(
        "'natve', asked for by the argument plugin=, cannot serve the operation 'verify' on cpu: no plugin of that "
        "name is installed, the nearest installed name is 'native'."
    )
    assert str(refused.value).endswith("Leave out plugin= to let tokendraw choose.")


# Operations that a sampler is loaded with


@pytest.mark.parametrize(
    ("operations", "act", "built"),
    [
        (("sample",), lambda sampler: sampler.sample(LOGITS, SEEDED), ["sample"]),
        (("sample",), lambda sampler: sampler.verify(LOGITS, DRAFTS, SEEDED), ["sample", "verify"]),
        (
            ("sample",),
            lambda sampler: sampler.warmup(50, dtypes=[torch.float32], max_drafts=2),
            ["sample", "verify"],
        ),
        (("sample", "verify"), lambda sampler: sampler.name, ["sample", "verify"]),
    ],
    ids=["sample", "verify", "a warmup with drafts", "at load"],
)
def test_verify_is_built_at_first_use_or_at_load(dists, operations, act, built):
    name = dists.add_plugin("acme", serving_both())
    sampler = load_sampler(device="cpu", operations=operations)
    for _ in range(2):
        act(sampler)
    module = sys.modules[name]
    assert (built, built) == (module.BUILT, module.PROBED)


def test_a_sampler_that_cannot_verify_is_refused_at_load(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    with pytest.raises(SamplerUnavailableError) as refused:
        load_sampler("acme", device="cpu", operations=("sample", "verify"))
    assert str(refused.value) == (
        "'acme', asked for by the argument sampler=, cannot serve the operation 'verify' on cpu: needs the operation "
        "verify, found sample. Available here: native. Leave out sampler= to let tokendraw choose."
    )


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ("verify", "'operations' needs a sequence of names, found 'verify'. Pass ('verify',)."),
        (
            ("sample", "paint"),
            f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 'paint'. Pass one of these.",
        ),
        ((3,), f"'operation' needs {ONE_OF_THE_OPERATIONS}, found 3. Pass one of these."),
    ],
)
def test_operations_that_there_are_not_are_refused(operations, message):
    with pytest.raises(InvalidParameterError) as refused:
        load_sampler(device="cpu", operations=operations)
    assert str(refused.value) == message


# Exactly one sampler


def test_without_companion_nobody_serves_what_the_chosen_one_cannot(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("greedy=True", "greedy=False")))
    assert load_sampler(device="cpu").sample(LOGITS, GREEDY).valid.all()
    alone = load_sampler(device="cpu", companion=False)
    assert (alone.name, alone.resolution.companion) == ("acme", None)
    assert alone.resolution.beyond == ("greedy rows",)
    with pytest.raises(SamplerUnavailableError) as refused:
        alone.sample(LOGITS, GREEDY)
    assert str(refused.value) == (
        "'acme' cannot serve greedy rows, which this batch may hold, and has no companion. Leave out companion=False, "
        "so that 'native' serves as one, or, if the batch holds none, say so in SamplingMetadata.facts."
    )


@pytest.mark.parametrize("companion", [True, False])
def test_where_the_only_companion_is_switched_off_the_refusal_says_so(dists, monkeypatch, companion):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING.replace("greedy=True", "greedy=False")))
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    with pytest.raises(SamplerUnavailableError) as refused:
        load_sampler(device="cpu", companion=companion).sample(LOGITS, GREEDY)
    assert str(refused.value) == (
        "'acme' cannot serve greedy rows, which this batch may hold, and has no companion. Make 'native' available, "
        "which is installed (switched off by TOKENDRAW_DISABLE), or, if the batch holds none, say so in "
        "SamplingMetadata.facts."
    )


def test_without_companion_nobody_takes_over(dists):
    dists.add_plugin("acme", faulty("acme", "raise OSError('gone')"))
    alone = load_sampler(device="cpu", companion=False)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            alone.sample(LOGITS, SEEDED)
    assert alone.name == "acme"


# One discovery


@pytest.mark.parametrize("operations", [("sample",), ("sample", "verify")])
def test_a_load_is_one_discovery_and_an_operation_that_is_selected_later_another(dists, operations):
    module = dists.add_plugin("acme", serving_both())
    sampler = load_sampler(device="cpu", operations=operations)
    acme = sys.modules[module]
    assert acme.DESCRIBED == [1]
    assert list(operations) == acme.PROBED
    for _ in range(2):
        sampler.verify(LOGITS, Drafts.from_lists([[1, 2]]), SEEDED)
        sampler.sample(LOGITS, SEEDED)
    assert len(acme.DESCRIBED) == 3 - len(operations)
    assert acme.PROBED == ["sample", "verify"]


def test_show_of_every_operation_is_one_discovery(dists):
    module = dists.add_plugin("acme", serving_both())
    from tokendraw.providers.resolve import discover_all

    found = discover_all()
    assert {operation: len(candidates) for operation, candidates in found.items()} == {
        "sample": 2,
        "verify": 2,
        "score": 2,
        "process_logits": 2,
    }
    assert (sys.modules[module].DESCRIBED, sys.modules[module].PROBED) == ([1], ["sample", "verify"])
    assert found["sample"] == tokendraw.discover()
