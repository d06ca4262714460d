"""Metadata of a plugin's class reach only samplers with a declaration of the class."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import tokendraw
from calling import CPU, Recorded, drafting, loaded, pair, select
from fake_candidates import EVERYTHING, LAPTOP, PER_ROW, candidate
from fake_dists import EVERYTHING as EVERY_FIELD
from fake_dists import fake_dists, faulty
from tokendraw import Drafts, SamplerUnavailableError, SamplingMetadata, SamplingParams
from tokendraw.plugin import Capabilities, VerifyCapabilities
from tokendraw.resolution import Choice, decide
from tokendraw_native.sampler import NativeSampler

V = 50
PLAIN, GREEDY = SamplingParams(temperature=0.7, top_k=3), SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnMetadata(SamplingMetadata):
    """Metadata with a parameter of a plugin."""

    offset: Tensor | None = None
    """[slots] floating point."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Derived(OwnMetadata):
    """Metadata with another parameter more."""

    factor: Tensor | None = None


OWN = f"{__name__}.OwnMetadata"
FILTERS = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"), metadata_classes=(OWN,))
DECLARING = replace(EVERYTHING, metadata_classes=(OWN,))


def batch(params, kind=OwnMetadata, **options):
    """The parameters of requests, with the slot as ``offset``."""
    core = SamplingMetadata.from_params(params, **options)
    values = {name: getattr(core, name) for name in SamplingMetadata.__dataclass_fields__}
    return kind(**values, offset=torch.arange(len(params)).float())


def logits(rows):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(1))


def refusal(sampler, metadata, rows):
    with pytest.raises(SamplerUnavailableError) as error:
        sampler.sample(logits(rows), metadata)
    return str(error.value)


@pytest.mark.parametrize(
    ("greedy", "rows", "named", "own"),
    [
        ([7], 40, "row 7", "it in a call of its own"),
        ([3, 30], 40, "rows 3 and 30", "them in a call of their own"),
        ([0], 4, "row 0", "it in a call of its own"),
        (range(12), 12, "rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more", "them in a call of their own"),
    ],
)
def test_rows_that_would_go_to_a_companion_that_does_not_declare_it_are_named(greedy, rows, named, own):
    """Also where the whole of a batch would go."""
    chosen, companion = Recorded(1), Recorded(2)
    sampler = pair(FILTERS, chosen, companion)
    params = [GREEDY if row in greedy else PLAIN for row in range(rows)]
    for options in ({}, {"row_index": list(range(rows))}):
        assert refusal(sampler, batch(params, **options), rows) == (
            f"'metadata' of {named} needs a sampler that declares the class '{OWN}', found the companion 'native', "
            f"which does not, where 'acme' cannot serve greedy rows. Draw {own}, with a tokendraw.SamplingMetadata."
        )
    assert (chosen.logits, companion.logits) == ([], [])


def test_rows_of_slots_are_named_by_row():
    sampler = pair(FILTERS, Recorded(1), Recorded(2))
    message = refusal(sampler, batch([PLAIN, GREEDY], row_index=[0, 0, 1, 0]), 4)
    assert message.startswith("'metadata' of row 2 needs a sampler")


def test_where_the_host_does_not_know_the_rows_it_names_every_row():
    sampler = pair(FILTERS, Recorded(1), Recorded(2))
    metadata = replace(batch([PLAIN, GREEDY] * 20), row_kinds=None)
    assert refusal(sampler, metadata, 40) == (
        f"'metadata' of every row needs a sampler that declares the class '{OWN}', found the companion 'native', "
        "which does not, where 'acme' cannot serve greedy rows. Draw it in a call of its own, with a "
        "tokendraw.SamplingMetadata."
    )


