"""vLLM's V2 sampler through tokendraw: what it draws for random requests, and what it leaves to vLLM.

A stand-in takes the place of vLLM: its own runner is in test_vllm_runner.py, its sampler in test_vllm_v2_itself.py.
"""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Final

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import tokendraw
import tokendraw_vllm
from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw_vllm import _v2_edits
from vllm_stand_in import DraftingEngine, V2Engine, request

V, K, SLOTS = 40, 3, 8
VLLMS = 0
"""The token that the stand-in of vLLM draws, and the one that it emits for a request with drafts."""
FIELDS = {
    "temperature": (0.0, 0.6, 2.0),
    "top_k": (3, 12, 30),
    "top_p": (0.5, 0.9),
    "min_p": (0.05, 0.2),
    "seed": (0, 11, 2**40),
}
EDITS = (
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.5, "presence_penalty": 0.3},
    {"frequency_penalty": 1.1},
    {"presence_penalty": 2.0},
    {"logit_bias": {3: 2.5, 9: -4.0}},
    {"allowed_token_ids": [1, 4, 9, 17, 30]},
    {"bad_words_token_ids": [[5], [9, 4], [30, 30]]},
    {"min_tokens": 6, "all_stop_token_ids": {4, 9, 17}},
)
RULES = (
    {"top_n_sigma": 1.0, "typical_p": 0.7},
    {"epsilon_cutoff": 0.05, "p_less": 1},
    {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    {"filter_order": "joint"},
    {"filter_order": "temperature_last"},
)
EDITED_BY_VLLM = (
    {"biased": 3},
    {"min_tokens": 2, "all_stop_token_ids": {4}, "structured_outputs": "a grammar"},
    {"logit_bias": {3: float("inf")}},
    {"bad_words_token_ids": [[1] * 33]},
)
"""A processor of its own, and values that tokendraw's edits do not take."""
NAMES = {"bad_words_token_ids": "bad_words", "all_stop_token_ids": "stop_token_ids"}
"""vLLM's names of parameters that have another one in tokendraw."""
EDIT_NAMES = {name for edits in (*EDITS, *EDITED_BY_VLLM) for name in edits}


@pytest.fixture
def calls(vllm, monkeypatch):
    """What tokendraw is called with: (logits, metadata) of draws, (mode, kind, dtype) of verifications."""
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    tokendraw_vllm.register()
    noted, sample, verify = SimpleNamespace(draws=[], verifications=[]), *methods("sample", "verify")

    def noted_sample(self, logits, metadata):
        noted.draws.append((logits, metadata))
        return sample(self, logits, metadata)

    def noted_verify(self, logits, drafts, metadata, *, mode):
        noted.verifications.append((mode, drafts.kind, logits.dtype))
        return verify(self, logits, drafts, metadata, mode=mode)

    monkeypatch.setattr(tokendraw.Sampler, "sample", noted_sample)
    monkeypatch.setattr(tokendraw.Sampler, "verify", noted_verify)
    return noted


def methods(*names):
    return [getattr(tokendraw.Sampler, name) for name in names]


SAMPLE, VERIFY = methods("sample", "verify")


def loaded(**options):
    """tokendraw without vLLM: its sampler, and its processor of logits."""
    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode="processed_logprobs", **options)
    return sampler, tokendraw.load("process_logits", "native", device="cpu")


def logits_at(position):
    """The model's logits [V] at a position, the same for all requests."""
    generator = torch.Generator().manual_seed(position)
    return (torch.randn(V, generator=generator) * 2.0).to(torch.bfloat16)


