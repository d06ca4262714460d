"""Random runs of an engine leave the tables, the facts and the metadata of slots equal to a plain Python model."""

import random
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

import tokendraw
from request_slots_model import Held, assert_holds, random_params
from tokendraw import (
    Drafts,
    InvalidParameterError,
    RequestSlots,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
    VerifyOutput,
)
from tokendraw.plugin import EditFacts

S, M, V = 4, 12, 20
RUNS = 20


class Engine:
    """Slots and their model, with the same calls, in inference mode and outside of it."""

    def __init__(self, seed, device):
        self.rng, self.device = random.Random(seed), device
        with torch.inference_mode(seed % 2 == 0):
            self.slots = RequestSlots(S, M, V, device=device, max_bad_words=4, max_bad_word_len=3)
        self.held = {}

    def add(self):
        empty = [slot for slot in range(S) if slot not in self.held]
        if empty:
            slot = self.rng.choice(empty)
            prompt = [self.token() for _ in range(self.rng.randint(0, M - 2))]
            self.put(slot, Held(random_params(self.rng, V), prompt))

    def put(self, slot, request):
        self.slots.add(slot, request.params, request.prompt, request.output)
        self.held[slot] = request

    def token(self):
        """An id, or now and then a placeholder."""
        return (
            self.rng.choice((-1, V, V + 3, 2**31 - 1)) if self.rng.random() < 0.1 else self.rng.randrange(V)
        )

    def move(self):
        """A request is preempted, and comes back to any empty slot."""
        if self.held:
            request = self.held[self.rng.choice([*self.held])]
            self.remove_from(next(slot for slot, one in self.held.items() if one is request))
            self.put(self.rng.choice([slot for slot in range(S) if slot not in self.held]), request)

    def remove(self):
        if self.held:
            self.remove_from(self.rng.choice([*self.held]))

    def remove_from(self, slot):
        self.slots.remove(slot)
        del self.held[slot]

    def rows(self):
        rows = self.rng.sample([*self.held], self.rng.randint(0, len(self.held)))
        dtype = self.rng.choice((torch.int64, torch.int32))
        given = rows if self.rng.random() < 0.3 else torch.tensor(rows, dtype=dtype, device=self.device)
        return rows, given

    def append(self):
        rows, row_index = self.rows()
        tokens = [self.token() for _ in rows]
        self.give(rows, [[token] for token in tokens], lambda: self.slots.append(row_index, tokens))

    def verify(self):
        (rows, row_index), width = self.rows(), self.rng.randint(1, 4)
        drawn = [[self.token() for _ in range(self.rng.randint(1, width))] for _ in rows]
        padded = [[*row, *[-1] * (width - len(row))] for row in drawn]
        token_ids = torch.tensor(padded, dtype=torch.int64, device=self.device).view(len(rows), width)
        out = VerifyOutput(token_ids, token_ids, token_ids)
        self.give(rows, drawn, lambda: self.slots.append_verified(row_index, out))

    def give(self, rows, tokens, call):
        """All rows get their tokens, or none does."""
        given = {slot: [token for token in row if token >= 0] for slot, row in zip(rows, tokens, strict=True)}
        held = self.held
        if any(len(held[s].prompt) + len(held[s].output) + len(row) > M for s, row in given.items()):
            with pytest.raises(InvalidParameterError, match="needs room for"):
                call()
            return
        call()
        for slot, row in given.items():
            held[slot].output += row

    def check(self):
        assert_holds(self.slots, self.held)
        params = [one.params for one in self.held.values()]
        facts = RowKinds.of(params).facts
        known = None if facts.any_logprob_token_ids else -1
        metadata = self.slots.metadata([*self.held], [0] * len(self.held))
        assert metadata.facts == replace(facts, max_logprob_token_id=known)
        penalized = [p for p in params if has_penalty(p)]
        assert self.slots.facts == EditFacts(
            any_penalty=bool(penalized),
            any_penalty_last_n=any(p.penalty_last_n > 0 for p in penalized),
            any_bias=any(v for p in params for v in (p.logit_bias or {}).values()),
            any_allowed=any(p.allowed_token_ids for p in params),
            any_bad_words=any(p.bad_words for p in params),
            any_min_tokens=any(p.min_tokens and p.stop_token_ids for p in params),
            any_dry=any(p.dry_multiplier and p.dry_penalty_last_n for p in params),
            any_thinking_budget=any(p.thinking_budget for p in params),
        )


def has_penalty(p):
    penalties = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
    return penalties != (1, 0, 0) and p.penalty_last_n != 0


