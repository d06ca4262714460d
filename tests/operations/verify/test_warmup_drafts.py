"""Warming up for speculation: drafts and verifications of every kind requested by an engine, and no others."""

from dataclasses import dataclass, field
from itertools import product

import pytest
import torch

import tokendraw
from calling import drafting, one_token, selected
from fake_candidates import FILTERS, SEEDS, VERIFYING
from fake_dists import EVERYTHING as OF_A_PLUGIN
from fake_dists import plugin
from tokendraw import (
    BatchFacts,
    LogprobsTensors,
    SamplerUnavailableError,
    SamplingMetadata,
    VerifyOutput,
    speculative,
)
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.plugin import VerifyCapabilities

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")

PROBS_ALONE = VerifyCapabilities(verify_modes=("rejection",), draft_kinds=("probs",))
"""What a kernel takes that knows probabilities alone, as many drafts for every request, no seeds and no filters."""
FLOAT32 = {"dtypes": [torch.float32], "batch_sizes": [4]}
PLAIN = {"seeds": False, "logprobs": ()}


@dataclass
class Recorder:
    """A backend with lists of its drafts and verifications."""

    drafted: list = field(default_factory=list)
    verified: list = field(default_factory=list)

    def sample(self, logits, metadata, *, draft):
        assert draft is True
        self.drafted.append((logits, metadata))
        return one_token(0, logits, metadata)

    def verify(self, target_logits, drafts, metadata, *, mode):
        drafts.check(target_logits)
        self.verified.append((target_logits, drafts, metadata, mode))
        requests = drafts.num_requests
        tokens = torch.zeros(requests, drafts.max_drafts + 1, dtype=torch.int64)
        tokens[:, 1:] = PAD_TOKEN_ID
        none, valid, best, mass = (
            torch.zeros(requests, dtype=torch.int32),
            torch.ones(requests) > 0,
            None,
            None,
        )
        if (most := metadata.facts.max_logprobs) is not None:
            values = torch.zeros(*tokens.shape, 1 + (target_logits.shape[1] if most < 0 else most))
            best = LogprobsTensors(values.long(), values, torch.zeros_like(tokens))
            mass = torch.zeros(tokens.shape)
        return VerifyOutput(tokens, none, valid, best, mass)

    def kinds(self, layout):
        """Return (any seed, all seeded, positions, filter, joint, all greedy, logprobs) of verifications."""
        return {
            (
                m.facts.any_seeded,
                m.facts.all_seeded,
                m.positions is not None,
                m.facts.max_top_k != 0 or m.facts.any_top_p or m.facts.any_min_p or m.facts.any_ceiling,
                m.facts.any_joint,
                m.facts.all_greedy,
                m.facts.max_logprobs,
            )
            for _, drafts, m, _ in self.verified
            if layout_of(drafts) == layout
        }

    @property
    def layouts(self):
        return {layout_of(drafts) for _, drafts, _, _ in self.verified}


def layout_of(drafts):
    return (drafts.max_drafts, "padded" if drafts.draft_token_ids.dim() == 2 else "flat")


def recording(capabilities=VERIFYING, companion_capabilities=None):
    backend, other = Recorder(), Recorder()
    sampler = drafting(capabilities, backend, other, companion_capabilities=companion_capabilities)
    return sampler, backend, other


def warmed(**arguments):
    """Return the recording backend of a verifier after a warmup."""
    sampler, backend, _ = recording()
    sampler.warmup(**({"vocab_size": 50, **FLOAT32} | arguments))
    return backend


def test_without_max_drafts_nobody_is_asked_who_verifies():
    sampler = tokendraw.load_sampler("native", device="cpu")
    sampler.warmup(20, **FLOAT32, **PLAIN)
    assert "verify" not in sampler._negotiator.selections


def test_every_kind_is_drafted_and_verified_and_every_layout_with_seeds_and_without():
    backend = warmed(max_drafts=3)
    expected = {(*seeds, *filters, n) for seeds in SEEDS for filters in FILTERS for n in (None, 5)}
    assert backend.kinds((3, "flat")) == expected
    ends = {kind for kind in expected if kind[:3] in (SEEDS[0], SEEDS[-1])}
    assert backend.kinds((3, "padded")) == backend.kinds((0, "flat")) == ends
    assert (len(backend.drafted), len(backend.verified)) == (88, 88 + 44 + 44)
    assert backend.layouts == {(3, "flat"), (3, "padded"), (0, "flat")}


