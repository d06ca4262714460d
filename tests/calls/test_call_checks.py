"""Calls are held against the contract: an output's form always, the rest with ``TOKENDRAW_DEBUG=1``.

With the switch a fault is never hidden by a fallback; without it a wrong form counts as a call that raised.
"""

import gc
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import call_tables
from calling import CPU, drafting, loaded, recording, refused, selection_of
from fake_candidates import VERIFYING
from fake_dists import EVERYTHING, faulty
from tokendraw import (
    Drafts,
    InvalidInputError,
    LogprobsTensors,
    Need,
    PluginError,
    SamplerFallbackWarning,
    SamplerOutput,
    SamplingMetadata,
    SamplingParams,
    VerifyOutput,
    load_sampler,
)
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.row_methods import Sampler

PLAIN = SamplingMetadata.from_params([SamplingParams()] * 2)
ASKING = SamplingMetadata.from_params([SamplingParams(logprobs=2)] * 2)
IDS, VALUES, RANKS = (
    "torch.zeros(2, 3, dtype=torch.int64)",
    "torch.zeros(2, 3)",
    "torch.ones(2, dtype=torch.int64)",
)
MEND = "Mend the plugin, or set TOKENDRAW_DISABLE=acme."


def batch(dtype=torch.float32):
    """Rows in wider storage, with NaN and a negative zero."""
    wide = torch.zeros(2, 5, dtype=dtype)
    wide[0, :4] = torch.tensor([-0.0, 9.0, float("nan"), 1.0])
    return wide[:, :4]


def out(token_ids="logits.argmax(-1)", valid="torch.ones(2, dtype=torch.bool)", best="None", mass="None"):
    return f"return tokendraw.SamplerOutput({token_ids}, {valid}, {best}, {mass})"


def best(ids=IDS, values=VALUES, ranks=RANKS, mass="torch.zeros(2)"):
    return out(best=f"tokendraw.LogprobsTensors({ids}, {values}, {ranks})", mass=mass)


@pytest.fixture
def debug(monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DEBUG", "1")


@pytest.mark.parametrize("logprobs", [False, True])
def test_without_the_switch_a_wrong_form_counts_as_a_call_that_raised(dists, logprobs):
    fault, metadata = (best(ranks="None"), ASKING) if logprobs else ("return None", PLAIN)
    form = "logprobs.ranks [2] torch.int64 on cpu" if logprobs else "a SamplerOutput"
    found = f"return {form}, found NoneType"
    dists.add_plugin("acme", faulty("acme", fault))
    explicit, default = load_sampler("acme", device="cpu"), load_sampler(device="cpu")
    with pytest.raises(PluginError) as error:
        explicit.sample(batch(), metadata)
    assert str(error.value) == f"'acme' needs to {found}. {MEND}"
    assert error.value.__notes__ == [
        "'acme' was asked for by the argument sampler=, so no other one takes over. "
        "Leave out sampler= to let tokendraw choose."
    ]
    with pytest.warns(SamplerFallbackWarning) as told:
        default.sample(batch(), metadata)
    assert [str(warning.message) for warning in told] == [
        f"'acme' failed: its call needs to {found}. Using 'native' from here on. "
        "Set TOKENDRAW_DISABLE=acme to silence this."
    ]
    assert default.name == "native"


@pytest.mark.usefixtures("debug")
def test_with_the_switch_a_fault_of_a_default_choice_is_raised_too(dists):
    dists.add_plugin("acme", faulty("acme", "return None", after=1))
    sampler = load_sampler(device="cpu")
    sampler.sample(batch(), PLAIN)
    with pytest.raises(PluginError, match=r"^'acme' needs to return a SamplerOutput, found NoneType"):
        sampler.sample(batch(), PLAIN)
    assert sampler.name == "acme"


class Drawing:
    """Returns what a function of the logits does, or runs it as a fault before a sound draw."""

    def __init__(self, draw):
        self.draw = draw

    def sample(self, logits, metadata):
        return self.draw(logits)


def drawn(draw, logprobs=None, debug=True):
    """Draw by a function, at first soundly; a wrong form is found without the switch too."""
    backend = Drawing(lambda logits: output(logits, table(logprobs), torch.zeros(2)))
    sampler = Sampler(Negotiator(CPU, Need(), debug=debug, selected=[selection_of(loaded("acme", backend))]))
    metadata = SamplingMetadata.from_params([SamplingParams(logprobs=logprobs)] * 2)
    sampler.sample(batch(), metadata)
    backend.draw = draw
    sampler.sample(batch(), metadata)


def output(logits, best=None, mass=None, token_ids=None, valid=None):
    valid = torch.ones(2, dtype=torch.bool) if valid is None else valid
    return SamplerOutput(logits.argmax(-1) if token_ids is None else token_ids, valid, best, mass)


def table(n, **changes):
    """Logprobs of N tokens beside the drawn one."""
    if n is None:
        return None
    values = torch.zeros(2, 1 + n)
    fields = {
        "token_ids": values.long(),
        "logprobs": values,
        "ranks": torch.ones(2, dtype=torch.int64),
    } | changes
    return LogprobsTensors(**fields)


def raising(logits):
    logits[:, 0] = 1.0
    raise InvalidInputError("no")


def test_what_is_a_fault_of_a_plugin_in_which_words():
    faults = call_tables.Table(__file__, "faults.txt")
    assert faults.found(lambda: dict(globals())) == faults.text


@pytest.mark.usefixtures("debug")
def test_sound_calls_pass_and_nan_is_no_change():
    sampler = load_sampler("native", device="cpu")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows in (2, 0):
            metadata = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * rows)
            assert sampler.sample(batch(dtype)[:rows], metadata).token_ids.tolist() == [1, 0][:rows]


