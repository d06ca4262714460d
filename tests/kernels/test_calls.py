"""Calls of triton-gumbel, with recording kernels: the launches of a call, the values read, and new compilations by
another call.
"""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from triton import knobs

from call_tables import pairs
from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw_triton_gumbel import compiled_calls, launch
from tokendraw_triton_gumbel.kernels.rows import DrawResults, Logits, RowParams
from tokendraw_triton_gumbel.launch import Launch
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import EVERYTHING, compilations, processed, slots_for, two_drafts
from verifying import row_metadata

CPU, ROWS, V = torch.device("cpu"), 4, 2000
PLAIN = SamplingParams()
SEEDED = SamplingParams(temperature=0.8, seed=1)
FILTERED = replace(SEEDED, top_k=50, top_p=0.9, min_p=0.1)
INTERVALS = replace(FILTERED, filter_order="temperature_last", xtc_probability=0.5, xtc_threshold=0.2)
DESCRIBED = SamplingParams(logprobs=2)
MOMENTS = replace(SEEDED, filters={"top_n_sigma": 1.0})
NAMES = {"seed": "seeds"} | {
    name: name for name in ("temperature", "seeded", "positions", "top_k", "top_p", "min_p")
}
"""Fields of the metadata, and what kernels call them."""


class Launches(list):
    """Recorded launches since the last ``taken()``: (name, grid, arguments, stream)."""

    def taken(self):
        result, self[:] = self[:], []
        return result

    def names(self):
        return [name for name, *_ in self.taken()]


@pytest.fixture
def launched(kernels, monkeypatch):
    """Record every launch; ``look`` reads the arguments during the call, before its tensors are freed."""
    result, original = Launches(), Launch.__call__
    result.look = lambda arguments: None

    def note(self, grid, arguments, stream):
        result.look(arguments)
        result.append((self.kernel.original.__name__, grid, arguments, stream))
        original(self, grid, arguments, stream)

    monkeypatch.setattr(Launch, "__call__", note)
    return result


def here(**need):
    return TritonGumbelSampler(CPU, Need(**need))


def metadata_of(*params):
    return SamplingMetadata.from_params(params, positions=range(len(params)))


# Which kernels a call launches.


def sample(params, **need):
    here(**need).sample(torch.zeros(ROWS, V), metadata_of(*[params] * ROWS))


def score(params):
    here().score(torch.zeros(ROWS, V), torch.zeros(ROWS, dtype=torch.int64), metadata_of(*[params] * ROWS))


def verify(params, kind=None, mode="rejection", **need):
    q = {} if kind is None else {kind: torch.zeros(3, V)}
    drafts = Drafts.from_lists([[5, 6], [7]], **q)
    here(**need).verify(torch.zeros(5, V), drafts, row_metadata(drafts, params), mode=mode)


def edit(*, bitmask=False, drafts=None, **params):
    processed(slots_for(V, **params), bitmask=bitmask, drafts=drafts)


def append(rows, *shape):
    tokens = torch.zeros(shape, dtype=torch.int64)
    TritonLogitsProcessor(CPU).append(slots_for(V).tables, torch.arange(rows), tokens)


TILES, DRAWS, LARGE, ACCEPTS = "tile_statistics", "draw_rows", "draw_large_sets", "accept_drafts"
DRAWN, DRAWN_LARGE = [TILES, DRAWS], [TILES, DRAWS, LARGE]


@pytest.mark.parametrize(("call", "names"), pairs(Path(__file__).with_name("launches.txt")))
def test_a_call_launches_what_its_requests_need(launched, call, names):
    eval(call, globals())
    assert (" ".join(launched.names()) or "nothing") == names


@pytest.mark.parametrize("kind", [None, "draft_logits", "draft_probs"])
def test_calls_are_found_by_values_that_every_triton_can_hash(launched, monkeypatch, kind):
    monkeypatch.setattr(tl.constexpr, "__hash__", None)  # as in Triton 3.4
    verify(SEEDED, kind)
    assert "accept_drafts" in launched.names()


def test_facts_that_change_decide_the_launches_of_the_next_call(launched):
    backend, logits, metadata = here(), torch.zeros(ROWS, V), metadata_of(*[FILTERED] * ROWS)
    nothing = BatchFacts(max_top_k=0, any_top_p=False, any_min_p=False)
    for facts, expected in ((metadata.facts, DRAWN_LARGE), (nothing, DRAWN), (metadata.facts, DRAWN_LARGE)):
        backend.sample(logits, replace(metadata, facts=facts, row_kinds=None))
        assert launched.names() == expected


# Which values the kernels read.


def group(arguments, kind):
    """Return the argument group of type ``kind`` among a kernel's arguments, or None."""
    return next((each for each in arguments if isinstance(each, kind)), None)


def values_at(address, dtype, count):
    """Read ``count`` values from memory at an address."""
    content = ctypes.string_at(address, count * dtype.itemsize)
    return torch.frombuffer(bytearray(content), dtype=dtype).tolist()