def test_what_will_not_come_is_left_out_and_parameters_by_slot_are_verified_as_any():
    backend = warmed(**PLAIN, max_drafts=3, row_index=True)
    plain = {(*SEEDS[0], *filters, None) for filters in FILTERS}
    assert [backend.kinds(layout) for layout in ((3, "flat"), (3, "padded"), (0, "flat"))] == [plain] * 3
    assert {m.row_index is None for _, m in backend.drafted} == {True, False}
    assert (len(backend.drafted), len(backend.verified)) == (22, 3 * 11)


def test_each_request_has_as_many_drafts_as_it_may():
    for target, drafts, metadata, _ in warmed(batch_sizes=[2, 5], max_drafts=3, logprobs=()).verified:
        requests, width = drafts.num_requests, drafts.max_drafts
        assert requests in (2, 5)
        assert len(target) == requests * (width + 1) == metadata.num_rows
        assert drafts.num_drafts == (width,) * requests
        if width:
            rows = speculative.row_index(drafts.cu_num_logits, len(target))
            assert torch.equal(metadata.row_index, rows)


@pytest.mark.parametrize(("most", "widths"), [(1, {1, 0}), (7, {7, 0}), (8, {8, 7, 0}), (20, {20, 15, 7, 0})])
def test_fewer_drafts_are_verified_where_another_power_of_two_holds_them(most, widths):
    backend = warmed(**PLAIN, max_drafts=most)
    assert backend.layouts == {*product(widths - {0}, ("flat", "padded")), (0, "flat")}


def test_logits_have_the_dtypes_and_the_stride_that_were_asked_for_and_those_of_drafts_too():
    dtypes = [torch.float32, torch.bfloat16]
    backend = warmed(dtypes=dtypes, batch_sizes=[3], row_stride=64, max_drafts=2, **PLAIN)
    pairs = [(target, drafts.draft_logits) for target, drafts, _, _ in backend.verified if drafts.max_drafts]
    seen = {(logits.dtype, logits.stride(), given.dtype, given.stride()) for logits, given in pairs}
    assert seen == {(dtype, (64, 1), dtype, (64, 1)) for dtype in dtypes}
    for target, given in pairs:
        assert not target.any()
        assert not given.any()
        assert target.data_ptr() % 16 == given.data_ptr() % 16 == 0
        assert target.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_the_modes_and_kinds_of_drafts_are_those_that_were_asked_for():
    found = {
        (mode, drafts.kind)
        for _, drafts, _, mode in warmed(**PLAIN, max_drafts=2).verified
        if drafts.max_drafts
    }
    assert found == {("rejection", "logits")}
    kinds, modes = ["probs", "chosen"], ["rejection", "coupled"]
    backend = warmed(**PLAIN, max_drafts=2, verify_modes=modes, draft_kinds=kinds)
    found = {(mode, drafts.kind, drafts.max_drafts) for _, drafts, _, mode in backend.verified}
    assert found == {
        ("rejection", "probs", 2),
        ("rejection", "chosen", 2),
        ("coupled", "probs", 2),
        ("rejection", "chosen", 0),
        ("coupled", "chosen", 0),
    }
    probs = {
        (q.dtype, q.is_contiguous(), bool((q.sum(-1) - 1).abs().max() < 1e-5))
        for _, drafts, _, _ in backend.verified
        if (q := drafts.draft_probs) is not None
    }
    assert probs == {(torch.float32, True, True)}


def test_ids_are_int64_and_padded_behind_the_drafts():
    rows = SamplingMetadata(temperature=torch.ones(2), row_index=torch.tensor([0, 0, 0, 0, 1]))
    backend = warmed(max_drafts=3, metadata=[rows])
    found = {layout_of(drafts): drafts.draft_token_ids for _, drafts, _, _ in backend.verified}
    assert found[3, "padded"].tolist() == [[0, 0, 0], [-1, -1, -1]]
    assert found[3, "flat"].tolist() == [0, 0, 0]
    assert {ids.dtype for ids in found.values()} == {torch.int64}


