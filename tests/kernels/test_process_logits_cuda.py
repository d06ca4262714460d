"""The edits of logits by triton-gumbel on a CUDA device: by the kit, beside native, on streams."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import edit_model
import tokendraw
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.device import require_no_wait
from tokendraw_testing.kit.fuzz import FuzzCase, check_case
from tokendraw_testing.kit.trial import Trial

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load(plugin="triton-gumbel"):
    return tokendraw.load("process_logits", plugin, device="cuda")


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def test_every_line_of_the_kit_is_green_and_random_cases_have_the_bits_of_float32_arithmetic():
    subject = Subject.installed("triton-gumbel", device="cuda", operation="process_logits", quick=True)
    assert run(subject, operation="process_logits").failed == ()
    cases = (FuzzCase("process_logits", number) for number in range(200))
    assert [found for case in cases if (found := check_case(subject, case).finding)] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_change_forbidden_ids_alone_at_any_alignment(dtype):
    process = load().process
    result = {str(case): case.wrong(process, "cuda") for case in edit_model.cases(dtype, 2048)}
    assert result == dict.fromkeys(result, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_mask_keeps_edits_beside_forbidden_ids(dtype, biased):
    """Programs have no order: reading, choosing and writing entire words might undo another program's edits."""
    rows, vocab_size = 256, 8192
    edited = list(range(0, vocab_size, 2))
    bias = {"logit_bias": dict.fromkeys(edited[:1000], 3.0)} if biased else {}
    params = tokendraw.SamplingParams(repetition_penalty=1.5, **bias)
    slots = tokendraw.RequestSlots(rows, vocab_size // 2, vocab_size, device="cuda", max_bias=1000)
    for slot in range(rows):
        slots.add(slot, params, prompt_token_ids=edited)
    logits = torch.randn(rows, vocab_size, device="cuda").to(dtype)
    row_index = torch.arange(rows, device="cuda")
    mask = torch.full((rows, vocab_size // 32), 0x55555555, dtype=torch.int32, device="cuda")  # the even ids
    mask[:, ::3] = 0x55000055  # some words have vectors that are forbidden as a whole
    expected = load("native").process(logits.clone(), slots, row_index, mask)
    processor, result = load(), torch.empty_like(logits)
    for _ in range(100):
        result.copy_(logits)
        processor.process(result, slots, row_index, mask)
        assert torch.equal(bits(result), bits(expected))


def test_rows_may_lie_beyond_what_an_int32_counts():
    memory = torch.zeros(2**31 + 4096, dtype=torch.bfloat16, device="cuda")
    logits = memory.as_strided((2, 1000), (2**31 + 2048, 1))
    slots = tokendraw.RequestSlots(2, 8, 1000, device="cuda")
    slots.add(1, tokendraw.SamplingParams(presence_penalty=1.0, logit_bias={999: 2.0}))
    slots.append(torch.tensor([1], device="cuda"), torch.tensor([7], device="cuda"))
    load().process(logits, slots, torch.tensor([0, 1], device="cuda"))
    assert [logits[1, 7].item(), logits[1, 999].item()] == [-1.0, 2.0]
    assert torch.count_nonzero(memory) == 2


def requested(rows, vocab_size, limit):
    """Return slots whose requests have penalties, biases and bad words, and a prompt."""
    rng, slots = np.random.default_rng(4), tokendraw.RequestSlots(rows, limit, vocab_size, device="cuda")
    for slot in range(rows):
        ids = rng.integers(0, vocab_size, 5).tolist()
        params = tokendraw.SamplingParams(
            repetition_penalty=1.5,
            presence_penalty=0.5,
            logit_bias={ids[0]: 2.0},
            bad_words=[ids[:2], ids[2:]],
        )
        slots.add(slot, params, rng.integers(0, vocab_size, limit // 3).tolist())
    return slots


def test_edits_are_made_on_the_stream_that_is_current():
    processor, slots, row_index = load(), requested(6, 5000, 300), torch.arange(6, device="cuda")
    given = torch.randn(6, 5000, device="cuda")
    expected, logits = processor.process(given.clone(), slots, row_index), torch.zeros_like(given)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        logits.copy_(given)
        processor.process(logits, slots, row_index)
    torch.cuda.synchronize()
    assert torch.equal(bits(logits), bits(expected))


@pytest.mark.parametrize("width", [None, 1, 4])
def test_appended_tokens_leave_the_tables_as_torch_does_without_a_wait_and_in_a_graph(width):
    rng, vocab_size, limit = np.random.default_rng(4), 5000, 60
    by_launch, by_torch = (requested(32, vocab_size, limit) for _ in range(2))
    load().process(
        torch.zeros(32, vocab_size, device="cuda"), by_launch, torch.arange(32, device="cuda"), None
    )
    assert by_launch.appender is not None
    assert by_torch.appender is None
    rows = torch.arange(32, device="cuda", dtype=torch.int32)
    tokens = torch.zeros(32 if width is None else (32, width), dtype=torch.int64, device="cuda")

    def step(slots):
        slots._append(None, rows, tokens)

    require_no_wait(Trial("append", 0), "a step", lambda: by_launch.appender(by_launch.tables, rows, tokens))
    require_no_wait(Trial("append", 0), "a step", lambda: by_torch._histories.append(rows, tokens))
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        step(by_launch)
    for _ in range(40):  # the last ones find no room
        tokens.copy_(torch.tensor(rng.choice([-1, vocab_size, *range(50)], tuple(tokens.shape))))
        rows.copy_(torch.tensor(rng.permutation(34)[:32]))
        graph.replay()
        by_torch._histories.append(rows, tokens)
    for name, table in vars(by_torch.tables).items():
        pair = torch.stack((getattr(by_launch.tables, name), table))
        if name == "distinct":  # in any order
            pair = pair.sort(2).values
        assert torch.equal(*pair), name
