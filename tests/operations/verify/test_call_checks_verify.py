"""Drafts and verifications are held against the contract: their form always, the rest with ``TOKENDRAW_DEBUG=1``."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from calling import drafting
from fake_candidates import VERIFYING
from tokendraw import (
    Drafts,
    InvalidInputError,
    LogprobsTensors,
    PluginError,
    SamplerOutput,
    SamplingMetadata,
    SamplingParams,
    VerifyOutput,
)

IDS = [[1, 2], [], [3]]
V = 5
GIVEN = {
    "logits": {"draft_logits": torch.zeros(3, V, dtype=torch.bfloat16)},
    "probs": {"draft_probs": torch.full((3, V), 0.2, dtype=torch.float64)},
    "chosen": {},
}


@dataclass
class Faulty:
    """Accepts a draft of the first request and emits token 4, or runs a given fault."""

    tokens: Any = ((1, 4, -1), (4, -1, -1), (4, -1, -1))
    accepted: Any = (1, 0, 0)
    dtype: Any = torch.int32
    act: Any = None

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        if self.act is not None:
            self.act(target_logits, drafts)
        tokens = torch.tensor(self.tokens) if isinstance(self.tokens, tuple) else self.tokens
        valid = torch.ones(drafts.num_requests, dtype=torch.bool)
        return VerifyOutput(tokens, torch.tensor(self.accepted, dtype=self.dtype), valid)

    def sample(self, logits, metadata, *, draft=False):
        if self.act is not None:
            self.act(logits, None)
        return SamplerOutput(torch.full((len(logits),), 7), torch.ones(len(logits), dtype=torch.bool))


def verified(backend, kind="chosen", *, debug=True, padded=False):
    given = {name: tensor.clone() for name, tensor in GIVEN[kind].items()}
    drafts = Drafts.from_lists(IDS, **given)
    if padded:
        ids = torch.tensor([[1, 2], [-1, -1], [3, -1]], dtype=torch.int32)
        drafts = Drafts.from_counts(ids, [2, 0, 1], **given)
    sampler = drafting(VERIFYING, backend, companion_capabilities=None, debug=debug)
    return sampler.verify(torch.zeros(6, V), drafts, SamplingMetadata())


def setting(name, index, value):
    def act(target_logits, drafts):
        tensor = target_logits if name == "target_logits" else getattr(drafts, name)
        tensor[index] = value

    return act


def failing(target_logits, drafts):
    target_logits[0, 0] = 1.0
    raise RuntimeError("late")


FAULTS = {
    "nothing": (Faulty(None), "return token_ids [3, 3] torch.int64 on cpu, found NoneType"),
    "a token too few": (
        Faulty(((1, 4), (4, -1), (4, -1))),
        "return token_ids [3, 3] torch.int64 on cpu, found [3, 2] torch.int64 on cpu",
    ),
    "int64 for num_accepted": (
        Faulty(dtype=torch.int64),
        "return num_accepted [3] torch.int32 on cpu, found [3] torch.int64 on cpu",
    ),
    "more accepted than drafted": (
        Faulty(((1, 4, -1), (4, 4, -1), (4, -1, -1)), (1, 1, 0)),
        "return num_accepted in [0, 0], found 1 for request 1 of 3",
    ),
    "fewer accepted than none": (
        Faulty(accepted=(1, 0, -1)),
        "return num_accepted in [0, 1], found -1 for request 2 of 3",
    ),
    "another token in the place of an accepted draft": (
        Faulty(((2, 4, -1), (4, -1, -1), (4, -1, -1))),
        "return the accepted drafts, found token 2 for draft 1 of request 0",
    ),
    "an id of V": (
        Faulty(((1, 4, -1), (4, -1, -1), (5, -1, -1))),
        "return token_ids in [0, 5) up to the last token of a request, found 5 as token 0 of the 1 of request 2",
    ),
    "no token behind the accepted ones": (
        Faulty(((1, -1, -1), (4, -1, -1), (4, -1, -1))),
        "return token_ids in [0, 5) up to the last token of a request, found -1 as token 1 of the 2 of request 0",
    ),
    "a token more": (
        Faulty(((1, 4, -1), (4, 0, -1), (4, -1, -1))),
        "return token_ids -1 behind the last token of a request, found 0 behind the 1 of request 1",
    ),
    "changed logits": (
        Faulty(act=setting("target_logits", (4, 1), 1.0)),
        "leave target_logits unmodified, found 1 of 6 rows changed",
    ),
    "changed logits and an error": (
        Faulty(act=failing),
        "leave target_logits unmodified, found 1 of 6 rows changed",
    ),
    "changed ids": (
        Faulty(act=setting("draft_token_ids", -1, -1)),
        "leave draft_token_ids unmodified, found 1 of 3 elements changed",
    ),
    "changed offsets": (
        Faulty(act=setting("cu_num_logits", 3, 5)),
        "leave cu_num_logits unmodified, found 1 of 4 elements changed",
    ),
}


@pytest.mark.parametrize(("backend", "found"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_a_verification_is_an_error_that_names_the_sampler(backend, found):
    with pytest.raises(PluginError) as error:
        verified(backend)
    assert str(error.value) == f"'acme' needs to {found}. Mend the plugin, or set TOKENDRAW_DISABLE=acme."


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_so_is_a_change_of_what_the_drafts_were_drawn_from(kind):
    name = f"draft_{kind}"
    with pytest.raises(PluginError, match=f"to leave {name} unmodified, found 1 of 3 rows changed"):
        verified(Faulty(act=setting(name, (1, 2), -0.0 if kind == "logits" else 0.3)), kind)


@pytest.mark.parametrize("padded", [False, True])
def test_accepted_drafts_are_found_however_their_ids_lie(padded):
    sound = Faulty(((1, 4, -1), (4, -1, -1), (3, 0, -1)), (1, 0, 1))
    assert verified(sound, padded=padded).num_accepted.tolist() == [1, 0, 1]
    with pytest.raises(PluginError, match="found token 2 for draft 3 of request 2"):
        verified(Faulty(((1, 4, -1), (4, -1, -1), (2, 0, -1)), (1, 0, 1)), padded=padded)


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("kind", GIVEN)
def test_sound_verifications_pass(kind, mode):
    sampler = drafting(VERIFYING, debug=True)
    drafts = Drafts.from_lists([[1, -1], [], [9]], **GIVEN[kind])
    target = torch.randn(6, V, generator=torch.Generator().manual_seed(1))
    target[2, 1] = float("nan")
    params = [SamplingParams(temperature=0.5, logprobs=1)] * 3
    output = sampler.verify(target, drafts, SamplingMetadata.from_params(params), mode=mode)
    assert output.token_ids.shape == (3, 3)
    empty = Drafts.from_lists([])
    assert sampler.verify(target[:0], empty, SamplingMetadata(), mode=mode).token_ids.shape == (0, 1)


def test_offsets_that_changed_and_outputs_are_checked_after_calls_that_were_right():
    sound = Faulty(((1, 4, -1), (4, -1, -1), (4, -1, -1)))
    sampler = drafting(VERIFYING, sound, companion_capabilities=None)
    target, offsets, metadata = torch.zeros(6, V), torch.tensor([0, 3, 4, 6]), SamplingMetadata()
    untold = Drafts(draft_token_ids=torch.zeros(3, 2).long(), cu_num_logits=offsets, max_drafts=2)
    for drafts in (untold, untold, Drafts.from_lists(IDS)):
        sampler.verify(target, drafts, metadata)
    offsets[-1] = 9
    with pytest.raises(InvalidInputError) as refused:
        sampler.verify(target, untold, metadata)
    assert str(refused.value) == "'target_logits' needs 9 rows, as 'cu_num_logits' says last, found 6."
    sound.tokens = 3
    with pytest.raises(PluginError, match="'acme' needs to return token_ids"):
        sampler.verify(target, drafts, metadata)


def test_without_the_switch_no_value_is_looked_at():
    wrong = Faulty(((1, 9, 9), (4, 9, 9), (4, 9, 9)))
    assert verified(wrong, debug=False).token_ids.tolist() == [[1, 9, 9], [4, 9, 9], [4, 9, 9]]
    sampler = drafting(VERIFYING, Faulty(), companion_capabilities=None)
    assert sampler.draft(torch.zeros(2, V), SamplingMetadata()).token_ids.tolist() == [7, 7]


def test_so_are_the_types_of_what_is_returned():
    class Returning:
        def verify(self, *given, mode):
            return 1, 2, 3

        def sample(self, logits, metadata, *, draft=False):
            return logits.argmax(-1)

    sampler = drafting(VERIFYING, Returning(), companion_capabilities=None)
    with pytest.raises(PluginError, match=r"^'acme' needs to return a VerifyOutput, found tuple\. Mend"):
        sampler.verify(torch.zeros(6, V), Drafts.from_lists(IDS), SamplingMetadata())
    with pytest.raises(PluginError, match=r"^'acme' needs to return a SamplerOutput, found Tensor\. Mend"):
        sampler.draft(torch.zeros(2, V), SamplingMetadata())


@dataclass
class Described(Faulty):
    """The same with logprobs of N = 1 beside the tokens."""

    mass: Any = None
    value: float = -1.0

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        output = super().verify(target_logits, drafts, metadata, mode=mode)
        values = torch.full((3, 3, 2), self.value)
        best = LogprobsTensors(values.long(), values, torch.ones(3, 3).long())
        return replace(output, logprobs=best, log_kept_mass=self.mass)


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        (Described(), "log_kept_mass [3, 3] torch.float32 on cpu, found NoneType"),
        (
            Described(mass=torch.zeros(6)),
            "log_kept_mass [3, 3] torch.float32 on cpu, found [6] torch.float32 on cpu",
        ),
        (
            Described(mass=torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e-7, 0.0], [0.0, 0.0, 0.0]])),
            "log_kept_mass at most 0 in the mode raw_logprobs, found 1e-07 at [1, 1] of [3, 3]",
        ),
        (
            Described(mass=torch.zeros(3, 3), value=1.0),
            "logprobs.logprobs at most 0 in the mode raw_logprobs, found 1 at [0, 0, 0] of [3, 3, 2]",
        ),
    ],
    ids=["no kept mass", "kept masses of rows", "a kept mass above 0", "a log-probability above 0"],
)
def test_so_are_the_kept_masses_and_the_bound_of_both(backend, found):
    sampler = drafting(VERIFYING, backend, companion_capabilities=None, debug=True)
    asking = SamplingMetadata.from_params([SamplingParams(logprobs=1)] * 3)
    with pytest.raises(PluginError) as error:
        sampler.verify(torch.zeros(6, V), Drafts.from_lists(IDS), asking)
    assert str(error.value) == (
        f"'acme' needs to return {found}. Mend the plugin, or set TOKENDRAW_DISABLE=acme."
    )
