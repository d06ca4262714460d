"""Threads of native on a CPU, sharing a batch's rows: the same results, without disturbing other threads."""

import _thread
import sys
import threading
import time
from dataclasses import fields, is_dataclass, replace
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import isolation
import tokendraw
from tokendraw import Drafts, Need, RequestSlots, SamplingMetadata, SamplingParams, load_sampler
from tokendraw._torch.threads import _setters
from tokendraw_native import row_threads
from tokendraw_native.buffers import Buffers
from tokendraw_native.row_threads import CHUNK_LOGITS, map_steps, share_threads

ROWS, VOCAB_SIZE = 64, 40_000
"""Five chunks of statistics, two of largest values."""
CPU = torch.device("cpu")
REQUESTS = {
    "none": SamplingParams(temperature=0.8),
    "top-k": SamplingParams(temperature=0.8, top_k=50),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "large top-k": SamplingParams(top_k=5000),
    "min-p": SamplingParams(temperature=1.3, min_p=0.05),
    "greedy": SamplingParams(temperature=0.0),
}


@pytest.fixture(autouse=True)
def threads():
    """Restore torch's number of threads after each test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sampler():
    return load_sampler("native", device="cpu")


def logits_of(dtype=torch.float32):
    logits = 3 * torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    logits[5, 17] = logits[33, 0] = torch.nan
    logits[40] = -torch.inf
    logits[50, 3:9] = torch.inf
    return logits.to(dtype)


def metadata_of(requests, **columns):
    return SamplingMetadata.from_params(requests, positions=list(range(ROWS)), **columns)


def tensors(output):
    """List the tensors of an output and of the records inside."""
    values = [getattr(output, field.name) for field in fields(output)] if is_dataclass(output) else output
    for value in values:
        if is_dataclass(value):
            yield from tensors(value)
        elif value is not None:
            yield value


def mixed(**fields):
    requests = [*REQUESTS.values()]
    return [replace(requests[row % 7], seed=row if row % 3 else None, **fields) for row in range(ROWS)]


def alike(name, **fields):
    return [replace(REQUESTS[name], seed=row, **fields) for row in range(ROWS)]


def sampling(requests, *, logits=None, need=None, **columns):
    own = load_sampler("native", device="cpu", need=need)
    logits, metadata = logits_of() if logits is None else logits, metadata_of(requests, **columns)
    return lambda: own.sample(logits, metadata)


def verifying(mode, logprobs):
    own, logits, metadata = (
        load_sampler("native", device="cpu"),
        logits_of(),
        metadata_of(mixed(logprobs=logprobs)),
    )
    draft_logits = logits_of()[: ROWS - 16].roll(1, 1)
    drafts = Drafts.from_counts(torch.arange(ROWS - 16), [3] * 16, draft_logits=draft_logits)
    return lambda: own.verify(logits, drafts, metadata, mode=mode)


def editing():
    processor, slots = (
        tokendraw.load("process_logits", "native", device="cpu"),
        RequestSlots(ROWS, 40, VOCAB_SIZE),
    )
    params = SamplingParams(
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        logit_bias={7: 2.0},
        allowed_token_ids=[*range(30_000)],
    )
    for slot in range(ROWS):
        slots.add(slot, params, prompt_token_ids=[slot, 2 * slot, 5])
    logits, mask = logits_of(), torch.randint(-(2**31), 2**31, (ROWS, VOCAB_SIZE // 32)).to(torch.int32)
    return lambda: [processor.process(logits.clone(), slots, torch.arange(ROWS), mask).view(torch.int32)]


PROCESSED_FP64 = Need(logprobs_mode="processed_logprobs", gumbel_dtype="fp64")
CALLS = {
    **{name: partial(sampling, alike(name)) for name in REQUESTS},
    **{
        f"{name}, logprobs": partial(sampling, alike(name, logprobs=3))
        for name in ("none", "top-p", "greedy")
    },
    "unseeded": partial(sampling, [REQUESTS["top-k and top-p"]] * ROWS),
    "mixed": partial(sampling, mixed()),
    "mixed, logprobs": partial(sampling, mixed(logprobs=2)),
    "mixed, processed, fp64": lambda: sampling(mixed(logprobs=4), need=PROCESSED_FP64),
    "mixed, bfloat16": lambda: sampling(mixed(), logits=logits_of(torch.bfloat16)),
    "rows of slots": partial(sampling, mixed(), row_index=torch.arange(ROWS).flip(0)),
    "an expanded row": lambda: sampling(
        [SamplingParams(top_p=0.9)] * ROWS, logits=logits_of()[:1].expand(ROWS, -1)
    ),
    **{f"{mode} of drafts": partial(verifying, mode, 2) for mode in ("rejection", "coupled")},
    "drafts without logprobs": partial(verifying, "rejection", None),
    "edits": editing,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_returns_the_same_with_any_number_of_threads(name):
    call, outputs = CALLS[name](), []
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        torch.manual_seed(11)
        outputs.append([*tensors(call())])
        assert torch.get_num_threads() == count
    for output in outputs[1:]:
        assert len(output) == len(outputs[0])
        assert all(torch.equal(a, b) for a, b in zip(outputs[0], output, strict=True))


def test_after_an_error_the_numbers_of_threads_are_what_they_were():
    torch.set_num_threads(2)
    _, set_mkl = _setters()
    set_mkl(3)
    with pytest.raises(ZeroDivisionError), share_threads(torch.empty(2, CHUNK_LOGITS)):
        1 / 0  # noqa: B018
    assert (torch.get_num_threads(), row_threads._thread_state.threads) == (2, 1)
    if set_mkl is not int:
        assert set_mkl(0) == 3


class ParallelRegions(TorchDispatchMode):
    """Lists operations of the calling thread large enough for torch's own threads."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        large = [x for x in (*args, output) if isinstance(x, torch.Tensor) and x.numel() >= 1 << 12]
        if large and torch.get_num_threads() > 1 and not function.is_view:
            self.names.append(str(function))
        return output