@pytest.mark.fast_first
@pytest.mark.parametrize("chunk", range(500 // RUNS))
def test_random_runs_of_an_engine(chunk, device):
    for seed in range(chunk * RUNS, (chunk + 1) * RUNS):
        engine = Engine(seed, device)
        steps = engine.add, engine.append, engine.append, engine.verify, engine.move, engine.remove
        for step in range(40):
            with torch.inference_mode(engine.rng.random() < 0.5):
                engine.rng.choice(steps)()
            if step % 10 == 9:
                engine.check()
        for slot in [*engine.held]:
            engine.remove_from(slot)
        engine.check()
        assert not engine.slots.facts.any_edit


# Ids in many forms: each is read in the same way, and refused in the same words


MANY, SHORT, LONG = 3000, 5, 1200
FORMS = {
    "a list": list,
    "an iterator": iter,
    "a dict's keys": lambda ids: dict.fromkeys(ids).keys(),
    "an array": lambda ids: array("q", ids),
    "int16 of numpy": lambda ids: np.array(ids, dtype=np.int16),
    "uint64 of numpy": lambda ids: np.array(ids, dtype=np.uint64),
    "big-endian numbers of numpy": lambda ids: np.array(ids, dtype=">i4"),
    "a read-only array of numpy": lambda ids: np.frombuffer(array("i", ids).tobytes(), dtype=np.int32),
    "every second number of numpy": lambda ids: np.repeat(np.array(ids), 2)[::2],
    "numbers of numpy in a list": lambda ids: [*np.array(ids)],
    "an int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "every second number of a tensor": lambda ids: torch.tensor(ids).long().repeat_interleave(2)[::2],
}


def distinct_ids(count):
    """Return ids in no order; their values fit into an int16."""
    return [i * 7 % MANY for i in range(count)]


@pytest.mark.parametrize("count", [0, SHORT, LONG])
@pytest.mark.parametrize("form", FORMS)
def test_prompts_outputs_and_allowed_ids_may_come_in_any_form(form, count):
    ids, slots = distinct_ids(count), RequestSlots(2, 2 * LONG, MANY)
    allowed = {"allowed_token_ids": FORMS[form](ids)} if count else {}
    slots.add(1, SamplingParams(**allowed), FORMS[form](ids), FORMS[form](ids[: count // 2]))
    assert_holds(slots, {1: Held(SamplingParams(allowed_token_ids=ids or None), ids, ids[: count // 2])})


@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("number", [-1, -5, MANY, 2**31 - 1, 2**31, 2**40, 2**63, -(2**70)])
def test_a_number_out_of_range_is_a_placeholder_of_a_prompt_and_no_allowed_id(count, number):
    ids, slots = distinct_ids(count), RequestSlots(2, 1300, MANY)
    forms = [list]
    if abs(number) < 2**63:
        forms += [np.array, torch.tensor]
    for form in forms:
        with pytest.raises(
            InvalidParameterError, match=rf"^'allowed_token_ids' of slot 1 needs .* found .*{number}"
        ):
            slots.add(1, SamplingParams(allowed_token_ids=form([*ids, number])))
        slots.add(0, SamplingParams(), form([*ids, number, ids[0]]))
        stored = number if -1 <= number < 2**31 else -1
        assert_holds(slots, {0: Held(SamplingParams(), [*ids, stored, ids[0]])})
        slots.remove(0)


@pytest.mark.gpu
def test_a_prompt_on_a_cuda_device_is_read():
    ids = distinct_ids(LONG)
    slots = RequestSlots(2, 1300, MANY, device="cuda")
    slots.add(0, SamplingParams(), torch.tensor(ids, device="cuda"))
    assert_holds(slots, {0: Held(SamplingParams(), ids)})


# Metadata over slots draws the tokens of metadata by ``from_params``, and is made once


KINDS = {
    5: SamplingParams(temperature=0.7, top_k=5, seed=1, logprobs=2),
    0: SamplingParams(temperature=0.0, top_p=0.5),
    3: SamplingParams(min_p=0.2, top_p=0.9, seed=2**64 - 1, filter_order="joint"),
    2: SamplingParams(seed=-4, logprobs=-1, filters={"top_n_sigma": 1.5}),
    1: SamplingParams(min_p=0.1, seed=3, filter_order="temperature_last", typical_p=0.7, xtc_probability=0.9),
}


def filled(kinds=KINDS):
    slots = RequestSlots(8, 16, 40)
    for slot, params in kinds.items():
        slots.add(slot, params, [1, 2])
    return slots


@pytest.mark.parametrize("of_rows", [torch.tensor, list], ids=["tensors", "lists"])
def test_rows_draw_as_their_requests_ask_and_a_verification_has_an_entry_a_request(of_rows):
    sampler, slots = tokendraw.load_sampler("native", device="cpu"), filled()
    rows, positions = [3, 5, 2, 0, 1], [9, 8, 7, 6, 5]
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    metadata = slots.metadata(of_rows(rows), of_rows(positions))
    own = SamplingMetadata.from_params([KINDS[slot] for slot in rows], positions=positions)
    found, expected = sampler.sample(logits[:5], metadata), sampler.sample(logits[:5], own)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert torch.equal(found.logprobs.logprobs, expected.logprobs.logprobs)
    drafts, verified = Drafts.from_lists([[1, 2], [], [3]]), (3, 0, 5)
    metadata = slots.metadata(of_rows([*verified]), of_rows([10, 20, 30]))
    own = SamplingMetadata.from_params([KINDS[slot] for slot in verified], positions=[10, 20, 30])
    assert torch.equal(
        sampler.verify(logits, drafts, metadata).token_ids, sampler.verify(logits, drafts, own).token_ids
    )
    plain = filled({1: SamplingParams(top_k=3)}).metadata(of_rows([1]))  # without seeds it needs no positions
    assert (plain.positions, plain.seed, plain.facts.any_seeded) == (None, None, False)


def test_steps_share_what_was_concluded_once_until_other_requests_come():
    slots = filled()
    first, second = slots.metadata([5, 0], [1, 2]), slots.metadata([3, 2], [2, 3])
    assert first.memo is second.memo
    assert (first.num_rows, second.row_index.tolist(), second.positions.tolist()) == (2, [3, 2], [2, 3])
    assert slots.metadata([5], [1]).memo is not first.memo
    slots.add(7, KINDS[5], [1])  # of a kind that is there
    assert slots.metadata([5, 7], [1, 2]).memo is first.memo
    slots.add(6, SamplingParams(top_k=9), [1])
    assert slots.metadata([5, 0], [1, 2]).memo is not first.memo
    assert slots.metadata([5, 0], [1, 2]).facts.max_top_k == 9
    slots.remove(5)
    slots.add(5, SamplingParams(temperature=0.25, top_k=7), [])
    assert float(first.per_row("temperature")[0]) == 0.25  # of the very tensors that slots keep