def test_kinds_that_nobody_serves_are_left_out():
    sampler, backend, _ = recording(PROBS_ALONE)
    sampler.warmup(100, **FLOAT32, max_drafts=3, draft_kinds=["probs"])
    plain = (False, False, False, None)
    assert backend.kinds((3, "flat")) == {(*seeds, *plain) for seeds in SEEDS[:2]}
    assert backend.kinds((3, "padded")) == {(*SEEDS[0], *plain)}
    assert backend.layouts == {(3, "flat"), (3, "padded")}  # of no drafts there are no probabilities
    assert {(m.facts.any_seeded, m.facts.any_top_p) for _, m in backend.drafted} == {(False, False)}


def test_what_is_beyond_the_chosen_one_is_verified_by_its_companion():
    sampler, backend, companion = recording(PROBS_ALONE, companion_capabilities=VERIFYING)
    sampler.warmup(100, **FLOAT32, max_drafts=3, draft_kinds=["probs"], logprobs=())
    assert len(backend.kinds((3, "flat"))) == 2
    # Of drafts of which the host knows less, too.
    assert companion.kinds((3, "flat")) >= backend.kinds((3, "flat"))
    assert {drafts.num_drafts for _, drafts, _, _ in backend.verified} == {(3,) * 4}
    assert {drafts.num_drafts for _, drafts, _, _ in companion.verified} == {(3,) * 4, None, (0,) * 4}
    assert {drafts.any_placeholder for _, drafts, _, _ in backend.verified} == {False}


def test_a_kind_of_drafts_that_nobody_serves_is_refused_in_words():
    sampler, backend, _ = recording(PROBS_ALONE)
    with pytest.raises(SamplerUnavailableError) as refused:
        sampler.warmup(100, **FLOAT32, max_drafts=3, draft_kinds=["logits"])
    assert str(refused.value) == (
        "'acme' cannot serve drafts with logits, which this batch may hold, and has no companion. Install one that can "
        "(`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds none, say so in "
        "SamplingMetadata.facts or Drafts."
    )
    assert backend.verified == []


def test_where_nobody_verifies_the_error_is_that_of_a_verification(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=OF_A_PLUGIN))
    sampler = tokendraw.load_sampler("acme", device="cpu")
    drawn = []
    selected(sampler).backend.object.sample = lambda *given, **options: drawn.append(given)
    errors = []
    for call in (
        lambda: sampler.verify(torch.zeros(1, 5), tokendraw.Drafts.from_lists([[]]), SamplingMetadata()),
        lambda: sampler.warmup(5, **FLOAT32, max_drafts=1),
    ):
        with pytest.raises(SamplerUnavailableError) as refused:
            call()
        errors.append(str(refused.value))
    assert errors[0] == errors[1]
    assert drawn == []


def test_batches_of_ones_own_are_drafted_and_verified_in_place_of_all_kinds():
    sampler, backend, _ = recording()
    half = SamplingMetadata(temperature=torch.ones(3, dtype=torch.float16))
    rows = SamplingMetadata(temperature=torch.ones(2), row_index=torch.tensor([0] * 4 + [1] * 3))
    anything = SamplingMetadata(facts=BatchFacts(any_greedy=False))
    sampler.warmup(
        10, dtypes=[torch.float32], batch_sizes=[2, 5], max_drafts=3, metadata=[half, rows, anything]
    )
    assert [len(logits) for logits, _ in backend.drafted] == [3, 7, 2, 5]
    flat = [
        (len(target), drafts.num_drafts, metadata.temperature is half.temperature)
        for target, drafts, metadata, _ in backend.verified
        if layout_of(drafts) == (3, "flat")
    ]
    assert flat == [
        (12, (3, 3, 3), True),
        (7, (3, 2), False),
        (8, (3, 3), False),
        (20, (3,) * 5, False),
    ]
    assert {len(target) for target, drafts, _, _ in backend.verified if not drafts.max_drafts} == {3, 7, 2, 5}
