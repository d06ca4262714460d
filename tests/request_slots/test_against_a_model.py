"""Random runs of an engine leave the tables equal to a plain Python model."""

import random

import pytest
import torch

from request_slots_model import Held, assert_holds, random_params
from tokendraw import InvalidParameterError, RequestSlots, VerifyOutput

S, M, V = 4, 12, 20
RUNS = 20


class Engine:
    """Slots and their model, with the same calls."""

    def __init__(self, seed, device):
        self.rng, self.device = random.Random(seed), device
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


@pytest.mark.fast_first
@pytest.mark.parametrize("chunk", range(500 // RUNS))
def test_random_runs_of_an_engine(chunk, device):
    for seed in range(chunk * RUNS, (chunk + 1) * RUNS):
        engine = Engine(seed, device)
        steps = engine.add, engine.append, engine.append, engine.verify, engine.move, engine.remove
        for step in range(40):
            engine.rng.choice(steps)()
            if step % 10 == 9:
                assert_holds(engine.slots, engine.held)
        for slot in [*engine.held]:
            engine.slots.remove(slot)
        assert_holds(engine.slots, {})
        assert not engine.slots.facts.any_edit