@pytest.mark.usefixtures("debug")
def test_raw_logits_may_lie_above_0(dists):
    raw = EVERYTHING.replace("'raw_logprobs'", "'raw_logits'")
    dists.add_plugin("acme", faulty("acme", best(values="torch.ones(2, 3)"), capabilities=raw))
    output = load_sampler("acme", device="cpu", logprobs_mode="raw_logits").sample(batch(), ASKING)
    assert output.logprobs.logprobs.tolist() == [[1.0] * 3] * 2


@pytest.mark.usefixtures("debug")
def test_during_a_capture_the_form_is_looked_at_and_no_value(dists, monkeypatch):
    dists.add_plugin("acme", faulty("acme", "logits.zero_()\n            if CALLED[1:]: return None"))
    sampler, logits = load_sampler(device="cpu"), batch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    sampler.sample(logits, PLAIN)
    assert logits.tolist() == [[0.0] * 4] * 2
    with pytest.raises(PluginError, match="found NoneType"):
        sampler.sample(logits, PLAIN)
    assert sampler.name == "acme"


@pytest.mark.gpu
@pytest.mark.usefixtures("debug")
def test_with_the_switch_a_graph_can_be_captured():
    sampler, logits = load_sampler("native", device="cuda"), batch().cuda()
    metadata = SamplingMetadata(temperature=torch.zeros(2, device="cuda"))
    drawn = sampler.sample(logits, metadata).token_ids.tolist()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = sampler.sample(logits, metadata)
    graph.replay()
    assert output.token_ids.tolist() == drawn


# Verifications


V, LISTS = 5, [[1, 2], [], [3]]
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
    mass: Any = None
    value: float = -1.0

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        if self.act is not None:
            self.act(target_logits, drafts)
        tokens = torch.tensor(self.tokens) if isinstance(self.tokens, tuple) else self.tokens
        output = VerifyOutput(tokens, torch.tensor(self.accepted, dtype=self.dtype), torch.ones(3) > 0)
        if metadata.facts.max_logprobs is None:
            return output
        values = torch.full((3, 3, 2), self.value)
        best = LogprobsTensors(values.long(), values, torch.ones(3, 3).long())
        return replace(output, logprobs=best, log_kept_mass=self.mass)

    def sample(self, logits, metadata, *, draft=False):
        return SamplerOutput(torch.full((len(logits),), 7), torch.ones(len(logits)) > 0)


def verified(backend, kind="chosen", *, debug=True, padded=False, **request):
    given = {name: tensor.clone() for name, tensor in GIVEN[kind].items()}
    drafts = Drafts.from_lists(LISTS, **given)
    if padded:
        ids = torch.tensor([[1, 2], [-1, -1], [3, -1]], dtype=torch.int32)
        drafts = Drafts.from_counts(ids, [2, 0, 1], **given)
    sampler = drafting(VERIFYING, backend, companion_capabilities=None, debug=debug)
    return sampler.verify(
        torch.zeros(6, V), drafts, SamplingMetadata.from_params([SamplingParams(**request)] * 3)
    )


