"""Warming up for verifications and edits: all that an engine may ask for runs before the first step, and no more."""

from dataclasses import astuple, dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch

import tokendraw
from calling import drafting, one_token, provider_of
from fake_candidates import FILTERS, SEEDS, VERIFYING
from tokendraw import LogprobsTensors, SamplerUnavailableError, SamplingMetadata, VerifyOutput
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.plugin import EDITS, ProcessCapabilities, VerifyCapabilities

pytestmark = pytest.mark.usefixtures("warmup_on_a_cpu")

FLOAT32 = {"dtypes": [torch.float32], "batch_sizes": [4]}
PLAIN = {"seeds": False, "logprobs": ()}


# Drafts and verifications


@dataclass
class Verifier:
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
        tokens = torch.full((drafts.num_requests, drafts.max_drafts + 1), PAD_TOKEN_ID)
        tokens[:, 0] = 0
        output = VerifyOutput(tokens, torch.zeros_like(tokens[:, 0], dtype=torch.int32), tokens[:, 0] == 0)
        if (most := metadata.facts.max_logprobs) is None:
            return output
        values = torch.zeros(*tokens.shape, 1 + (target_logits.shape[1] if most < 0 else most))
        best = LogprobsTensors(values.long(), values, torch.zeros_like(tokens))
        return replace(output, logprobs=best, log_kept_mass=torch.zeros(tokens.shape))

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


def layout_of(drafts):
    return (drafts.max_drafts, "padded" if drafts.draft_token_ids.dim() == 2 else "flat")


def warmed(capabilities=VERIFYING, companion_capabilities=None, **arguments):
    """Return the recording backends of a pair of verifiers after a warmup."""
    backend, other = Verifier(), Verifier()
    sampler = drafting(capabilities, backend, other, companion_capabilities=companion_capabilities)
    sampler.warmup(**({"vocab_size": 50, **FLOAT32} | arguments))
    return backend, other


def test_every_kind_is_drafted_and_verified_and_every_layout_with_seeds_and_without():
    backend, _ = warmed(max_drafts=3)
    expected = {(*seeds, *filters, n) for seeds in SEEDS for filters in FILTERS for n in (None, 5)}
    assert backend.kinds((3, "flat")) == expected
    ends = {kind for kind in expected if kind[:3] in (SEEDS[0], SEEDS[-1])}
    assert backend.kinds((3, "padded")) == backend.kinds((0, "flat")) == ends
    assert (len(backend.drafted), len(backend.verified)) == (88, 88 + 44 + 44)
    plain, _ = warmed(**PLAIN, max_drafts=3, row_index=True)  # parameters by slot are verified as any
    kinds = {(*SEEDS[0], *filters, None) for filters in FILTERS}
    assert [plain.kinds(layout) for layout in ((3, "flat"), (3, "padded"), (0, "flat"))] == [kinds] * 3
    assert {m.row_index is None for _, m in plain.drafted} == {True, False}
    assert (len(plain.drafted), len(plain.verified)) == (22, 3 * 11)
    sampler = tokendraw.load_sampler("native", device="cpu")
    sampler.warmup(20, **FLOAT32, **PLAIN)
    assert "verify" not in sampler._negotiator.selections  # without max_drafts nobody is asked who verifies


@pytest.mark.parametrize(("most", "widths"), [(1, {1, 0}), (7, {7, 0}), (8, {8, 7, 0}), (20, {20, 15, 7, 0})])
def test_fewer_drafts_are_verified_where_another_power_of_two_holds_them(most, widths):
    backend, _ = warmed(**PLAIN, max_drafts=most)
    layouts = {layout_of(drafts) for _, drafts, _, _ in backend.verified}
    assert layouts == {*product(widths - {0}, ("flat", "padded")), (0, "flat")}


PROBS_ALONE = VerifyCapabilities(verify_modes=("rejection",), draft_kinds=("probs",))
"""What a kernel takes that knows probabilities alone, as many drafts for every request, no seeds and no filters."""


def test_kinds_beyond_the_chosen_verifier_go_to_its_companion_or_are_left_out():
    backend, _ = warmed(PROBS_ALONE, max_drafts=3, draft_kinds=["probs"])
    plain = (False, False, False, None)
    assert backend.kinds((3, "flat")) == {(*seeds, *plain) for seeds in SEEDS[:2]}
    assert backend.kinds((3, "padded")) == {(*SEEDS[0], *plain)}
    assert backend.kinds((0, "flat")) == set()  # of no drafts there are no probabilities
    assert {(m.facts.any_seeded, m.facts.any_top_p) for _, m in backend.drafted} == {(False, False)}
    backend, other = warmed(PROBS_ALONE, VERIFYING, max_drafts=3, draft_kinds=["probs"], logprobs=())
    assert other.kinds((3, "flat")) >= backend.kinds(
        (3, "flat")
    )  # of drafts of which the host knows less, too
    assert {drafts.num_drafts for _, drafts, _, _ in backend.verified} == {(3,) * 4}
    assert {drafts.num_drafts for _, drafts, _, _ in other.verified} == {(3,) * 4, None, (0,) * 4}
    with pytest.raises(SamplerUnavailableError) as refused:
        warmed(PROBS_ALONE, max_drafts=3, draft_kinds=["logits"])
    assert str(refused.value) == (
        "'acme' cannot serve drafts with logits, which this batch may hold, and has no companion. Install one that can "
        "(`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds none, say so in "
        "SamplingMetadata.facts or Drafts."
    )


