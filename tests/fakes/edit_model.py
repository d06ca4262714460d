"""Requests with every kind of edit, and rows edited by the kit's reference, ``tokendraw_testing.reference_edits``."""

from dataclasses import dataclass, field

import numpy as np
import torch

from tokendraw import Drafts, RequestSlots, SamplingParams, VerifyOutput
from tokendraw_testing import reference_edits


@dataclass
class Request:
    """The edits and tokens of a request."""

    prompt: list[int]
    output: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)


def random_request(rng, vocab_size, most_tokens, *, listed=True, by_history=True):
    """Draw random edits of few ids, so that several edits meet at an id.

    :param listed: whether for biases, bad words and ``min_tokens``, too.
    :param by_history: whether for edits that search the history, too.
    """
    everywhere = np.arange(vocab_size)
    pool = rng.choice(everywhere, min(vocab_size, 24), replace=False)

    def some(most, least=0, ids=pool):
        return rng.choice(ids, rng.integers(least, most + 1)).tolist()

    def perhaps(value, off):
        return value if rng.random() < 0.7 else off

    def real(least, most):
        return float(np.float32(rng.uniform(least, most)))

    ids = np.r_[pool, vocab_size, vocab_size + 7]  # with placeholders
    output = some(most_tokens // 2, ids=ids)
    words = [[*some(3), int(rng.choice(pool))] for _ in range(rng.integers(0, 40))]
    words += [[*output[-n:], int(rng.choice(pool))] for n in (1, 2, 5) if n <= len(output)]
    words = [word for word in words if max(word) < vocab_size]
    prompt = some(most_tokens // 2, 1, np.r_[perhaps(everywhere, pool), -1, vocab_size])
    edits = {
        "repetition_penalty": perhaps(real(0.3, 3), 1.0),
        "frequency_penalty": perhaps(real(-2, 2), 0.0),
        "presence_penalty": perhaps(real(-2, 2), 0.0),
        "allowed_token_ids": perhaps(None, sorted(set(some(vocab_size, 1, everywhere)))),
    }
    if listed:
        edits |= {
            "logit_bias": perhaps({i: real(-9, 9) for i in some(12)}, None),
            "bad_words": perhaps(words, None),
            "min_tokens": perhaps(int(rng.integers(1, most_tokens)), 0),
            "stop_token_ids": sorted(set(some(6, 1))),
        }
    if by_history:
        edits |= {
            "penalty_last_n": perhaps(int(rng.integers(0, most_tokens)), -1),
            "dry_multiplier": perhaps(real(0, 3), 0.0),
            "dry_base": perhaps(real(1, 3), 1.75),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": perhaps(-1, int(rng.integers(0, most_tokens))),
            "dry_sequence_breakers": perhaps(None, some(3)),
            "thinking_budget": perhaps(None, (int(rng.integers(0, 6)), some(2, 1), some(3, 1))),
        }
    return Request(prompt, output, SamplingParams(**edits))


def slots_of(requests, max_tokens, vocab_size, device):
    """Fill slot b with request b: add the prompt, append the output."""
    slots = RequestSlots(
        len(requests),
        max_tokens,
        vocab_size,
        device=device,
        max_bias=16,
        max_stop_ids=8,
        max_bad_words=64,
        max_bad_word_len=9,
    )
    for slot, request in enumerate(requests):
        slots.add(slot, request.params, prompt_token_ids=request.prompt)
    for step in range(max(len(request.output) for request in requests)):
        going = [slot for slot, request in enumerate(requests) if step < len(request.output)]
        tokens = [requests[slot].output[step] for slot in going]
        slots.append(torch.tensor(going, device=device), torch.tensor(tokens, device=device))
    return slots


@dataclass
class Batch:
    """A call of ``process_logits`` and the expected bits."""

    memory: torch.Tensor
    """[R + 1, V + 3]: the logits and what lies around them."""
    logits: torch.Tensor
    row_index: torch.Tensor
    bitmask: torch.Tensor | None
    drafts: Drafts | None
    expected: torch.Tensor
    """What is to be in memory."""

    def wrong(self):
        """Count the elements of memory with other bits than expected; NaN may be any NaN."""
        result, expected = self.memory.cpu(), self.expected
        bits = torch.int32 if result.dtype == torch.float32 else torch.int16
        same = (result.view(bits) == expected.view(bits)) | (result.isnan() & expected.isnan())
        return int((~same).sum())


def batch(rng, requests, vocab_size, dtype, device, *, drafted=None, masked=False):
    """Make rows of all requests, except for a slot out of range.

    :param drafted: None, ``listed`` or ``padded``.
    """
    order = rng.permutation(len(requests))
    order[1] = -1 if rng.random() < 0.5 else len(requests)
    others = -1, vocab_size, 2**32, rng.integers(0, vocab_size, 4)
    ids = np.r_[(requests[0].prompt, requests[-1].output, *others)]
    lists = [rng.choice(ids, rng.integers(0, 4) if drafted else 0).astype(int).tolist() for _ in order]
    rows = [
        (slot, drafts[:j]) for slot, drafts in zip(order, lists, strict=True) for j in range(len(drafts) + 1)
    ]
    memory = random_logits(rng, len(rows) + 1, vocab_size + 3, dtype)
    mask = rng.random((len(rows), vocab_size)) < 0.7
    expected = memory.clone()
    for (slot, drafts), row, allowed in zip(rows, expected[:, 1 : vocab_size + 1], mask, strict=False):
        request = requests[slot] if 0 <= slot < len(requests) else Request([], [])
        row.copy_(
            torch.from_numpy(edit(row.float().numpy(), request, drafts, allowed if masked else None)).to(
                dtype
            )
        )
    there = memory.to(device)
    return Batch(
        there,
        there[: len(rows), 1 : vocab_size + 1],
        torch.tensor(order, device=device),
        bitmask_of(mask).to(device) if masked else None,
        drafts_of(lists, device, padded=drafted == "padded") if drafted else None,
        expected,
    )


def drafts_of(lists, device, *, padded):
    """Return drafts of lists of ids: flat, or padded to four a request."""
    if not padded:
        return Drafts.from_lists(lists, device=device)
    ids = torch.full((len(lists), 4), -1)
    for row, drafts in zip(ids, lists, strict=True):
        row[: len(drafts)] = torch.tensor(drafts)
    offsets = torch.tensor([0, *(len(drafts) + 1 for drafts in lists)]).cumsum(0)
    return Drafts(draft_token_ids=ids.to(device), cu_num_logits=offsets.to(device), max_drafts=4)


def edit(row, request, drafts=(), mask=None):
    """Return a row of float32 logits [V] edited.

    :param drafts: those before the row.
    :param mask: [V] bool: which ids a grammar allows, or None.
    """
    return reference_edits.edit(row, request.params, request.prompt, [*request.output, *drafts], mask).values


def bitmask_of(mask, *, padding=True):
    """Return the words of masks [R, V] bool: [R, ceil(V / 32)] int32, with ``padding`` as the bits behind V."""
    rows, vocab_size = mask.shape
    bits = np.full((rows, -(-vocab_size // 32) * 32), padding)
    bits[:, :vocab_size] = mask
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


def random_logits(rng, rows, vocab_size, dtype):
    """Return logits of all sizes, with zeros, infinities, NaN and subnormal numbers."""
    result = rng.normal(0, 8, (rows, vocab_size)) * np.exp(rng.normal(0, 2, (rows, vocab_size)))
    picked = rng.random(result.shape) < 0.1
    result[picked] = rng.choice((0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -2e-39), picked.sum())
    return torch.from_numpy(result.astype(np.float32)).to(dtype)


# Bit masks, and rows at any address.


ROWS = 3
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@dataclass
class Case:
    """Rows of a dtype that begin ``offset`` elements behind an address aligned to 16 bytes."""

    dtype: torch.dtype
    vocab_size: int
    offset: int
    gap: int
    """Elements from the end of a row to the next."""

    def wrong(self, process, device, *, seed=0):
        """Count the elements of memory with wrong bits after a call, NaN included.

        Of the rows one is forbidden by coins, one in runs that end anywhere, and one wholly but for its last id. The
        second has a request with ``allowed_token_ids`` of its own.
        """
        torch.manual_seed(seed)
        size, stride, kind = self.vocab_size, self.vocab_size + self.gap, BITS[self.dtype]
        limits = torch.iinfo(kind)
        memory = torch.randint(limits.min, limits.max + 1, (ROWS * stride + self.offset + 8,)).to(kind)
        own = torch.rand(size) < 0.5
        own[0] = True
        mask = torch.rand(ROWS, size) < 0.5
        mask[1] = torch.rand(size).cumsum(0).div(20).long() % 2 == 0
        mask[2] = torch.arange(size) == size - 1
        expected = memory.clone()
        rows = expected.as_strided((ROWS, size), (stride, 1), self.offset)
        kept = mask.clone()
        kept[1] &= own
        rows.view(self.dtype).masked_fill_(~kept, -torch.inf)
        slots = RequestSlots(1, 4, size, device=device)
        slots.add(0, SamplingParams(allowed_token_ids=own.nonzero().flatten().tolist()))
        result = memory.to(device)
        logits = result.view(self.dtype).as_strided((ROWS, size), (stride, 1), self.offset)
        process(
            logits,
            slots,
            torch.tensor([-1, 0, -1], device=device),
            bitmask_of(mask.numpy(), padding=False).to(device),
        )
        return int((result.cpu() != expected).sum())


def cases(dtype, tile):
    """Cases of every alignment to 16 bytes, of even and odd strides, that end near the ends of words and tiles."""
    sizes = (1, 31, 32, 33, tile - 1, tile, tile + 1, 3 * tile, 3 * tile + 40, 3 * tile + 37)
    return [
        Case(dtype, size, offset, gap)
        for number, size in enumerate(sizes)
        for offset, gap in ((number % 9, 0), (0, -size % 32), (8, 32 - size % 8 + number % 2))
    ]


# Requests with and without preemption.


VOCAB_SIZE = 60
STEPS = 16
PROMPT = [3, VOCAB_SIZE, 9, -1, 3, 5]
"""With two placeholders, as of images."""
OUTPUT = [5, 9, 3, 3, VOCAB_SIZE + 7, 9, 7, 5, 9, 3, 3, 9, 8, 5, 9, 7, 3, 9, 9, 5, 3, 7, 8, 9]
PARAMS = SamplingParams(
    repetition_penalty=1.3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    logit_bias={3: 2.5, 11: -1.0},
    allowed_token_ids=list(range(50)),
    bad_words=[[5, 9, 20], [3, 3, 9, 21], [3, 9, 22], [9, 23], [5, 5, 24], [25]],
    min_tokens=9,
    stop_token_ids=[1, 9],
)
DRAFTS = [5, 9, VOCAB_SIZE, 3]


def rows_of_twins(processor, device):
    """Edit a row and five rows of a verification for both requests, at every step.

    :returns: logits [steps, 2, 6, V] before and after the edits; slice 0 without preemption, slice 1 with.
    """
    slots = RequestSlots(4, 40, VOCAB_SIZE, device=device)
    slots.add(0, PARAMS, PROMPT)
    generator, output = torch.Generator().manual_seed(1), []
    before, after = [], []
    for step in range(STEPS):
        slot = 1 + step % 3  # another slot than before
        slots.add(slot, PARAMS, PROMPT, output_token_ids=output)
        logits = torch.randn(6, VOCAB_SIZE, generator=generator) * 4
        before.append(logits.expand(2, -1, -1).clone())
        after.append(torch.stack([_edited(processor, slots, twin, logits) for twin in (0, slot)]))
        slots.remove(slot)
        drawn = OUTPUT[len(output) : len(output) + 1 + step % 2]
        output += drawn
        _append(slots, drawn)
    return torch.stack(before), torch.stack(after)


def expected(before):
    """Edit the rows of the request by the plain model."""
    result, output = [], []
    request = Request(PROMPT, output, PARAMS)
    for step, rows in enumerate(before[:, 0]):
        edited = [edit(rows[0].numpy(), request)]
        edited += [edit(row.numpy(), request, DRAFTS[:j]) for j, row in enumerate(rows[1:])]
        result.append(torch.stack([torch.from_numpy(row) for row in edited]))
        output += OUTPUT[len(output) : len(output) + 1 + step % 2]
    return torch.stack(result)


def _edited(processor, slots, slot, logits):
    row_index = torch.tensor([slot], device=slots.device)
    edited = logits.to(slots.device, copy=True)
    processor.process(edited[:1], slots, row_index)
    processor.process(edited[1:], slots, row_index, None, Drafts.from_lists([DRAFTS], device=slots.device))
    return edited.cpu()


def _append(slots, drawn):
    """Append a token like a step, or several tokens like a verification."""
    rows = torch.tensor([0], device=slots.device)
    if len(drawn) == 1:
        slots.append(rows, drawn)
        return
    chain = torch.tensor([[*drawn, -1]], device=slots.device)
    slots.append_verified(rows, VerifyOutput(chain, chain, chain))