class Random(random.Random):
    """Makes requests by vLLM's names. Few rules, so that a slot with one stands beside one that had it."""

    def __init__(self, name):
        super().__init__(name)
        self.rules = self.sample(RULES, 2)

    def asked(self):
        fields = {name: self.choice(values) for name, values in FIELDS.items() if self.random() < 0.4}
        if fields.get("temperature") == 0.0:  # vLLM takes their filters from greedy requests
            fields = {name: value for name, value in fields.items() if name in ("temperature", "seed")}
        if self.random() < 0.4:
            fields |= self.choice(EDITS) | self.choice(EDITS)
        if self.random() < 0.5:
            rules = self.choice(self.rules)
            fields["extra_args"] = {"tokendraw": rules}
            if rules.keys() & {"top_n_sigma", "p_less"}:
                fields.pop("min_p", None)
        if self.random() < 0.12:
            fields |= self.choice(EDITED_BY_VLLM)
        return fields | ({"logprobs": 1} if self.random() < 0.5 else {})

    def tokens(self, least, most):
        return [self.randrange(V) for _ in range(self.randint(least, most))]


class Model:
    """An engine, its requests, and what tokendraw draws for each of them alone."""

    def __init__(self, rng, engine, *, mode, needs=None, invariant=False):
        """Hold a new engine.

        :param mode: in which drafts are verified; None: there are none.
        :param needs: what vLLM reads filtered logits for, of :data:`OPTIONS`.
        """
        self.rng, self.engine = rng, engine
        self.mode, self.needs, self.invariant = mode, needs, invariant
        self.asked, self.prompts = {}, {}
        self.sampler, self.processor = loaded()

    def add(self):
        slot, asked = self.rng.randrange(SLOTS), self.rng.asked()
        if slot in self.asked and self.rng.random() < 0.5:
            self.engine.remove(slot)  # else another request is added in its place
        prompt, output = self.rng.tokens(1, 5), self.rng.tokens(0, 2) if self.rng.random() < 0.3 else []
        self.asked[slot], self.prompts[slot] = asked, len(prompt)
        self.engine.add(slot, request(**asked), prompt, output)
        is_edited = asked.keys() & (EDIT_NAMES | FIELDS.keys()) - {"seed"}
        assert self.engine.sampler.needs_logits_processing[slot] == bool(is_edited - {"temperature"}) or (
            asked.get("temperature") not in (None, 0.0)
        )

    def params(self, slot, *, with_edits):
        """The request in tokendraw's names; without a seed it has the one that vLLM draws for it."""
        asked = {"seed": 12345 + slot} | self.asked[slot]
        rules = dict(asked.pop("extra_args", {}).get("tokendraw", {}))
        filters = {
            name: rules.pop(name) for name in [*rules] if name in ("top_n_sigma", "epsilon_cutoff", "p_less")
        }
        for name in ("logprobs", "biased", "structured_outputs", *(() if with_edits else EDIT_NAMES)):
            asked.pop(name, None)
        asked = {NAMES.get(name, name): value for name, value in asked.items()}
        if "stop_token_ids" in asked:
            asked["stop_token_ids"] = sorted(asked["stop_token_ids"])
        return SamplingParams(**asked, **rules, filters=filters or None)

    def alone(self, slot, history, *, with_edits):
        """Edited logits [V], the token, and the filtered logits [V] of a request with these tokens."""
        row, requests = torch.zeros(1, dtype=torch.int64), tokendraw.RequestSlots(1, 128, V)
        logits = logits_at(len(history) - 1).float()[None].clone()
        params, count = self.params(slot, with_edits=False), self.prompts[slot]
        if with_edits:
            requests.add(0, self.params(slot, with_edits=True), history[:count], history[count:])
            logits = self.processor.process(logits, requests, row)
        elif (biased := self.asked[slot].get("biased")) is not None:
            logits[0, biased] += 1000.0
        described = SamplingMetadata.from_params([replace(params, logprobs=-1)], positions=[len(history) - 1])
        output = SAMPLE(self.sampler, logits, described)
        token, best = int(output.token_ids), output.logprobs
        if params.temperature == 0.0:
            return logits[0], token, logits[0]
        kept = (
            torch.full((V,), -torch.inf).scatter_(0, best.token_ids[0, 1:], best.logprobs[0, 1:]) > -torch.inf
        )
        return logits[0], token, (logits[0] / params.temperature).masked_fill(~kept, -torch.inf)

    def is_greedy(self, slots):
        return all(self.asked[slot].get("temperature") == 0.0 for slot in slots)

    def edited_by_vllm(self, slots):
        return self.invariant or any(
            edits.items() <= self.asked[slot].items() for slot in slots for edits in EDITED_BY_VLLM
        )

    def edited(self, slots):
        """Those that tokendraw edits."""
        return [slot for slot in slots if self.asked[slot].keys() & EDIT_NAMES]

    def needs_processed(self, slots):
        """Whether vLLM reads the filtered logits of a step."""
        return self.needs == "masks" or (
            self.needs == "logprobs" and any("logprobs" in self.asked[slot] for slot in slots)
        )

    def step(self, calls):
        """A step without drafts of some requests, some of which are in the middle of their prompts."""
        engine, rng = self.engine, self.rng
        slots = rng.sample([*self.asked], rng.randint(1, len(self.asked)))
        prefilled = {
            slot: rng.randint(1, self.prompts[slot] - 1)
            for slot in slots
            if len(engine.tokens[slot]) == self.prompts[slot] > 1 and rng.random() < 0.3
        }
        seen = {slot: engine.tokens[slot][: prefilled.get(slot, 128)] for slot in slots}
        by_vllm, greedy = self.edited_by_vllm(slots), self.is_greedy(slots)
        alone = [self.alone(slot, seen[slot], with_edits=not by_vllm) for slot in slots]
        needs, orders = (
            self.needs_processed(slots),
            any(self.asks_for(slot, "filter_order") for slot in slots),
        )
        draws_itself = greedy or (by_vllm and needs and orders)
        rows = torch.stack([logits_at(len(seen[slot]) - 1) for slot in slots])
        calls.draws.clear()
        found = engine.step(rows, slots, prefilled)
        found_calls = [(logits.dtype, len(logits)) for logits, _ in calls.draws]
        if draws_itself:
            assert found_calls == []
            if not greedy:
                best = [self.asked[slot].get("temperature") == 0.0 for slot in slots]
                assert [t for t, b in zip(found, best, strict=True) if not b] == [VLLMS] * best.count(False)
            return
        expected = [token for _, token, _ in alone]
        decoded = [place for place, slot in enumerate(slots) if slot not in prefilled]
        assert [found[place] for place in decoded] == [expected[place] for place in decoded]
        edited = [] if by_vllm else self.edited(slots)
        if by_vllm or len(edited) == len(slots):
            is_copied = engine.sampler.needs_logits_processing[slots].any()
            assert found_calls == [(torch.float32 if is_copied else torch.bfloat16, len(slots))]
        else:
            of_edited = [(torch.float32, len(edited))] if edited else []
            assert found_calls == [(torch.bfloat16, len(slots)), *of_edited]
        if not by_vllm:
            assert_facts(calls.draws[0][1], [self.params(slot, with_edits=False) for slot in slots])
        if needs:
            processed = torch.stack([row for _, _, row in alone])[decoded]
            torch.testing.assert_close(engine.processed[decoded], processed, rtol=2e-6, atol=2e-6)
        elif not by_vllm:
            assert engine.processed is rows

    def asks_for(self, slot, rule):
        return rule in self.asked[slot].get("extra_args", {}).get("tokendraw", {})

    def verify(self, calls):
        """A step with drafts of some requests: some right, some wrong, some missing."""
        engine, rng = self.engine, self.rng
        slots = rng.sample([*self.asked], rng.randint(1, len(self.asked)))
        by_vllm, is_drawn = self.edited_by_vllm(slots), self.mode != "coupled"
        drafts, alone, first = [], [], []
        for slot in slots:
            history, own, wanted = [*engine.tokens[slot]], [], rng.choice((0, 1, K, K))
            first.append(len(history) - 1)
            for step in range(wanted + 1):
                alone.append(self.alone(slot, history, with_edits=not by_vllm))
                if step == wanted:
                    break
                right = alone[-1][1] if rng.random() < 0.7 else rng.randrange(V)
                own.append(-1 if rng.random() < 0.05 and not self.edited([slot]) else right)
                history.append(own[-1])
            drafts.append(own)
        rows = torch.cat([
            torch.stack([logits_at(at + step) for step in range(len(own) + 1)])
            for at, own in zip(first, drafts, strict=True)
        ])  # fmt: skip
        draft_logits = torch.randn(SLOTS, K, V) if is_drawn else None
        is_plain = not any(self.asked[slot].keys() - {"logprobs", "temperature"} for slot in slots)
        calls.verifications.clear()
        emitted = engine.verify(rows, slots, drafts, draft_logits=draft_logits)
        if by_vllm or is_plain or self.is_greedy(slots):
            assert (emitted, calls.verifications) == ([[VLLMS]] * len(slots), [])
            return
        metadata = SamplingMetadata.from_params(
            [self.params(slot, with_edits=False) for slot in slots], positions=first
        )
        logits = torch.stack([logits for logits, _, _ in alone])
        probs = None
        if is_drawn:
            rows_of_drafts = [
                torch.softmax(
                    draft_logits[slot, step] / (self.params(slot, with_edits=False).temperature or 1.0), 0
                )
                for slot, own in zip(slots, drafts, strict=True)
                for step in range(len(own))
            ]
            probs = torch.stack(rows_of_drafts) if rows_of_drafts else torch.empty(0, V)
        output = VERIFY(
            self.sampler, logits, Drafts.from_lists(drafts, draft_probs=probs), metadata, mode=self.mode
        )
        counts = (output.num_accepted + 1).tolist()
        expected = [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]
        assert emitted == expected
        if not is_drawn:  # the tokens of steps without drafts
            tokens = iter([token for _, token, _ in alone])
            for own, found in zip(drafts, emitted, strict=True):
                text = [next(tokens) for _ in range(len(own) + 1)]
                right = next((i for i, draft in enumerate(own) if draft != text[i]), len(own))
                assert found == text[: right + 1]
        dtype = torch.float32 if self.edited(slots) else torch.bfloat16
        assert calls.verifications == [(self.mode, "probs" if is_drawn else "chosen", dtype)]
        if self.needs_processed(slots):
            processed = torch.stack([row for _, _, row in alone])
            torch.testing.assert_close(engine.processed, processed, rtol=2e-6, atol=2e-6)
        else:
            assert engine.processed is rows


