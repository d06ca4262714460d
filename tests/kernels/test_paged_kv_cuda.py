"""Page plans of triton-gumbel on a CUDA device: by the kit, compared with native's, in streams, and compilations."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import tokendraw
from tokendraw import PagedKVPlan
from tokendraw_testing import Subject, run

pytestmark = pytest.mark.gpu

MOST = 2**31 - 1
SENTINEL = -77
SHAPES = [
    (0, 5),
    (1, 1),
    (3, 0),
    (7, 33),
    (256, 64),
    (5, 9000),
    (1023, 65),
    (1024, 300),
    (4096, 512),
    (9000, 17),
]


def load(plugin="triton-gumbel"):
    return tokendraw.load("plan_paged_kv", plugin, device="cuda")


def batch(requests, width, page_size=16, *, seed=0):
    """Lengths, some of them none or beyond the table, and a table with space behind each row."""
    generator = torch.Generator("cuda").manual_seed(seed)
    most = min(width * page_size, MOST - 9)
    lengths = torch.randint(-3, most + 9, (requests,), device="cuda", generator=generator).to(torch.int32)
    if requests > 4:
        lengths[:4] = torch.tensor([MOST, -(2**31), 0, 1], device="cuda")
    table = torch.randint(MOST, (requests, width + 3), dtype=torch.int32, device="cuda", generator=generator)
    return lengths, table[:, 1 : width + 1]


def buffers(requests, width, *, page_indices=True):
    out = PagedKVPlan.empty(requests, width, device="cuda", page_indices=page_indices)
    for buffer in filled(out):
        buffer.fill_(SENTINEL)
    return out


def filled(plan):
    return [buffer for buffer in vars(plan).values() if buffer is not None]


def same(result, expected):
    pairs = zip(filled(result), filled(expected), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def test_every_line_of_the_kit_is_green():
    subject = Subject.installed("triton-gumbel", device="cuda", operation="plan_paged_kv")
    assert run(subject, operation="plan_paged_kv").failed == ()


@pytest.mark.parametrize(("requests", "width"), SHAPES)
def test_plans_equal_natives(requests, width):
    planner, native = load(), load("native")
    for page_size in (1, 7, 16, MOST):
        lengths, table = batch(requests, width, page_size, seed=page_size)
        for page_indices in (True, False):
            out = buffers(requests, width, page_indices=page_indices)
            planner.plan(lengths, table, page_size, page_indices, pad=-5, out=out)
            assert same(out, native.plan(lengths, table, page_size, page_indices, pad=-5))


def test_rows_may_begin_beyond_what_an_int32_counts():
    memory = torch.empty(2**31 + 64, dtype=torch.int32, device="cuda")
    table = memory.as_strided((2, 8), (2**31 + 32, 1))
    table.copy_(torch.arange(16, device="cuda").view(2, 8))
    lengths = torch.tensor([20, 128], dtype=torch.int32, device="cuda")
    result = load().plan(lengths, table, 16)
    assert result.page_indices.tolist() == [0, 1, *range(8, 16), *[-1] * 6]


@pytest.fixture
def compiled(monkeypatch):
    """Record the names of kernels compiled, or read from Triton's cache on disk."""
    result = []
    hook = "triton.knobs.runtime.jit_post_compile_hook"
    monkeypatch.setattr(hook, lambda *, fn, **_: result.append(fn.name))
    return result


def test_no_plan_compiles_anything_and_a_graph_captures_the_first(compiled):
    for requests, width in SHAPES:
        planner, (lengths, table), graph = load(), batch(requests, width), torch.cuda.CUDAGraph()
        planner.prepare()
        compiled.clear()
        out = buffers(requests, width)
        with torch.cuda.graph(graph):
            planner.plan(lengths, table, 16, out=out)
        for seed in range(1, 6):
            for held, new in zip((lengths, table), batch(requests, width, seed=seed), strict=True):
                held.copy_(new)
            graph.replay()
            assert same(out, planner.plan(lengths, table, 16)), (requests, width, seed)
        assert compiled == []


def test_a_plan_is_made_on_the_stream_that_is_current():
    planner, (lengths, table) = load(), batch(256, 64)
    expected, other = planner.plan(lengths, table, 16), batch(256, 64, seed=1)
    lengths_there = other[0].clone()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        lengths_there.copy_(lengths)
        result = planner.plan(lengths_there, table, 16)
    torch.cuda.synchronize()
    assert same(result, expected)
