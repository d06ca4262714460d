"""The compiled backend of CPUs: the kit in every instruction set, rows of its own shortcuts, refusals."""

import pytest
import torch

from judged_rows import judge
from tokendraw import Drafts, InvalidInputError, Need, RequestSlots, SamplingMetadata, SamplingParams
from tokendraw_cpu import plugin
from tokendraw_cpu.library import LibraryError, missing_library, supported_targets
from tokendraw_testing import Effort, Status, Subject, run

if reason := missing_library():
    pytest.skip(f"the compiled sampler {reason}", allow_module_level=True)
try:
    TARGETS = supported_targets()
except LibraryError as error:
    pytest.skip(f"the compiled sampler {error}", allow_module_level=True)

from tokendraw_cpu.edits import CpuProcessor
from tokendraw_cpu.sampler import CpuSampler
from tokendraw_cpu.verification import CpuVerifier

CPU = torch.device("cpu")
THREADS = ("threads", "verify threads", "process threads")
NEED_ANOTHER_DEVICE_OR_EFFORT = {
    *THREADS,
    "verify crossing, wide",
    *("sync-free", "verify sync-free", "process sync-free"),
    *("graph capture", "verify graph capture", "process graph replay"),
}


def subject_of(target, effort):
    return Subject(
        "cpu",
        capabilities=plugin.tokendraw_describe().operations,
        device=CPU,
        build=lambda operation, need: (
            CpuProcessor(target) if operation == "process_logits" else CpuVerifier(need, target)
        ),
        effort=effort,
    )


@pytest.mark.fast_first
@pytest.mark.parametrize("target", TARGETS)
def test_the_kit_passes_every_line_in_every_instruction_set(target):
    lines = run(subject_of(target, Effort.tiny())).lines
    assert [line for line in lines if line.status is Status.FAILED] == []
    assert {line.name for line in lines if line.status is not Status.PASSED} == NEED_ANOTHER_DEVICE_OR_EFFORT


def test_several_threads_get_the_outputs_of_one():
    """Where threads shared scratch, some calls had other outputs and some ended the process by a signal."""
    effort = Effort.of(quick=True, device_type="cpu")
    lines = run(subject_of(TARGETS[0], effort), only=THREADS).lines
    assert {line.name: line.status for line in lines} == dict.fromkeys(THREADS, Status.PASSED), lines


def test_the_plugin_builds_the_fastest_one():
    for operation, kind in (
        ("sample", CpuVerifier),
        ("verify", CpuVerifier),
        ("process_logits", CpuProcessor),
    ):
        backend = plugin.tokendraw_build(operation, CPU, Need())
        assert isinstance(backend, kind)
        assert backend._context._target == TARGETS[0]


def rows_that_a_sample_misjudges():
    """A wide nucleus is guessed from every 16th vector or so: here these alone are large, or small."""
    size = 1 << 17
    places = torch.arange(size) // 16 % 32
    logits = torch.stack(
        [torch.where(places == place, value, 0.0) for place in range(32) for value in (-3.0, 0.5)]
    )
    logits += 0.1 * torch.rand(size, generator=torch.Generator().manual_seed(1))
    return logits, [SamplingParams(top_p=0.8, top_k=(0, 70_000)[row % 2], seed=row) for row in range(64)]


def rows_with_a_large_logit_that_a_sample_misses():
    """The first pass weighs relative to the largest value of a sample, if float32 has room for that."""
    logits = torch.rand(12, 40_000, generator=torch.Generator().manual_seed(1))
    for row, spike in enumerate((2.0, 8.0, 12.0, 30.0, 50.0, 100.0, 3e4)):
        logits[row, 1024 * 20 + 7] = spike
    logits[8, 2048:4096] = -torch.inf
    logits[9, 5000] = torch.nan
    logits[10, 5000] = torch.inf
    return logits, [
        SamplingParams(top_p=0.8, temperature=(1.0, 0.5)[row % 2], seed=row, logprobs=2) for row in range(12)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "rows",
    [
        rows_that_a_sample_misjudges,
        rows_with_a_large_logit_that_a_sample_misses,
    ],
)
@pytest.mark.fast_first
def test_shortcuts_change_no_row(rows, target, dtype):
    logits, requests = rows()
    need = Need(threshold=True, logprobs_mode="processed_logprobs")
    found = judge(CpuSampler(need, target), logits.to(dtype), requests, mode="processed_logprobs")
    assert found.wrong == []
    assert found.judged > 3


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


META = torch.zeros(2, 30, device="meta")
REFUSED = [
    (META, SamplingMetadata(), "'cpu' needs tensors on the CPU, found one on meta. Pass tensor.cpu()."),
    (
        torch.zeros(2, 30),
        SamplingMetadata(top_p=META[:, 0]),
        "'cpu' needs tensors on the CPU, found one on meta. Pass tensor.cpu().",
    ),
    (
        torch.zeros(2, 30),
        SamplingMetadata(top_p=torch.ones(3)),
        "a tensor for 2 rows needs as many entries, found shape [3]. Pass one entry a row.",
    ),
]
"""Tensors whose addresses must not reach the library."""


@pytest.mark.parametrize(("logits", "metadata", "message"), REFUSED)
def test_tensors_that_the_library_cannot_read_are_refused(logits, metadata, message):
    with pytest.raises(InvalidInputError) as refusal:
        CpuSampler(Need()).sample(logits, metadata)
    assert str(refusal.value) == message