def assert_facts(metadata, params):
    """The host's facts of a batch are those of its requests."""
    needed, found = SamplingMetadata.from_params(params, positions=[0] * len(params)).facts, metadata.facts
    orders = {
        f"any_{name}": getattr(needed, f"any_{name}") for name in ("top_k_first", "joint", "temperature_last")
    }
    assert replace(found, **orders) == needed
    assert all(
        getattr(found, name) >= value for name, value in orders.items()
    )  # orders may count where they need not


OPTIONS = {
    None: {},
    "masks": {"return_sampling_mask": True},
    "logprobs": {"logprobs_mode": "processed_logprobs"},
}
"""What vLLM reads filtered logits for."""


@pytest.mark.parametrize("needs", OPTIONS)
@pytest.mark.parametrize("mode", [None, "coupled", "rejection", "block"])
def test_requests_draw_what_tokendraw_draws_for_each_alone(calls, needs, mode):
    """In steps of any requests, with their edits, rules and drafts, from the logits that vLLM would read."""
    options = OPTIONS[needs]
    if mode is None:
        engine = V2Engine(V, **options)
    else:
        method = "block" if mode == "block" else "standard"
        engine = DraftingEngine(V, K, method=method, drawn=mode != "coupled", dtype=torch.bfloat16, **options)
    live(calls, Random(f"{needs} {mode}"), engine, mode=mode, needs=needs)


