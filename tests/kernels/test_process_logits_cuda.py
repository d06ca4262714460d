"""The edits of logits by triton-gumbel on a CUDA device: beside a plain model and native, in graphs, without waits."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import edit_model
import tokendraw
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.trial import Trial

pytestmark = pytest.mark.gpu

MOST_TOKENS = 300
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRAFTED = (None, "listed", "padded")


def load(plugin="triton-gumbel"):
    return tokendraw.load("process_logits", plugin, device="cuda")


def requests_of(rng, count, vocab_size, *, listed=True):
    return [edit_model.random_request(rng, vocab_size, MOST_TOKENS - 20, listed=listed) for _ in range(count)]


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("drafted", DRAFTED)
def test_edits_have_the_bits_of_float32_arithmetic_and_of_native(dtype, drafted):
    rng, processor, native = np.random.default_rng(1), load(), load("native")
    for vocab_size in (1, 97, 5000, 20_011):
        for listed in (True, False):
            requests = requests_of(rng, 6, vocab_size, listed=listed)
            slots = edit_model.slots_of(requests, MOST_TOKENS, vocab_size, "cuda")
            batch = edit_model.batch(
                rng, requests, vocab_size, dtype, "cuda", drafted=drafted, masked=rng.random() < 0.5
            )
            before = batch.logits.clone()
            processor.process(batch.logits, slots, batch.row_index, batch.bitmask, batch.drafts)
            assert batch.wrong() == 0, (vocab_size, listed)
            expected = native.process(before, slots, batch.row_index, batch.bitmask, batch.drafts)
            result = batch.logits.contiguous()
            same = (bits(result) == bits(expected)) | (result.isnan() & expected.isnan())
            assert same.all(), (vocab_size, listed)


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


def test_no_call_waits():
    rng = np.random.default_rng(2)
    requests = requests_of(rng, 6, 5000)
    processor, slots = load(), edit_model.slots_of(requests, MOST_TOKENS, 5000, "cuda")
    for drafted in DRAFTED:
        batch = edit_model.batch(rng, requests, 5000, torch.bfloat16, "cuda", drafted=drafted, masked=True)

        def work(batch=batch):
            return processor.process(batch.logits, slots, batch.row_index, batch.bitmask, batch.drafts)

        require_no_wait(Trial("process", 0), f"drafts {drafted}", work)


def test_a_graph_follows_appended_tokens_between_replays():
    rng, vocab_size, device = np.random.default_rng(3), 5000, "cuda"
    requests = requests_of(rng, 5, vocab_size)
    processor, slots = load(), edit_model.slots_of(requests, MOST_TOKENS, vocab_size, device)
    row_index = torch.arange(5, device=device)
    logits = torch.empty(5, vocab_size, device=device)
    mask = torch.full((5, -(-vocab_size // 32)), -1, dtype=torch.int32, device=device)
    replay, out = capture(lambda: processor.process(logits, slots, row_index, mask))
    assert out is logits
    for _ in range(6):
        tokens = rng.integers(0, vocab_size, 5)
        for request, token in zip(requests, tokens.tolist(), strict=True):
            request.output.append(token)
        slots.append(row_index, torch.tensor(tokens, device=device))
        allowed = rng.random((5, vocab_size)) < 0.5
        mask.copy_(edit_model.bitmask_of(allowed))
        rows = edit_model.random_logits(rng, 5, vocab_size, torch.float32)
        logits.copy_(rows)
        replay()
        edited = [
            edit_model.edit(*each) for each in zip(rows.numpy(), requests, [()] * 5, allowed, strict=True)
        ]
        expected = torch.from_numpy(np.stack(edited))
        result = logits.cpu()
        assert ((bits(result) == bits(expected)) | (result.isnan() & expected.isnan())).all()


def test_edits_are_made_on_the_stream_that_is_current():
    rng = np.random.default_rng(4)
    requests = requests_of(rng, 6, 5000)
    processor, slots = load(), edit_model.slots_of(requests, MOST_TOKENS, 5000, "cuda")
    batch = edit_model.batch(rng, requests, 5000, torch.float32, "cuda", masked=True)
    given = batch.memory.clone()
    batch.memory.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        batch.memory.copy_(given)
        processor.process(batch.logits, slots, batch.row_index, batch.bitmask)
    torch.cuda.synchronize()
    assert batch.wrong() == 0


@pytest.mark.parametrize("width", [None, 1, 4])
def test_appended_tokens_leave_the_tables_as_torch_does_without_a_wait_and_in_a_graph(width):
    rng, vocab_size, limit = np.random.default_rng(4), 5000, 60
    requests = [edit_model.random_request(rng, vocab_size, limit // 2) for _ in range(32)]
    by_launch, by_torch = (edit_model.slots_of(requests, limit, vocab_size, "cuda") for _ in range(2))
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