def test_rows_that_stay_are_drawn_and_the_core_s_metadata_are_routed_as_ever():
    chosen, companion = Recorded(1), Recorded(2)
    sampler = pair(FILTERS, chosen, companion)
    assert sampler.sample(logits(3), batch([PLAIN] * 3)).token_ids.tolist() == [1] * 3
    assert type(chosen.metadata[-1]) is OwnMetadata
    plain = SamplingMetadata.from_params([PLAIN, GREEDY] * 20)
    assert sampler.sample(logits(40), plain).token_ids.tolist() == [1, 2] * 20


@pytest.mark.parametrize("rows", [4, 40])
def test_a_companion_that_declares_it_is_given_the_parameter_of_its_rows(rows):
    chosen, companion = Recorded(1), Recorded(2)
    sampler = pair(FILTERS, chosen, companion, companion_capabilities=DECLARING)
    params = [GREEDY if row == rows - 2 else PLAIN for row in range(rows)]
    sampler.sample(logits(rows), batch(params))
    (own,) = companion.metadata
    assert type(own) is OwnMetadata
    assert own.per_row("offset").tolist() == [rows - 2]
    assert chosen.metadata[0].per_row("offset").tolist() == list(range(rows))


@pytest.mark.parametrize("kind", [OwnMetadata, Derived])
def test_a_sampler_that_declares_no_such_class_is_given_none(kind):
    """A class derived from a declared class has more parameters, and has to be declared too."""
    chosen, companion = Recorded(1), Recorded(2)
    capabilities = EVERYTHING if kind is OwnMetadata else DECLARING
    sampler = pair(capabilities, chosen, companion)
    assert refusal(sampler, batch([PLAIN] * 40, kind), 40) == (
        f"'metadata' of every row needs a sampler that declares the class '{__name__}.{kind.__name__}', found 'acme' "
        "and 'native', which do not. Load the sampler that declares it by its name, or pass a "
        "tokendraw.SamplingMetadata."
    )
    assert (chosen.logits, companion.logits) == ([], [])


@pytest.mark.parametrize("rows", [4, 40])
def test_a_partial_companion_that_does_not_declare_it_is_given_no_row(rows):
    companion, partial = Recorded(2), Recorded(3)
    sampler = pair(FILTERS, Recorded(1), companion, companion_capabilities=DECLARING)
    select(sampler, partial_companion=loaded("fast", partial, EVERYTHING))
    params = [GREEDY if row == rows - 2 else PLAIN for row in range(rows)]
    sampler.sample(logits(rows), batch(params))
    assert (len(companion.metadata), partial.metadata) == (1, [])
    sampler.sample(logits(rows), SamplingMetadata.from_params(params))
    assert (len(companion.metadata), len(partial.metadata)) == (1, 1)


def test_the_rows_of_two_classes_are_divided_apart_where_they_share_the_parameters():
    chosen = Recorded(1)
    sampler = pair(replace(FILTERS, metadata_classes=()), chosen, companion_capabilities=DECLARING)
    own = batch([PLAIN, GREEDY] * 20)
    core = SamplingMetadata(**{name: getattr(own, name) for name in SamplingMetadata.__dataclass_fields__})
    for metadata in (core, own):
        sampler.sample(logits(40), metadata)
    assert [type(metadata) for metadata in chosen.metadata] == [SamplingMetadata]


def test_where_only_the_companion_declares_it_the_companion_draws_every_row():
    chosen, companion = Recorded(1), Recorded(2)
    sampler = pair(EVERYTHING, chosen, companion, companion_capabilities=DECLARING)
    assert sampler.sample(logits(40), batch([PLAIN] * 40)).token_ids.tolist() == [2] * 40
    assert chosen.logits == []


def test_native_refuses_it_without_a_companion():
    assert refusal(tokendraw.load_sampler("native", device="cpu"), batch([PLAIN] * 2), 2) == (
        f"'metadata' of every row needs a sampler that declares the class '{OWN}', found 'native', which does not. "
        "Load the sampler that declares it by its name, or pass a tokendraw.SamplingMetadata."
    )