def live(calls, rng, engine, **facts):
    """Add requests to an engine, and step."""
    torch.manual_seed(rng.randrange(100))
    model = Model(rng, engine, **facts)
    for step in range(36):
        if step < 3 or rng.random() < 0.3:
            model.add()
        elif model.mode is not None and rng.random() < 0.7:
            model.verify(calls)
        else:
            model.step(calls)


def test_with_batch_invariance_vllm_edits_and_every_batch_is_drawn_behind_it(calls, monkeypatch):
    import vllm.envs

    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True)
    live(calls, Random("invariant"), V2Engine(V), mode=None, invariant=True)


# What is left to vLLM.


def test_watermarks_win_and_batches_without_any_are_drawn_behind_vllms_edits(calls):
    engine = V2Engine(V, kind="Watermarking")
    engine.add(0, request(temperature=0.7, top_k=1))
    engine.sampler.watermarks = True
    assert engine.draw(logits_at(3)[None], [0], [3]) == [1]
    assert calls.draws == []
    engine.sampler.watermarks = False
    assert engine.draw(logits_at(3)[None], [0], [3]) == [int(logits_at(3).float().argmax())]
    assert [logits.dtype for logits, _ in calls.draws] == [torch.float32]


@pytest.mark.parametrize("append_fails", [False, True])
def test_a_request_whose_steps_were_drawn_elsewhere_is_edited_by_vllm(
    calls, log_lines, monkeypatch, append_fails
):
    """Also where the tokens of the others cannot be appended in the same step."""
    engine, rows = V2Engine(V), torch.stack([logits_at(0)] * 2)
    for slot in (2, 3):
        engine.add(slot, request(seed=1, presence_penalty=2.0))
    engine.step(rows, [2, 3])
    engine.tokens[2] += [3, 3]
    if append_fails:
        monkeypatch.setattr(engine.sampler._tokendraw._edits._mirror.requests, "append", None)
    engine.step(rows, [2, 3])
    may_draw_raw = engine.sampler._tokendraw.may_draw_raw
    assert [may_draw_raw(np.array([slot])) for slot in (2, 3)] == [False, not append_fails]
    unknown = "left alone: steps of a request were drawn elsewhere, so its tokens are unknown"
    failed = "is vLLM's own again: 'native' raised TypeError: 'NoneType' object is not callable"
    assert log_lines()[-1] == ("WARNING", f"tokendraw: V2 editing {failed if append_fails else unknown}")


