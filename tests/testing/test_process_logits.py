"""The kit's lines on processors with one planted bug each, and on native."""

from dataclasses import replace

import pytest

from mutants import by_name, subject_of
from mutants.processors import EVERYTHING, PROCESSORS, ProcessorMutant
from tokendraw.plugin import EDITS, ProcessCapabilities
from tokendraw_testing import Effort, Status, properties, run

THREADS = "process threads"  # of compiled kernels alone: tests/testing/test_threads.py plants a bug for it
LINES = [prop.name for prop in properties("process_logits") if not prop.needs_cuda and prop.name != THREADS]
MUTANTS = by_name(PROCESSORS)


def subject(bug=ProcessorMutant, capabilities=EVERYTHING, **options):
    return subject_of("process_logits", capabilities, bug, **{"effort": Effort.tiny()} | options)


@pytest.mark.slow
def test_every_line_is_green_without_a_bug_and_red_with_a_bug():
    result = {line.name: line.status for line in run(subject()).lines if line.name in LINES}
    assert result == dict.fromkeys(LINES, Status.PASSED)
    assert {line for mutant in PROCESSORS for line in mutant.lines} < set(LINES)


@pytest.mark.gpu
def test_every_line_is_green_on_a_cuda_device():
    report = run(subject(device="cuda:0"))
    assert {line.status for line in report.lines if line.name != THREADS} == {Status.PASSED}, report


def test_a_red_line_names_the_first_logit_that_is_wrong():
    (line,) = MUTANTS["stop ids held back for a token too long"].look()
    assert line.detail.startswith("torch.float32: row 23, id 2: needs ")
    assert line.detail.endswith(
        " (no edit), found -inf, where a request asks for min_tokens=7, stop_token_ids=[2, 5, 250], its prompt is "
        "[7, 3, 3, 299, 0], its output [5, 3, 5, 5, 298, 31, 32], its bitmask none"
    )


def partial(bug, edits):
    """Make a processor with a bug that raises for any edit outside ``edits``."""

    class Partial(bug):
        def process(self, logits, slots, row_index, bitmask=None, drafts=None):
            requested = {*slots.edits} | ({"bitmask"} if bitmask is not None else set())
            if not requested <= {*edits}:
                raise RuntimeError(f"asked for {requested}")
            return super().process(logits, slots, row_index, bitmask, drafts)

    return subject(Partial, replace(EVERYTHING, edits=edits))


@pytest.mark.parametrize(
    "edits", [("bitmask",), ("min_tokens", "repetition_penalty"), EDITS[1:], EDITS[:-1]], ids=len
)
def test_a_processor_of_some_edits_is_tested_by_advertised_edits_alone(edits):
    result = {line.name: line for line in run(partial(ProcessorMutant, edits)).lines if line.name in LINES}
    assert {line.status for line in result.values()} == {Status.PASSED}
    refused = {*EDITS}.difference(edits)
    if not any("penalty" in edit for edit in edits):  # without penalties there is no window to ask for
        refused.remove("penalty_last_n")
    assert result["process edits"].detail.endswith(
        f"; {len(refused)} requests beyond the capabilities refused"
    )


def test_unadvertised_drafts_are_refused():
    result = run(subject(ProcessorMutant, ProcessCapabilities()))
    refused = {line.name: line.detail for line in result.lines if line.status is Status.REFUSED}
    assert set(refused) == {name for name in LINES if "drafts" in name} | {
        "process sync-free",
        "process graph replay",
    }
    sentence = refused["process drafts on the device"].partition(",")[0]
    assert sentence == "'ProcessorMutant' cannot serve rows of a verification"
