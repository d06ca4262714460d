"""The compiled processor of logits writes native's bits, in every instruction set that this processor has."""

import random

import pytest
import torch

from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw_cpu import plugin
from tokendraw_cpu.library import LibraryError, missing_library, supported_targets
from tokendraw_native import plugin as native
from tokendraw_native.logits_processing import NativeProcessor

if reason := missing_library():
    pytest.skip(f"the compiled sampler {reason}", allow_module_level=True)
try:
    TARGETS = supported_targets()
except LibraryError as error:
    pytest.skip(f"the compiled sampler {error}", allow_module_level=True)

from tokendraw_cpu.edits import CpuProcessor

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SLOTS = 48
SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-7, -6e-5, 3e4, 65504.0)


def random_ids(rng, size, most):
    return [rng.randrange(size) for _ in range(rng.randint(1, most))]


FIELDS = {
    "allowed_token_ids": lambda rng, size: random_ids(rng, size, 40),
    "bad_words": lambda rng, size: [random_ids(rng, min(size, 4), 3) for _ in range(rng.randint(1, 12))],
    "min_tokens": lambda rng, size: rng.randint(0, 30),
    "thinking_budget": lambda rng, size: (
        rng.randint(0, 6),
        random_ids(rng, min(size, 4), 2),
        random_ids(rng, min(size, 4), 3),
    ),
    "logit_bias": lambda rng, size: {token: rng.gauss(0, 3) for token in random_ids(rng, size, 30)},
    "repetition_penalty": lambda rng, size: rng.uniform(0.5, 2.0),
    "frequency_penalty": lambda rng, size: rng.uniform(-2.0, 2.0),
    "presence_penalty": lambda rng, size: rng.uniform(-2.0, 2.0),
    "penalty_last_n": lambda rng, size: rng.choice((0, 1, 5, 64, 10**6)),
    "dry_multiplier": lambda rng, size: rng.uniform(0.1, 2.0),
}
"""Values of each edit of a request."""


def random_token(rng, few, size):
    """One of a few ids, or a placeholder."""
    return rng.randrange(few) if rng.random() < 0.95 else rng.choice((-1, size))


def random_request(rng, size):
    fields = {name: value(rng, size) for name, value in FIELDS.items() if rng.random() < 0.4}
    if "dry_multiplier" in fields:
        fields |= {
            "dry_base": rng.choice((1.0, 1.75, 4.0)),
            "dry_allowed_length": rng.randint(0, 3),
            "dry_penalty_last_n": rng.choice((-1, -1, 7, 40)),
            "dry_sequence_breakers": rng.choice((None, random_ids(rng, min(size, 4), 2))),
        }
    return SamplingParams(stop_token_ids=random_ids(rng, size, 5), **fields)


def random_history(rng, size):
    """Make a history of few ids, most of them several times."""
    few = min(size, rng.choice((2, 3, 5, size)))
    return [random_token(rng, few, size) for _ in range(rng.randint(1, 90))]


def random_slots(rng, size):
    slots = RequestSlots(num_slots=SLOTS, max_tokens=256, vocab_size=size, device=CPU)
    for slot in range(SLOTS):
        history = random_history(rng, size)
        prompt = rng.randint(1, len(history))
        slots.add(
            slot,
            random_request(rng, size),
            prompt_token_ids=history[:prompt],
            output_token_ids=history[prompt:],
        )
    return slots


