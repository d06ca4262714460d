"""A plain Python model of RequestSlots: the requests, and the resulting tables."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import torch

from tokendraw import RequestSlots, SamplingParams


@dataclass
class Held:
    """A request in a slot."""

    params: SamplingParams
    prompt: list[int]
    output: list[int] = field(default_factory=list)


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    """Draw the parameters of a random request."""

    def ids(most: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(rng.randint(1, most))]

    def maybe(value):
        return value if rng.random() < 0.4 else None

    return SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.0)),
        top_k=rng.choice((0, 3)),
        seed=maybe(rng.randrange(2**64)),
        repetition_penalty=rng.choice((1.0, 0.5, 1.3)),
        frequency_penalty=rng.choice((0.0, -0.5)),
        presence_penalty=rng.choice((0.0, 0.25)),
        logit_bias=maybe({i: rng.choice((-1.5, 0.0, 2.0)) for i in ids(4)}),
        allowed_token_ids=maybe(ids(5)),
        bad_words=maybe([ids(3) for _ in range(rng.randint(1, 3))]),
        min_tokens=rng.choice((0, 2)),
        stop_token_ids=maybe(ids(3)),
        logprob_token_ids=maybe(ids(4)),
        penalty_last_n=rng.choice((-1, 0, 3)),
        dry_multiplier=rng.choice((0.0, 0.5)),
        dry_base=rng.choice((1.0, 1.75)),
        dry_penalty_last_n=rng.choice((-1, 0, 3)),
        dry_sequence_breakers=maybe(ids(3)),
        thinking_budget=maybe((rng.randrange(3), ids(3), ids(3))),
    )


def expected_counts(held: Held | None, vocab_size: int) -> list[int]:
    """Return a row of ``RequestTables.counts``."""
    if held is None:
        return [0] * vocab_size
    p, output = held.params, Counter(held.output)
    biased = {i for i, value in (p.logit_bias or {}).items() if value}
    stop = set(p.stop_token_ids or ()) if p.min_tokens else set()
    last = {word[-1] for word in p.bad_words or ()}
    return [
        16 * output[i] + (i in held.prompt) + 2 * (i in biased) + 4 * (i in stop) + 8 * (i in last)
        for i in range(vocab_size)
    ]


def assert_holds(slots: RequestSlots, requests: dict[int, Held]) -> None:
    """Require that the tables equal the requests by slot."""
    t = slots.tables
    for slot in range(slots.num_slots):
        held = requests.get(slot)
        tokens = [*held.prompt, *held.output] if held else []
        assert int(t.num_tokens[slot]) == len(tokens)
        assert int(t.num_prompt[slot]) == (len(held.prompt) if held else 0)
        assert t.history[slot, : len(tokens)].tolist() == tokens
        distinct = t.distinct[slot, : int(t.num_distinct[slot])].tolist()
        assert sorted(distinct) == sorted({token for token in tokens if 0 <= token < slots.vocab_size})
        assert t.counts[slot].tolist() == expected_counts(held, slots.vocab_size)
        assert_lists(slots, slot, held.params if held else SamplingParams())


def assert_lists(slots: RequestSlots, slot: int, p: SamplingParams) -> None:
    """Require the parameters of a slot in every tensor."""
    t = slots.tables
    penalties = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
    if not p.penalty_last_n:
        penalties = 1.0, 0.0, 0.0
    assert int(t.penalty_last_n[slot]) == (-1 if penalties == (1.0, 0.0, 0.0) else p.penalty_last_n)
    for name, penalty in zip(("repetition", "frequency", "presence"), penalties, strict=True):
        assert float(getattr(t, name)[slot]) == float(torch.tensor(penalty, dtype=torch.float32)), name
    assert_dry(t, slot, p)
    budget, *marks = p.thinking_budget or (-1, (), ())
    assert int(t.thinking_budget[slot]) == budget
    for name, mark in zip(("start", "end"), marks, strict=True):
        row = getattr(t, f"thinking_{name}")[slot].tolist()
        assert row == [*mark] + [-1] * (len(row) - len(mark))
        assert int(getattr(t, f"num_thinking_{name}")[slot]) == len(mark)
    bias = {i: value for i, value in (p.logit_bias or {}).items() if value}
    n = int(t.num_bias[slot])
    assert dict(zip(t.bias_ids[slot, :n].tolist(), t.bias[slot, :n].tolist(), strict=True)) == bias
    assert (n, set(t.bias_ids[slot, n:].tolist())) == (len(bias), {-1} if n < t.bias_ids.shape[1] else set())
    assert bool(t.is_restricted[slot]) == (p.allowed_token_ids is not None)
    if p.allowed_token_ids is not None:
        words = t.allowed[slot].tolist()
        result = [i for i in range(32 * len(words)) if words[i // 32] >> i % 32 & 1]
        assert result == sorted(set(p.allowed_token_ids))
    stop = set(p.stop_token_ids or ()) if p.min_tokens else set()
    assert int(t.num_stop[slot]) == len(stop)
    assert set(t.stop_ids[slot].tolist()) - {-1} == stop
    assert int(t.min_tokens[slot]) == (p.min_tokens if stop else 0)
    words, width = [tuple(word) for word in p.bad_words or ()], t.bad_words.shape[2]
    assert int(t.num_bad[slot]) == len(words)
    for i, row in enumerate(t.bad_words[slot].tolist()):
        word = words[i] if i < len(words) else ()
        assert tuple(row) == (-1,) * (width - len(word)) + word
        assert int(t.bad_lens[slot, i]) == len(word)


def assert_dry(t, slot: int, p: SamplingParams) -> None:
    """Require the settings of DRY of a slot."""
    names = ("multiplier", "base", "allowed_length", "max_match", "last_n")
    settings = 0.0, 1.0, 0, 0, 0
    breakers: set[int] = set()
    if p.dry_multiplier and p.dry_penalty_last_n:
        allowed = p.dry_allowed_length
        max_match = allowed + 158 if p.dry_base == 1.75 else 2**31 - 1
        last_n = 2**31 - 1 if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
        settings = p.dry_multiplier, p.dry_base, allowed, max_match, last_n
        breakers = set(p.dry_sequence_breakers or ())
    assert tuple(getattr(t, f"dry_{name}")[slot].item() for name in names) == settings
    assert int(t.num_dry_breakers[slot]) == len(breakers)
    assert set(t.dry_breakers[slot].tolist()) - {-1} == breakers