def doubled(metadata):
    for name in NAMES:
        tensor = getattr(metadata, name)
        tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor * 2 + 1)
    return metadata


def moved(metadata):
    metadata.temperature.set_(torch.full((ROWS,), 0.3, dtype=torch.float64))
    return metadata


CHANGES = {
    "in place": doubled,
    "to new memory": moved,
    "to other positions": lambda metadata: metadata.with_positions(torch.arange(7, 7 + ROWS)),
    "to positions apart": lambda metadata: metadata.with_positions(torch.arange(2 * ROWS)[::2]),
    "to other requests": lambda metadata: metadata_of(*[replace(FILTERED, top_k=3, seed=2)] * ROWS),
    "to another dtype": lambda metadata: replace(metadata, temperature=metadata.temperature.float()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_call_reads_the_parameters_as_they_are_then(launched, change):
    backend, logits, metadata = here(), torch.zeros(ROWS, V), metadata_of(*[FILTERED] * ROWS)
    read = {}

    def look(arguments):
        if params := group(arguments, RowParams):
            for name, field in NAMES.items():
                tensor = getattr(metadata, name)
                read[name] = values_at(getattr(params, field), tensor.dtype, ROWS)

    launched.look = look
    for _ in range(3):
        read.clear()
        backend.sample(logits, metadata)
        assert read == {name: getattr(metadata, name).tolist() for name in NAMES}
        metadata = CHANGES[change](metadata)


def test_logits_are_read_in_place_and_from_a_copy_if_elements_lie_apart(launched):
    backend, metadata = here(), metadata_of(*[SEEDED] * ROWS)
    storage = torch.zeros(2 * ROWS, V + 48)
    for logits in (storage[:ROWS, :V], storage[::2, :V], storage[:ROWS, 7 : V + 7]):
        for _ in range(2):
            backend.sample(logits, metadata)
            for _, _, arguments, _ in launched.taken():
                assert group(arguments, Logits) == (logits.data_ptr(), logits.stride(0), V)
    logits = torch.arange(ROWS * V, dtype=torch.float32).view(V, ROWS).t()
    for _ in range(2):
        read = []
        launched.look = lambda arguments, read=read: read.append(
            values_at(group(arguments, Logits).base, torch.float32, ROWS * V)
        )
        backend.sample(logits, metadata)
        assert read == [logits.flatten().tolist()] * 2
        logits.add_(1)


# Seeds.


@pytest.mark.parametrize("params", [(DESCRIBED, SEEDED), (DESCRIBED, DESCRIBED)])
def test_rows_without_a_seed_get_fresh_ones_at_every_call(launched, params):
    backend, logits, metadata = here(), torch.zeros(2, V), metadata_of(*params)
    seeds = []

    def look(arguments):
        if params := group(arguments, RowParams):
            places = (params.fresh, *(group(arguments, DrawResults) or ()))
            assert len(set(places)) == len(places)  # no output lies over the seeds
            seeds.append(tuple(values_at(params.fresh, torch.int64, 2)))

    launched.look = look
    for again in (1, 2, 1):
        torch.manual_seed(again)
        for _ in range(2):
            backend.sample(logits, metadata)
    assert seeds[:2] == seeds[4:]
    assert len(set(seeds)) == 4


# What another call compiles.


def draw(backend, *params, dtype=torch.float32, offset=0, size=V):
    logits = torch.zeros(len(params) * size + offset, dtype=dtype)[offset:].view(-1, size)
    backend.sample(logits, metadata_of(*params))


def judge(backend, ids):
    """Verify two requests with drafts of the given ids."""
    offsets = speculative.cu_num_logits(torch.tensor([2, 1]))
    drafts = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)
    backend.verify(torch.zeros(5, V), drafts, SamplingMetadata(top_k=torch.ones(5, dtype=torch.int64)))


ANEW = {
    "another dtype": ({}, {"dtype": torch.bfloat16}, 3),
    "rows that cannot be read 16 bytes at once": ({}, {"offset": 1}, 3),
    "other rows that cannot": ({"size": V + 1}, {"size": V + 1, "offset": 1}, 0),
    "rows of one logit": ({"size": V + 1}, {"size": 1}, 0),
}
"""The logits of a first call and of a second one, and how many kernels the second compiles."""


@pytest.mark.parametrize("name", ANEW)
def test_another_layout_compiles_kernels_only_where_they_would_differ(kernels, name):
    first, second, number = ANEW[name]
    backend = here()
    draw(backend, FILTERED, **first)
    before = sum(compilations(kernels).values())
    draw(backend, FILTERED, **second)
    assert sum(compilations(kernels).values()) == before + number


def test_ids_of_another_type_compile_anew_and_at_another_alignment_do_not(kernels):
    backend, numbers = here(), []
    for dtype in (torch.int64, torch.int32):
        for first in (0, 1):
            judge(backend, torch.arange(4, dtype=dtype)[first : first + 3])
            numbers.append(compilations(kernels)[ACCEPTS])
    assert numbers == [1, 1, 2, 2]


def test_edits_are_compiled_for_the_types_of_a_call_and_for_nothing_else(kernels):
    few, many = slots_for(V, presence_penalty=1.0), slots_for(V, **EVERYTHING)
    for slots in (few, many):
        for bitmask in (True, False):
            for offset in range(3):
                processed(slots, bitmask=bitmask, offset=offset)
    numbers = [compilations(kernels)["process_logits"]]
    for slots, call in (
        (few, {"dtype": torch.float16}),
        (few, {"index": torch.int32}),
        (few, {"index": torch.int16}),  # is converted, and there is one for int64
        (few, {"drafts": two_drafts()}),
        (many, {"drafts": two_drafts()}),
        (few, {"drafts": two_drafts(torch.int32)}),
    ):
        processed(slots, **call)
        numbers.append(compilations(kernels)["process_logits"])
    assert numbers[0] == 2  # one for penalties and masks, and one for whatever requests may ask
    assert numbers[-1] == 6
    appending = compilations(kernels)["append_tokens"]
    processed(few).append(few.tables, torch.tensor([2, 0, 1]), torch.tensor([4, 5, 6]))
    assert compilations(kernels)["append_tokens"] == appending


# Streams.


@pytest.mark.parametrize("params", [SEEDED, replace(FILTERED, logprobs=2)], ids=["plain", "everything"])
def test_a_call_launches_on_the_stream_that_is_current_then(launched, kernels, monkeypatch, params):
    backend, logits, metadata = here(), torch.zeros(ROWS, V), metadata_of(*[params] * ROWS)
    for stream in (7, 8, None):
        monkeypatch.setattr(compiled_calls, "current_stream", lambda device, stream=stream: stream)
        backend.sample(logits, metadata)
        assert {stream for *_, stream in launched.taken()} == {stream}
    (compiled,) = kernels[DRAWS]._compiled.values()
    assert [each[:4] for each in compiled.direct_launches] == [(ROWS, 1, 1, 7), (ROWS, 1, 1, 8)]


def test_where_a_profiler_hooks_launches_triton_launches(monkeypatch):
    class Driver:
        @staticmethod
        def get_current_stream(device):
            return 40 + device

    monkeypatch.setattr(launch, "driver", type("Drivers", (), {"active": Driver}))
    monkeypatch.setattr(launch, "_is_direct", {0: True, 1: True})
    assert [launch.current_stream(device) for device in (0, 1, 2, -1)] == [
        40,
        41,
        None,
        None,
    ]  # 2: not checked
    for name in ("launch_enter_hook", "launch_exit_hook"):
        with monkeypatch.context() as patch:
            patch.setattr(knobs.runtime, name, print)  # up to Triton 3.4
            assert launch.current_stream(0) is None
        if (hooks := getattr(knobs.runtime, name)) is None:
            continue  # Triton 3.4, which has no list of hooks
        hooks.add(print)
        try:
            assert launch.current_stream(0) is None
        finally:
            hooks.remove(print)
    assert launch.current_stream(0) == 40


PARAMETERS = "gridX, gridY, gridZ, stream, function, "
"""Of the launchers that Triton compiles."""
LATER = "kernel_metadata, launch_metadata, launch_enter_hook, launch_exit_hook, "


@pytest.mark.parametrize(
    ("parameters", "added", "said"),
    [
        (PARAMETERS, 2, None),
        (PARAMETERS + LATER, 2, None),
        (PARAMETERS, 3, "a launch left [6, 8, 19, 1048579, 10]"),
        ("grid, stream, ", 2, "its launcher takes self, grid, stream, args"),
    ],
)
def test_launches_are_direct_where_the_launcher_is_known_and_one_left_what_it_should(
    monkeypatch, caplog, parameters, added, said
):
    out = torch.zeros(5, dtype=torch.int64)
    names = {"write": lambda counts: out.copy_(torch.tensor(counts) + added)}
    run = type("Launcher", (), {"__call__": eval(f"lambda self, {parameters}*args: write(args[-2])", names)})
    echo = Launch(None, {"ADDED": 2}, {})
    echo._run, echo._function, echo._metadata = run(), "the function", "its metadata"
    active = type("Driver", (), {"get_current_stream": staticmethod(lambda device: 40)})
    monkeypatch.setattr(launch, "driver", type("Drivers", (), {"active": active}))
    monkeypatch.setattr(launch, "_is_direct", {})
    monkeypatch.setattr(launch.torch, "zeros", lambda *args, **named: out)
    monkeypatch.setattr(launch.torch.cuda, "device", lambda index: CPU)
    monkeypatch.setattr(Launch, "compiled", lambda *args: echo)
    for _ in range(2):
        launch.check_direct_launch(torch.device("cuda", 0))
    assert launch.current_stream(0) == (40 if said is None else None)
    line = f"triton-gumbel: this Triton is launched by its public interface, more slowly: {said}"
    assert caplog.messages == ([] if said is None else [line])