@pytest.mark.parametrize(
    "name",
    ["mixed", "mixed, logprobs", "top-k", "greedy", "rejection of drafts", "coupled of drafts", "edits"],
)
def test_no_large_operation_is_shared_out_by_torch_itself(name):
    torch.set_num_threads(2)
    call = CALLS[name]()
    call()  # who serves is negotiated and proven now
    with ParallelRegions() as regions:
        call()
    assert regions.names == ["aten.clone.default"] * (name == "edits")  # the test's own


@pytest.mark.slow
def test_several_threads_compute_the_chunks(sampler, monkeypatch):
    """So the comparisons above can fail."""
    torch.set_num_threads(2)
    computing, compute = set(), row_threads._Batch._take_chunks

    def recorded(batch):
        computing.add(threading.get_ident())
        compute(batch)

    monkeypatch.setattr(row_threads._Batch, "_take_chunks", recorded)
    logits, metadata = logits_of(), metadata_of(mixed())
    for _ in range(20):
        sampler.sample(logits, metadata)
    assert len(computing) > 1


def test_buffers_of_a_cpu_serve_the_next_call_inside_and_outside_of_inference_mode():
    def addresses(threads):
        torch.set_num_threads(threads)
        with share_threads(torch.empty(2, CHUNK_LOGITS)):
            return map_steps(
                lambda _, buffers: buffers.take("test", 3, 7, torch.float32).zero_().data_ptr(), 2, 1, CPU
            )

    with torch.inference_mode():
        first = addresses(1)
    assert addresses(1) == first
    assert first[0] in {address for _ in range(20) for address in addresses(2)}
    buffers = Buffers(CPU)
    small, large = buffers.take("test", 2, 3, torch.float32), buffers.take("test", 5, 4, torch.float32)
    assert (small.shape, large.shape) == ((2, 3), (5, 4))
    assert buffers.take("test", 4, 5, torch.float32).data_ptr() == large.data_ptr()
    assert buffers.take("test", 4, 5, torch.float64).dtype == torch.float64


def test_an_error_of_a_chunk_leaves_its_buffers_to_no_other_call():
    kept = []

    def compute(rows, buffers):
        kept.append(buffers)
        raise ValueError

    torch.set_num_threads(1)
    for _ in range(2):
        with share_threads(torch.empty(2, CHUNK_LOGITS)), pytest.raises(ValueError, match=r"^$"):
            map_steps(compute, 2, 1, CPU)
    assert kept[0] is not kept[1]