def random_logits(rows, size, dtype, seed):
    """Rows in memory of a larger stride, with values at the ends of the dtypes."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, size + 7, generator=generator)
    special = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), logits.shape, generator=generator)]
    logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.2, special, logits)
    return logits.to(dtype)


def random_drafts(rng, size, requests, *, is_padded):
    counts = [rng.randint(0, 5) for _ in range(requests)]
    ids = [[random_token(rng, min(size, 5), size) for _ in range(count)] for count in counts]
    drafts = Drafts.from_lists(ids, device=CPU)
    if not is_padded:
        return drafts
    padded = torch.full((requests, 5), -1, dtype=torch.int32)
    for row, tokens in enumerate(ids):
        padded[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return Drafts(
        draft_token_ids=padded, cu_num_logits=drafts.cu_num_logits.to(torch.int32), num_drafts=counts
    )


def bits_of(logits):
    return logits.view(torch.int32 if logits.element_size() == 4 else torch.int16)


def assert_same_bits(found, wanted, edited):
    different = (bits_of(found) != bits_of(wanted)).nonzero().tolist()
    lines = [
        (row, token, found[row, token].item(), wanted[row, token].item()) for row, token in different[:5]
    ]
    assert not different, f"{len(different)} of {edited} edited logits: {lines} (row, id, found, native's)"


def edited_by(processor, memory, size, *arguments):
    memory = memory.clone()
    output = processor.process(memory[:, :size], *arguments)
    assert output.data_ptr() == memory.data_ptr()
    return memory


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("drafted", [None, "ragged", "padded"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_batches_get_the_bits_of_native(dtype, drafted, target):
    processor = CpuProcessor(target)
    for seed, size in enumerate((1, 5, 31, 64, 1000, 33_000)):
        rng = random.Random(seed)
        slots = random_slots(rng, size)
        requests = [rng.randrange(SLOTS) for _ in range(SLOTS)]
        rng.shuffle(requests)
        row_index = torch.tensor(requests, dtype=rng.choice((torch.int32, torch.int64)))
        drafts, rows = None, SLOTS
        if drafted:
            drafts = random_drafts(rng, size, SLOTS, is_padded=drafted == "padded")
            rows = int(drafts.cu_num_logits[-1]) + 2
        bitmask = None
        if seed % 2:
            generator = torch.Generator().manual_seed(seed)
            words = torch.randint(-(2**31), 2**31, (rows, -(-size // 32) + 3), generator=generator)
            words = torch.where(torch.rand(words.shape, generator=generator) < 0.5, -(words % 2), words)
            bitmask = words.to(torch.int32)[:, : -(-size // 32)]
        memory = random_logits(rows, size, dtype, seed)
        arguments = size, slots, row_index, bitmask, drafts
        wanted = edited_by(NativeProcessor(), memory, *arguments)
        edited = int((bits_of(wanted) != bits_of(memory)).sum())
        assert edited > rows // 2
        assert_same_bits(edited_by(processor, memory, *arguments), wanted, edited)


def test_helper_threads_write_the_same_bits(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    size, row_index = 33_000, torch.arange(SLOTS)
    slots, memory = random_slots(random.Random(1), size), random_logits(SLOTS, size, torch.bfloat16, 1)
    wanted = edited_by(NativeProcessor(), memory, size, slots, row_index)
    edited = int((bits_of(wanted) != bits_of(memory)).sum())
    for _ in range(20):
        assert_same_bits(edited_by(CpuProcessor(), memory, size, slots, row_index), wanted, edited)


def test_rows_beyond_the_drafts_read_no_memory_behind_them():
    """Offsets may be changed in place between calls: what has no memory is a placeholder."""
    slots = RequestSlots(num_slots=1, max_tokens=8, vocab_size=40, device=CPU)
    slots.add(0, SamplingParams(frequency_penalty=1.0), prompt_token_ids=[1])
    drafts = Drafts(
        draft_token_ids=torch.tensor([2, 3, 5, 5, 5])[:2], cu_num_logits=torch.tensor([0, 3]), max_drafts=4
    )
    drafts.cu_num_logits[1] = 5
    logits = torch.zeros(5, 40)
    CpuProcessor().process(logits, slots, torch.zeros(1, dtype=torch.int64), None, drafts)
    assert logits.nonzero().tolist() == [[1, 2], *([row, token] for row in (2, 3, 4) for token in (2, 3))]


def test_the_processor_advertises_every_edit_of_native():
    capabilities = plugin.tokendraw_describe().operations["process_logits"]
    assert capabilities.edits == native.tokendraw_describe().operations["process_logits"].edits
    assert capabilities.device_types == ("cpu",)