def test_requests_beyond_the_limit_of_memory_are_edited_by_vllm_until_others_end(calls, monkeypatch):
    monkeypatch.setattr(_v2_edits, "MAX_MEMORY_BYTES", 2 * _v2_edits.request_bytes(128, V))
    engine = V2Engine(V)
    for slot in (0, 1, 2):
        engine.add(slot, request(seed=1, presence_penalty=1.0))
    may_draw_raw = engine.sampler._tokendraw.may_draw_raw
    assert [may_draw_raw(np.array([slot])) for slot in (0, 1, 2)] == [True, True, False]
    engine.remove(0)
    engine.add(2, request(seed=1, presence_penalty=1.0))
    assert [may_draw_raw(np.array([slot])) for slot in (1, 2)] == [True, True]


@pytest.mark.parametrize(
    ("options", "attributes", "draft_vocabulary"),
    [
        ({"method": "synthetic"}, {}, None),
        ({"method": "fly"}, {}, None),
        ({}, {"watermark_key": 7}, None),
        ({}, {}, V - 8),
    ],
)
def test_other_ways_to_judge_drafts_are_vllms(calls, options, attributes, draft_vocabulary):
    engine = DraftingEngine(V, K, **options)
    vars(engine.rejection_sampler).update(attributes)
    engine.add(0, request(seed=1))
    draft_logits = draft_vocabulary and torch.zeros(SLOTS, K, draft_vocabulary)
    assert engine.verify(torch.stack([logits_at(0)] * 2), [0], [[1]], draft_logits=draft_logits) == [[VLLMS]]
    assert calls.verifications == []


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("asked", "is_plain"),
    [
        ({}, True),
        ({"seed": 3}, False),
        ({"extra_args": {"tokendraw": {"filter_order": "top_k_first"}}}, True),
    ],
)
def test_many_drafts_without_filters_and_seeds_are_verified_and_drawn_ones_are_left_to_vllm(
    calls, drawn, asked, is_plain
):
    """The model above has batches of few rows, which are left to vLLM either way."""
    engine, requests = DraftingEngine(V, 1, drawn=drawn, slots=200), 200
    for slot in range(requests):
        engine.add(slot, request(**(asked if slot == 5 else {})))
    rows = torch.stack([logits_at(0), logits_at(1)] * requests)
    draft_logits = torch.zeros(requests, 1, V) if drawn else None
    engine.verify(rows, list(range(requests)), [[7]] * requests, draft_logits=draft_logits)
    assert len(calls.verifications) == (0 if drawn and is_plain else 1)


