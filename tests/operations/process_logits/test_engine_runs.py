"""Engines that add, process, sample, verify, append, remove and reuse at random equal a plain Python model."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

import tokendraw
from request_slots_model import Held, random_params
from tokendraw import Drafts, RequestSlots, VerifyOutput

SLOTS, MOST_TOKENS, VOCAB_SIZE, STEPS = 6, 96, 97, 10
RUNS_A_TEST = 25


@pytest.mark.slow
@pytest.mark.fast_first
@pytest.mark.parametrize("block", range(8))
def test_200_runs_equal_the_model_bit_for_bit(block: int) -> None:
    processor = tokendraw.load("process_logits", device="cpu")
    for run in range(block * RUNS_A_TEST, (block + 1) * RUNS_A_TEST):
        Engine(processor, random.Random(run)).run()


class Engine:
    """A run: the slots, and their model."""

    def __init__(self, processor, rng: random.Random) -> None:
        self.processor, self.rng = processor, rng
        self.slots = RequestSlots(SLOTS, MOST_TOKENS, VOCAB_SIZE)
        self.held: dict[int, Held] = {}

    def run(self) -> None:
        for _ in range(STEPS):
            self.come_and_go()
            rows = [slot for slot in self.held if self.rng.random() < 0.8]
            self.rng.shuffle(rows)
            if rows:
                self.rng.choice((self.draw, self.verify))(rows)

    def come_and_go(self) -> None:
        for slot in range(SLOTS):
            if slot in self.held and self.rng.random() < 0.15:
                self.slots.remove(slot)
                del self.held[slot]
            elif slot not in self.held and self.rng.random() < 0.5:
                held = Held(random_params(self.rng, VOCAB_SIZE), self.tokens(self.rng.randrange(6)))
                self.slots.add(slot, held.params, held.prompt)
                self.held[slot] = held

    def draw(self, rows: list[int]) -> None:
        """A step without drafts, half of them under a grammar's mask."""
        logits, mask = self.logits(len(rows)), None
        if self.rng.random() < 0.5:
            mask = [[self.rng.getrandbits(32) for _ in range(-(-VOCAB_SIZE // 32))] for _ in rows]
        needed = [
            edited(row, self.held[slot], self.held[slot].output, mask[i] if mask else None)
            for i, (row, slot) in enumerate(zip(logits.tolist(), rows, strict=True))
        ]
        bits = None if mask is None else torch.from_numpy(np.array(mask, np.uint32).view(np.int32))
        self.processor.process(logits, self.slots, torch.tensor(rows), bitmask=bits)
        assert torch.equal(logits, torch.tensor(needed))
        drawn = self.tokens(len(rows))
        self.slots.append(torch.tensor(rows), torch.tensor(drawn))
        for slot, token in zip(rows, drawn, strict=True):
            self.held[slot].output.append(token)

    def verify(self, rows: list[int]) -> None:
        """Run a step with up to three drafts a request and any number of accepted drafts."""
        drafted = [self.tokens(self.rng.randrange(4)) for _ in rows]
        logits = self.logits(sum(len(drafts) + 1 for drafts in drafted))
        needed, values = [], iter(logits.tolist())
        for slot, drafts in zip(rows, drafted, strict=True):
            held = self.held[slot]
            needed += [edited(next(values), held, held.output + drafts[:j]) for j in range(len(drafts) + 1)]
        row_index = torch.tensor(rows)
        self.processor.process(logits, self.slots, row_index, drafts=Drafts.from_lists(drafted, device="cpu"))
        assert torch.equal(logits, torch.tensor(needed))
        accepted = [self.rng.randint(0, len(drafts)) for drafts in drafted]
        chains = [drafts[:n] + self.tokens(1) for drafts, n in zip(drafted, accepted, strict=True)]
        widest = max(map(len, drafted)) + 1
        token_ids = torch.tensor([chain + [-1] * (widest - len(chain)) for chain in chains])
        valid = torch.ones(len(rows), dtype=torch.bool)
        self.slots.append_verified(row_index, VerifyOutput(token_ids, torch.tensor(accepted), valid))
        for slot, chain in zip(rows, chains, strict=True):
            self.held[slot].output.extend(chain)

    def tokens(self, count: int) -> list[int]:
        """Draw from a small set of ids, so that ids repeat."""
        return [self.rng.randrange(12) for _ in range(count)]

    def logits(self, rows: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.rng.getrandbits(60))
        return 3 * torch.randn(rows, VOCAB_SIZE, generator=generator)


def edited(row: list[float], held: Held, output: list[int], mask: list[int] | None = None) -> list[float]:
    """Edit a row by the formulas, each step rounded to float32."""
    p, single, times = held.params, np.float32, Counter(output)
    banned = forbidden(held, output, mask)
    result = []
    for i, value in enumerate(row):
        x = single(value) + single((p.logit_bias or {}).get(i, 0.0))
        if i in times or i in held.prompt:
            r = single(p.repetition_penalty)
            x = x / r if x > 0 else x * r
        x = x - single(p.frequency_penalty) * single(times[i])
        if i in times:
            x = x - single(p.presence_penalty)
        result.append(-math.inf if i in banned else float(x))
    return result


def forbidden(held: Held, output: list[int], mask: list[int] | None) -> set[int]:
    """Find the forbidden ids, with logits of -inf."""
    p, every = held.params, set(range(VOCAB_SIZE))
    banned = {i for i in every if mask is not None and not mask[i // 32] >> i % 32 & 1}
    if p.allowed_token_ids is not None:
        banned |= every - {*p.allowed_token_ids}
    for *before, last in p.bad_words or ():
        if not before or output[-len(before) :] == before:
            banned.add(last)
    if len(output) < p.min_tokens:
        banned |= {*(p.stop_token_ids or ())}
    return banned