@pytest.mark.parametrize("start", ["refused", "late"])
def test_helpers_that_cannot_start_or_get_no_turn_hold_nothing_up(sampler, monkeypatch, start):
    def start_new_thread(function, arguments):
        if start == "refused":
            raise RuntimeError("can't start new thread")

    torch.set_num_threads(1)
    logits, metadata = logits_of(), metadata_of([SamplingParams(seed=row) for row in range(ROWS)])
    alone = sampler.sample(logits, metadata).token_ids
    torch.set_num_threads(4)
    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    assert torch.equal(sampler.sample(logits, metadata).token_ids, alone)


def shared(compute, chunks=8):
    """Compute chunks of a row on two threads."""
    torch.set_num_threads(2)
    with share_threads(torch.empty(chunks, CHUNK_LOGITS)):
        return map_steps(compute, chunks, 1, CPU)


def test_the_error_of_a_chunk_reaches_the_caller_once_and_ends_the_batch():
    seen = []

    def compute(rows, buffers):
        seen.append(rows.start)
        raise ValueError(f"row {rows.start}")

    with pytest.raises(ValueError, match=r"^row [01]$"):
        shared(compute, 64)
    assert len(seen) <= 2
    assert shared(lambda rows, buffers: rows.start) == [*range(8)]


def both_threads(state):
    """Collect the results of ``state`` on the calling thread and on a helper, synchronized by a barrier."""
    barrier, found = threading.Barrier(2, timeout=20), []

    def compute(rows, buffers):
        barrier.wait()
        found.append((threading.get_ident(), state()))

    shared(compute, 2)
    assert len({thread for thread, _ in found}) == 2
    return [value for _, value in found]


def test_helpers_compute_alone_and_in_the_modes_of_the_caller():
    assert both_threads(torch.get_num_threads) == [1, 1]
    assert both_threads(torch.is_grad_enabled) == [True, True]
    with torch.no_grad():
        assert both_threads(torch.is_grad_enabled) == [False, False]
    with torch.inference_mode():
        assert both_threads(torch.is_inference_mode_enabled) == [True, True]


def test_threads_that_start_beside_a_call_compute_with_the_number_of_the_process():
    found = []

    def state():
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    both_threads(state)
    assert found == [2, 2]


def test_a_caller_that_waits_for_a_helper_sleeps():
    caller, waited = threading.get_ident(), []
    barrier = threading.Barrier(2, timeout=20)

    def compute(rows, buffers):
        barrier.wait()
        if threading.get_ident() != caller:
            before = time.process_time()
            time.sleep(0.3)
            waited.append(time.process_time() - before)

    shared(compute, 2)
    assert waited[0] < 0.1


IN_A_PROCESS = """
import atexit, os, torch, tokendraw
from tokendraw import SamplingMetadata, SamplingParams
torch.set_num_threads(2)
sampler = tokendraw.load_sampler("native", device="cpu")
logits = torch.randn(64, 40_000, generator=torch.Generator().manual_seed(1))
metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.9, seed=1)] * 64, positions=range(64))
expected = sampler.sample(logits, metadata).token_ids
def same():
    assert torch.equal(sampler.sample(logits, metadata).token_ids, expected)
"""


def printed(code):
    ran = isolation.run_forked(IN_A_PROCESS + code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")
def test_children_of_a_process_that_shared_a_batch_draw_and_no_helper_stays():
    code = """
import time
time.sleep(0.5)
import threading
assert threading.active_count() == 1
before = len(os.listdir("/proc/self/task"))
same()
time.sleep(0.5)
assert len(os.listdir("/proc/self/task")) == before
for _ in range(5):
    pid = os.fork()
    if not pid:
        same()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("drawn")
"""
    assert printed(code) == "drawn\n"


@pytest.mark.slow
def test_a_call_at_the_end_of_the_interpreter_draws():
    assert printed("atexit.register(lambda: (same(), print('drawn')))") == "drawn\n"