def test_batches_of_ones_own_are_drafted_and_verified_in_place_of_all_kinds():
    half = SamplingMetadata(temperature=torch.ones(3, dtype=torch.float16))
    rows = SamplingMetadata(temperature=torch.ones(2), row_index=torch.tensor([0] * 4 + [1] * 3))
    backend, _ = warmed(batch_sizes=[2, 5], max_drafts=3, metadata=[half, rows, SamplingMetadata()])
    assert [len(logits) for logits, _ in backend.drafted] == [3, 7, 2, 5]
    flat = [
        (len(target), drafts.num_drafts, metadata.temperature is half.temperature)
        for target, drafts, metadata, _ in backend.verified
        if layout_of(drafts) == (3, "flat")
    ]
    assert flat == [(12, (3, 3, 3), True), (7, (3, 2), False), (8, (3, 3), False), (20, (3,) * 5, False)]
    padded = [
        d.draft_token_ids
        for _, d, m, _ in backend.verified
        if layout_of(d) == (3, "padded") and m.num_rows == 7
    ]
    assert [ids.tolist() for ids in padded] == [[[0, 0, 0], [0, 0, -1]]]


# Edits


EVERYTHING = ProcessCapabilities(dtypes=("float32", "bfloat16", "float16"), drafts=True, edits=EDITS)
FACTS = [(penalty, penalty, *lists, late, late) for penalty, *lists, late in product((True, False), repeat=6)]
NOTHING = FACTS[-1]
INTS = (torch.int64, torch.int32)


@dataclass
class Editor:
    """A backend with (facts, has a bitmask, dtypes of the indices and how drafts lie, logits) of its calls."""

    calls: list = field(default_factory=list)

    def process(self, logits, slots, row_index, bitmask=None, drafts=None):
        form: tuple[Any, ...] = (row_index.dtype,)
        if drafts is not None:
            form += (drafts.draft_token_ids.dtype, drafts.cu_num_logits.dtype, drafts.draft_token_ids.dim())
            drafts.check(logits)
            drafts.check_values()
            assert drafts.num_drafts == (drafts.max_drafts,) * len(row_index)
        assert row_index.tolist() == list(range(len(row_index)))
        self.calls.append((astuple(slots.facts), bitmask is not None, form, logits, slots.edits))
        return logits


def edited(capabilities=EVERYTHING, *companion, **arguments):
    backend = Editor()
    processor = provider_of("process_logits", backend, capabilities, *companion)
    assert processor.warmup(**({"vocab_size": 40, "dtypes": [torch.float32]} | arguments)) > 0
    return backend.calls


def test_every_combination_of_edits_that_may_come_is_made_with_a_bitmask_and_without():
    calls = edited(batch_sizes=[3])
    assert {call[:2] for call in calls} == set(product(FACTS, (True, False))) - {(NOTHING, False)}
    assert ({call[2] for call in calls}, len(calls)) == ({(dtype,) for dtype in INTS}, 127 * 2)
    fewer = edited(batch_sizes=[1], bitmask=False, index_dtypes=[torch.int32])
    assert [call[:3] for call in fewer] == [(facts, False, (torch.int32,)) for facts in FACTS[:-1]]
    dtypes = [torch.float32, torch.bfloat16]
    logits = [call[3] for call in edited(dtypes=dtypes, batch_sizes=[7, 2], row_stride=64)]
    found = {(each.dtype, tuple(each.shape), each.stride()) for each in logits}
    assert found == {(dtype, (rows, 40), (64, 1)) for dtype in dtypes for rows in (2, 7)}


@pytest.mark.slow
def test_with_drafts_every_combination_of_dtypes_comes_in_one_row_and_in_padded_ones():
    forms = {(dtype,) for dtype in INTS} | set(product(INTS, INTS, INTS, (1, 2)))
    calls = edited(batch_sizes=[1], max_drafts=2)
    assert {(call[2], *call[:2]) for call in calls} == set(product(forms, FACTS, (True, False))) - set(
        product(forms, {NOTHING}, {False})
    )
    assert len(calls) == 18 * 127
    processor = tokendraw.load("process_logits", "native", device="cpu")  # edits what a warmup makes up
    assert (
        processor.warmup(40, dtypes=[torch.bfloat16], batch_sizes=[2], index_dtypes=INTS[1:], max_drafts=2)
        > 0
    )
    assert processor.stats() == {}


@pytest.mark.parametrize("has_companion", [True, False])
def test_a_warmup_edits_by_the_chosen_processor_and_then_by_its_companion(has_companion):
    edits, other = ("logit_bias", "min_tokens", "presence_penalty"), Editor()
    beside = (other, EVERYTHING) if has_companion else ()
    calls = edited(ProcessCapabilities(edits=edits), *beside, batch_sizes=[1], index_dtypes=[torch.int64])
    combinations = list(product((False, True), repeat=3))[1:]
    asked = {frozenset(call[4]) for call in calls}
    assert asked == {
        frozenset(name for name, on in zip(edits, bits, strict=True) if on) for bits in combinations
    }
    assert bool(other.calls) == has_companion
    assert all({*call[4], *(("bitmask",) if call[1] else ())} - {*edits} for call in other.calls)