def setting(name, index, value):
    def act(target_logits, drafts):
        tensor = target_logits if name == "target_logits" else getattr(drafts, name)
        tensor[index] = value

    return Faulty(act=act)


def failing(target_logits, drafts):
    target_logits[:2, 0] = 1.0
    raise RuntimeError("late")


@pytest.mark.parametrize("padded", [False, True])
def test_accepted_drafts_are_found_however_their_ids_lie(padded):
    sound = Faulty(((1, 4, -1), (4, -1, -1), (3, 0, -1)), (1, 0, 1))
    assert verified(sound, padded=padded).num_accepted.tolist() == [1, 0, 1]
    with pytest.raises(PluginError, match="found token 2 for draft 3 of request 2"):
        verified(replace(sound, tokens=((1, 4, -1), (4, -1, -1), (2, 0, -1))), padded=padded)


def test_without_the_switch_no_value_of_a_verification_or_a_draft_is_looked_at():
    wrong = Faulty(((1, 9, 9), (4, 9, 9), (4, 9, 9)))
    assert verified(wrong, debug=False).token_ids.tolist() == [[1, 9, 9], [4, 9, 9], [4, 9, 9]]
    sampler = drafting(VERIFYING, Faulty(), companion_capabilities=None)
    assert sampler.draft(torch.zeros(2, V), SamplingMetadata()).token_ids.tolist() == [7, 7]


# Calls like one that was checked


class Returning:
    """Returns the output set by a test."""

    output: Any = None

    def verify(self, *given, mode):
        return self.output

    def sample(self, logits, metadata, *, draft=False):
        return self.output


def test_the_form_of_every_output_is_checked():
    backend, right = Returning(), SamplerOutput(torch.zeros(2).long(), torch.ones(2) > 0)
    sampler = drafting(VERIFYING, backend, companion_capabilities=None)
    for output, wrong in ((right, None), (3, "int"), (right, None), ((1, 2), "tuple")):
        backend.output = output
        if wrong is None:
            assert sampler.draft(torch.zeros(2, V), PLAIN) is output
        else:
            with pytest.raises(
                PluginError, match=rf"^'acme' needs to return a SamplerOutput, found {wrong}\. Mend"
            ):
                sampler.draft(torch.zeros(2, V), PLAIN)
    with pytest.raises(PluginError, match=r"^'acme' needs to return a VerifyOutput, found tuple\. Mend"):
        sampler.verify(torch.zeros(6, V), Drafts.from_lists(LISTS), SamplingMetadata())


def test_logits_and_offsets_that_changed_are_refused_after_calls_that_were_right():
    (sampler, backend), logits = recording(), torch.zeros(2, V)
    for _ in range(2):
        sampler.sample(logits, PLAIN)
    message = "'metadata' needs as many rows as 'logits', 3, found 2."
    refused(message, InvalidInputError, lambda: sampler.sample(torch.zeros(3, V), PLAIN))
    assert len(backend.logits) == 2
    verifier = drafting(VERIFYING, Faulty(), companion_capabilities=None)
    offsets = torch.tensor([0, 3, 4, 6])
    drafts = Drafts(draft_token_ids=torch.zeros(3, 2).long(), cu_num_logits=offsets, max_drafts=2)
    for _ in range(2):
        verifier.verify(torch.zeros(6, V), drafts, SamplingMetadata())
    offsets[-1] = 9
    message = "'target_logits' needs 9 rows, as 'cu_num_logits' says last, found 6."
    refused(
        message, InvalidInputError, lambda: verifier.verify(torch.zeros(6, V), drafts, SamplingMetadata())
    )


@pytest.mark.slow
def test_metadata_that_is_kept_keeps_neither_logits_nor_samplers_alive():
    (sampler, backend), metadata = recording(), SamplingMetadata.from_params([SamplingParams()] * 2)
    logits = torch.zeros(2, V)
    sampler.sample(logits, metadata)
    gone = [weakref.ref(logits), weakref.ref(backend), weakref.ref(sampler)]
    backend.logits.clear()
    del logits, backend, sampler
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