# The device, and memory of the host.


def test_a_sampler_without_row_seeds_gets_users_seeds_alone(calls):
    engine = V2Engine(V)
    assert engine.sampler._tokendraw.can_draw()
    engine.sampler._tokendraw._replacement.seeds_every_row = False
    engine.add(0, request(top_k=3))
    engine.add(1, request(top_k=3, seed=4))
    for slots in ([0], [0, 1]):
        engine.draw(torch.stack([logits_at(3)] * len(slots)), slots, [3] * len(slots))
    assert [metadata.seed is not None for _, metadata in calls.draws] == [False, True]


def test_descriptions_of_batches_are_kept_and_not_without_end(calls):
    engine = V2Engine(400, slots=2)
    for top_k in range(1, 200):
        engine.add(0, request(top_k=top_k))
        engine.draw(torch.zeros(1, 400), [0], [3])
    assert len(engine.sampler._tokendraw._parameters._metadata_by_facts) == 64
    engine.draw(torch.zeros(1, 400), [0], [4])
    (_, one), (_, two) = calls.draws[-2:]
    assert one.memo is two.memo


class NoHostReads(TorchFunctionMode):
    """Refuses operations of torch that read a value on the host, for which a GPU would have to wait."""

    SPECIAL: Final = (
        "__array__",
        "__bool__",
        "__contains__",
        "__float__",
        "__index__",
        "__int__",
        "__repr__",
    )
    READS: Final = (
        "allclose",
        "argwhere",
        "bincount",
        "cpu",
        "equal",
        "item",
        "masked_select",
        "nonzero",
        "numpy",
    )
    MORE_READS: Final = ("tolist", "unique", "unique_consecutive")

    def __torch_function__(self, function, types, arguments=(), named=None):
        assert not self._waits(function.__name__, arguments, named or {}), function.__name__
        return function(*arguments, **(named or {}))

    def _waits(self, name, arguments, named):
        if name in ("__getitem__", "__setitem__"):
            index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in index)
        if name in ("as_tensor", "tensor"):  # from the host to a device, or a tensor's value
            return "device" in named or isinstance(arguments[0], torch.Tensor)
        if name == "to":
            return any(str(each) == "cpu" for each in (*arguments[1:], *named.values()))
        if name in (*self.SPECIAL, *self.READS, *self.MORE_READS):
            return True
        return name == "where" and len(arguments) + len(named) == 1


@pytest.mark.parametrize("edited", [[1], [0, 1, 2], [0, 2]], ids=["one row", "all rows", "rows apart"])
def test_a_decoding_step_waits_for_no_device(calls, edited):
    engine = V2Engine(V)
    for slot in range(3):
        engine.add(slot, request(seed=1, presence_penalty=1.0 if slot in edited else 0.0))
    rows = torch.stack([logits_at(0)] * 3)
    for _ in range(2):
        engine.step(rows, [0, 1, 2])
    slots, ids = engine.sampler._tokendraw, [torch.zeros(count, dtype=torch.int64) for count in range(4)]
    slots._edits._mirror.requests.appender = lambda *given: None
    slots._edits._processor = _v2_edits.Processor("native", lambda logits, *given: logits)
    slots._replacement.sampler = SimpleNamespace(
        name="native", sample=lambda logits, metadata: SimpleNamespace(token_ids=ids[len(logits)])
    )
    mapping, given = torch.tensor([0, 1, 2]), (torch.full((3,), 5), torch.full((3,), 8, dtype=torch.int32))
    lengths = np.array([len(engine.tokens[slot]) for slot in range(3)])
    with NoHostReads():
        drawn, _ = engine.sampler.sample(rows, mapping, mapping, np.array([0, 1, 2]), *given, None, lengths)
    assert drawn is ids[3]
