"""Edits of logits by triton-gumbel on a CPU: results in Triton's interpreter, compilations, and launches."""

from itertools import cycle

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, LogitsProcessorBackend, ProcessCapabilities, ProcessNeed
from tokendraw_triton_gumbel import plugin
from tokendraw_triton_gumbel.edit_launches import BITMASK, ProcessLaunches
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from triton_stand_ins import ENDS, SOME, TARGETS, compiled_call, flat, has_machine_code, interpreted

CPU = torch.device("cpu")
V = 100
PENALTIES = 1
DRY = {"dry_multiplier": 0.8, "dry_sequence_breakers": [7]}
WINDOW = {"presence_penalty": 0.5, "penalty_last_n": 5}
BUDGET = {"thinking_budget": (2, [1], [5, 6])}
SEARCHES = ("open_tables", "fill_tables", "count_window", "find_forced_ids")
EVERYTHING = {
    "repetition_penalty": 1.5,
    "logit_bias": {3: 1.0},
    "allowed_token_ids": [1, 2],
    "bad_words": [[1, 2]],
    "min_tokens": 2,
    "stop_token_ids": [5],
}


def slots_for(**params):
    """Create slots with one request."""
    slots = RequestSlots(4, 8, V)
    slots.add(2, SamplingParams(**params), prompt_token_ids=[1, 2])
    return slots


def process(
    slots, *, dtype=torch.float32, index=torch.int64, drafts=None, bitmask=False, offset=0, family="cuda"
):
    """Process three rows, and return the tensors of the call."""
    logits = torch.zeros(3 * V + offset, dtype=dtype)[offset:].view(3, V)
    row_index = torch.tensor([2, 0, 1], dtype=index)
    words = torch.full((3, 5), -1, dtype=torch.int32)[:, :4] if bitmask else None
    processor = TritonLogitsProcessor(CPU)
    processor._launches = ProcessLaunches(family, processors=132)
    assert processor.process(logits, slots, row_index, words, drafts) is logits
    return logits, row_index, words


def drafted(dtype=torch.int64):
    """Create two drafts of one request: three rows."""
    ids, offsets = torch.tensor([4, 5], dtype=dtype), torch.tensor([0, 3], dtype=dtype)
    return Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)


@pytest.mark.slow
def test_programs_that_share_a_row_have_the_bits_of_float32_arithmetic_in_the_interpreter():
    """The lines of the kit are run in ``test_interpreted.py``, by programs of the usual sizes."""
    result = interpreted("edits", "fuzz", 40)
    assert result["wrong"] == []
    assert result["rows"] > 200


@pytest.mark.slow
def test_lists_and_drafts_of_any_length_are_edited_in_the_interpreter():
    assert interpreted("edits", "long_lists") == [0, 9 + 12 + 11 + 10 + 13]


@pytest.mark.slow
def test_tables_without_memory_are_no_hindrance_in_the_interpreter():
    assert interpreted("edits", "families") == {
        "logit_bias": [0, 1],
        "allowed_token_ids": [0, 68],
        "bad_words": [0, 1],
        "stop_token_ids": [0, 1],
        "repetition_penalty": [0, 1],
    }


@pytest.mark.slow
@pytest.mark.parametrize("programs", ["small", "usual"])
def test_windows_and_repetitions_of_any_kind_have_the_bits_of_native_in_the_interpreter(programs):
    result = interpreted("edits", "repetitions", 1, 30, programs)
    assert result["wrong"] == []
    assert result["edited"] > 300


@pytest.mark.slow
def test_windows_and_matches_of_thousands_of_tokens_have_the_bits_of_native_in_the_interpreter():
    assert interpreted("edits", "long_histories") == [0, 4713, 1]


@pytest.mark.slow
def test_masks_in_the_interpreter_change_forbidden_ids_alone_at_any_alignment():
    result = interpreted("edits", "masks", 64)
    assert result == dict.fromkeys(result, 0)
    assert len(result) == 90