def test_neither_drafts_nor_verifications_lose_it():
    declared = VerifyCapabilities.of(
        FILTERS,
        verify_modes=("rejection",),
        draft_kinds=("chosen",),
        ragged_drafts=True,
        placeholder_drafts=True,
    )
    drafts = Drafts.from_lists([[1], []])
    seen = []

    class Keeping(NativeSampler):
        def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
            seen.append(metadata)
            return super().verify(target_logits, drafts, metadata, mode=mode)

        def sample(self, logits, metadata, *, draft=False):
            seen.append(metadata)
            return super().sample(logits, metadata, draft=draft)

    need = tokendraw.Need()
    sampler = drafting(declared, Keeping(CPU, need))
    sampler.verify(logits(3), drafts, batch([PLAIN] * 2))
    assert (type(seen[-1]), seen[-1].per_row("offset").tolist()) == (OwnMetadata, [0.0, 0.0, 1.0])
    sampler.draft(logits(2), batch([PLAIN] * 2))
    assert type(seen[-1]) is OwnMetadata
    for call in (
        lambda: sampler.verify(logits(3), drafts, batch([GREEDY, PLAIN])),
        lambda: sampler.verify(logits(3), drafts, batch([PLAIN] * 2), mode="coupled"),
        lambda: sampler.draft(logits(2), batch([GREEDY, PLAIN])),
    ):
        with pytest.raises(
            SamplerUnavailableError, match=r"^'metadata' of (every row|row 0) needs a sampler that"
        ):
            call()
    assert len(seen) == 2


def test_a_sampler_that_takes_over_is_not_given_it(tmp_path, monkeypatch):
    """The call fails, and the declaring sampler stays."""
    declaring = f"{EVERY_FIELD}, metadata_classes=('{OWN}',)"
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add_plugin(
            "acme", faulty("acme", "raise RuntimeError('no kernel image')", capabilities=declaring)
        )
        sampler = tokendraw.load_sampler(device="cpu")
        assert sampler.name == "acme"
        with pytest.raises(SamplerUnavailableError) as error:
            sampler.sample(logits(2), batch([PLAIN] * 2))
        assert str(error.value) == (
            f"'metadata' of every row needs a sampler that declares the class '{OWN}', found 'native', which does "
            "not. Load the sampler that declares it by its name, or pass a tokendraw.SamplingMetadata."
        )
        assert str(error.value.__cause__) == "no kernel image"
        assert sampler.name == "acme"


def test_a_warmup_with_such_metadata_calls_none_but_who_declares_it(monkeypatch):
    monkeypatch.setattr("tokendraw.calls.warmup.max_calls_in_flight", lambda device: 1)
    chosen, companion = Recorded(1), Recorded(2)
    sampler = pair(FILTERS, chosen, companion)
    sampler.warmup(V, dtypes=[torch.float32], metadata=[batch([PLAIN] * 2)])
    assert {type(metadata) for metadata in chosen.metadata} == {OwnMetadata}
    with pytest.raises(SamplerUnavailableError, match=r"^'metadata' of row 1 needs a sampler that declares"):
        sampler.warmup(V, dtypes=[torch.float32], metadata=[batch([PLAIN, GREEDY])])
    assert companion.metadata == []


@pytest.mark.parametrize("declares", [False, True])
def test_a_resolution_says_whether_the_companion_is_given_it(declares):
    acme = candidate("acme", 50, FILTERS)
    native = candidate("native", 0, DECLARING if declares else EVERYTHING)
    found = decide([acme, native], LAPTOP, tokendraw.Need(), Choice(), operation="sample")
    assert found.companion == "native"
    (reason,) = (decision.reason for decision in found.decisions if decision.name == "native")
    assert reason == "available, priority 0; serves the rows that acme cannot" + (
        "" if declares else f", but none with metadata of {OWN}"
    )