@pytest.mark.slow
def test_edits_of_full_slots_stay_inside_their_tensors():
    assert interpreted("edits", "full_slots") == 3


@pytest.mark.slow
def test_tokens_appended_in_the_interpreter_leave_the_tables_as_torch_does():
    assert interpreted("edits", "appends", 0) == 0


def test_the_plugin_offers_and_builds_it(kernels):
    described = plugin.tokendraw_describe().operations
    assert described["process_logits"] == ProcessCapabilities(
        device_types=("cuda", "rocm"),
        compute_capability=((8, 0), None),
        rocm_archs=("gfx90a", "gfx942", "gfx950", "gfx1201"),
        dtypes=("float32", "bfloat16", "float16"),
        drafts=True,
        edits=EDITS,
        graph_safe=True,
        sync_free=True,
    )
    processor = plugin.tokendraw_build("process_logits", CPU, ProcessNeed())
    assert isinstance(processor, LogitsProcessorBackend)


# What is compiled.

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype"), [*zip(ENDS, cycle(DTYPES), strict=False)], ids=str)
def test_the_kernel_compiles(kernels, target, dtype):
    """With all edits and drafts; without them, on a target of each vendor."""
    family = TARGETS[target][0]
    process(slots_for(**EVERYTHING), dtype=dtype, drafts=drafted(), family=family)
    if target in SOME:
        process(slots_for(), dtype=dtype, bitmask=True, family=family)
        process(slots_for(**EVERYTHING), dtype=dtype, family=family)
    calls = kernels["process_logits"].calls
    assert [has_machine_code(compiled_call(call, target)) for call in calls] == [True] * len(calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masks_store_vectors_of_16_bytes_and_prefetch_partial_vectors_at_any_alignment(kernels, dtype):
    process(slots_for(), dtype=dtype, bitmask=True, offset=1)
    (call,) = kernels["process_logits"].calls
    code = compiled_call(call, "sm_90")["ptx"]
    assert "st.global.v4.b32" in code
    assert "prefetch.global.L2" in code
    assert "ld.global.v4" not in code  # what a vector holds is not read, so it cannot be written back


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_the_searches_of_the_history_compile(kernels, target):
    family = TARGETS[target][0]
    process(slots_for(**DRY, **WINDOW, **BUDGET), family=family)
    process(slots_for(**DRY, **WINDOW, **BUDGET), drafts=drafted(), family=family)
    calls = [call for name in SEARCHES for call in kernels[name].calls]
    assert [has_machine_code(compiled_call(call, target)) for call in calls] == [True] * 8


@pytest.mark.slow
def test_products_are_rounded_before_they_are_subtracted_and_quotients_as_in_ieee_754(kernels):
    """The bits equal other providers' bits. The compiler's default options would fuse products."""
    process(slots_for(**EVERYTHING))
    ((kernel, arguments, named),) = kernels["process_logits"].calls
    code = compiled_call((kernel, arguments, named), SOME[0])["ptx"]
    fused = compiled_call((kernel, arguments, named | {"enable_fp_fusion": True}), SOME[0])["ptx"]
    assert "fma.rn.f32" not in code
    assert "fma.rn.f32" in fused
    assert "div.rn.f32" in code
    assert "div.full" not in code
    assert ".ftz" not in code


def test_a_kernel_is_compiled_for_the_types_of_a_call_and_for_nothing_else(kernels):
    few, many = slots_for(presence_penalty=1.0), slots_for(**EVERYTHING)
    for slots in (few, many):
        for bitmask in (True, False):
            for offset in range(3):
                process(slots, bitmask=bitmask, offset=offset)
    kernel = kernels["process_logits"]
    assert len(kernel.compilations) == 2  # one for penalties and masks, and one for whatever requests may ask
    process(few, dtype=torch.float16)
    process(few, index=torch.int32)
    process(few, index=torch.int16)  # is converted, and there is one for int64
    process(few, drafts=drafted())
    process(many, drafts=drafted())
    process(few, drafts=drafted(torch.int32))
    assert len(kernel.compilations) == 6


# What is launched.


def test_a_call_without_edits_launches_nothing(kernels):
    process(slots_for())
    process(slots_for(temperature=0.5, stop_token_ids=[3]))
    assert kernels["process_logits"].launches == []
    process(slots_for(), bitmask=True)
    assert len(kernels["process_logits"].launches) == 1


def test_edits_without_a_search_of_the_history_are_one_launch(kernels):
    process(slots_for(**EVERYTHING), bitmask=True, drafts=drafted())
    assert len(kernels["process_logits"].launches) == 1
    assert [kernels[name].launches for name in SEARCHES] == [[]] * 4


def test_thinking_budgets_are_one_launch_more_whose_ids_the_edits_read(kernels):
    process(slots_for(**BUDGET), drafts=drafted())
    ((grid, found),), ((_, edited),) = (
        kernels[name].launches for name in ("find_forced_ids", "process_logits")
    )
    assert grid == (3, 1, 1)
    assert edited[2][2] == found[-2]
    assert edited[0] == 256
    assert kernels["open_tables"].launches == []


@pytest.mark.parametrize(("edit", "count"), [(DRY, 2), (WINDOW, 3), (DRY | WINDOW, 3)])
def test_dry_is_two_launches_more_and_a_window_three_with_entries_for_twice_the_tokens_of_a_row(
    kernels, edit, count
):
    process(slots_for(**edit), drafts=drafted())
    launches = [launch for name in SEARCHES for launch in kernels[name].launches]
    ((_, edited),) = kernels["process_logits"].launches
    assert len(launches) == count
    assert {grid for grid, _ in launches} == {(3, 1, 1)}
    assert all(edited[-2] in arguments for _, arguments in launches)
    assert edited[-2][-1] == 2 * (8 + 2)  # max_tokens and drafts


def test_a_table_has_no_more_entries_than_there_are_ids(kernels):
    slots = RequestSlots(4, 60, V)
    slots.add(2, SamplingParams(**DRY), [1])
    process(slots)
    ((_, edited),) = kernels["process_logits"].launches
    assert edited[-2][-1] == V


def test_several_programs_fill_the_table_of_a_long_history(kernels):
    slots = RequestSlots(1, 40_000, 100_000)
    slots.add(0, SamplingParams(**WINDOW), [1])
    processor = TritonLogitsProcessor(CPU)
    processor._launches = ProcessLaunches("cuda", processors=132)
    for rows in (1, 256):
        processor.process(torch.zeros(rows, 100_000), slots, torch.zeros(rows, dtype=torch.int64))
    grids = [[grid[0] for grid, _ in kernels[name].launches] for name in SEARCHES[:3]]
    assert grids == [[79, 256 * 33], [313, 256 * 33], [313, 256 * 33]]


@pytest.mark.parametrize(
    ("rows", "max_tokens", "flags", "has_drafts", "division"),
    [
        (256, 8192, PENALTIES, False, (8, 0, 0)),
        (256, 128, PENALTIES, False, (2, 0, 0)),
        (1, 8192, PENALTIES, False, (128, 0, 0)),
        (1, 8192, PENALTIES, True, (128, 1, 0)),
        (4096, 8192, PENALTIES, False, (1, 0, 0)),
        (256, 8192, 2, False, (0, 1, 0)),
        (256, 8192, BITMASK, False, (0, 0, 33)),
        (256, 8192, 256, False, (0, 0, 33)),
        (256, 8192, 128, True, (8, 1, 0)),
        (1, 8192, BITMASK, False, (0, 0, 149)),
        (256, 8192, 31 | BITMASK, True, (8, 1, 33)),
    ],
)
def test_the_programs_of_a_row(rows, max_tokens, flags, has_drafts, division):
    """Small batches get a program for every 64 possible ids; large ones share the multiprocessors."""
    launches = ProcessLaunches("cuda", processors=132)
    result = launches.divide(rows, 151_936, max_tokens, flags, has_drafts=has_drafts)
    assert result == ((rows * sum(division), 1, 1), division)


def test_a_launch_is_given_addresses_and_numbers(kernels):
    slots = slots_for(presence_penalty=1.0)
    logits, row_index, words = process(slots, bitmask=True)
    process(slots, drafts=drafted())
    (_, masked), (_, verified) = kernels["process_logits"].launches
    assert masked[2][:2] == (row_index.data_ptr(), 4)
    assert masked[3] == (logits.data_ptr(), V, V)
    assert masked[6][:2] == (words.data_ptr(), 5)
    assert flat(masked[8:9]) == [None] * 5
    assert verified[7][0] == slots.tables.history.data_ptr()
    assert verified[8][1:3] == (2, 0)
    assert verified[8][4] == 1
    assert (masked[0], verified[0]) == (PENALTIES | BITMASK, PENALTIES)


def test_the_tables_of_slots_are_looked_at_once_and_others_anew(kernels):
    processor = TritonLogitsProcessor(CPU)
    logits, row_index = torch.zeros(1, V), torch.tensor([2])
    first, second = slots_for(presence_penalty=1.0), slots_for(presence_penalty=1.0)
    for slots in (first, first, second, first):
        processor.process(logits, slots, row_index)
    histories = [arguments[7][0] for _, arguments in kernels["process_logits"].launches]
    a, b = (slots.tables.history.data_ptr() for slots in (first, second))
    assert histories == [a, a, b, a]


def test_lists_that_come_later_are_looked_at(kernels):
    processor, slots = TritonLogitsProcessor(CPU), slots_for(presence_penalty=1.0)
    logits, row_index = torch.zeros(1, V), torch.tensor([2])
    processor.process(logits, slots, row_index)
    slots.add(1, SamplingParams(logit_bias={3: 1.0}))
    processor.process(logits, slots, row_index)
    (_, before), (_, after) = kernels["process_logits"].launches
    assert before[9][3] == 0
    assert (after[9][0], after[9][3]) == (slots.tables.bias_ids.data_ptr(), 100)
    assert before[7] == after[7]


# What appends tokens.


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
def test_the_append_compiles(kernels, target):
    launches = ProcessLaunches(TARGETS[target][0], processors=132)
    launches.append(torch.int64)
    launches.append(torch.int32)
    calls = kernels["append_tokens"].calls
    assert [has_machine_code(compiled_call(call, target)) for call in calls] == [True, True]


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_a_step_of_tokens_is_one_launch_compiled_with_the_edits(kernels, index):
    slots, processor = slots_for(**EVERYTHING), TritonLogitsProcessor(CPU)
    row_index = torch.tensor([2, 0, 1], dtype=index)
    processor.process(torch.zeros(3, V), slots, row_index)
    for tokens in (torch.tensor([4, 5, 6]), torch.tensor([[4, 5], [6, 7], [8, 9]])):
        processor.append(slots.tables, row_index, tokens)
        grid, arguments = kernels["append_tokens"].launches[-1]
        assert grid == (3, 1, 1)
        tables = slots.tables
        places = [tables.history, tables.num_tokens, tables.limit, tables.distinct, tables.num_distinct]
        places = [table.data_ptr() for table in (*places, tables.counts)]
        width = tokens.numel() // 3
        rows = [row_index.data_ptr(), 4, None]
        assert flat(arguments) == [*rows, tokens.data_ptr(), width, *places, 8, V]
    assert len(kernels["append_tokens"].compilations) == 1
    assert len(kernels["append_tokens"].launches) == 2


def test_steps_without_rows_or_tokens_launch_nothing(kernels):
    slots, processor = slots_for(), TritonLogitsProcessor(CPU)
    processor.append(slots.tables, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    processor.append(slots.tables, torch.tensor([2]), torch.empty(1, 0, dtype=torch.int64))
    assert kernels["append_tokens"].launches == []
