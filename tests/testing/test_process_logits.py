"""The kit's lines on processors with one planted bug each, and on native."""

import re
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


@pytest.mark.gpu
def test_every_line_is_green_on_a_cuda_device():
    report = run(subject(device="cuda:0"))
    assert {line.status for line in report.lines if line.name != THREADS} == {Status.PASSED}, report


def test_a_red_line_names_the_first_logit_that_is_wrong():
    (line,) = MUTANTS["stop ids held back for a token too long"].look()
    assert re.fullmatch(
        r"single edits, \d+ rows of \d+ ids in torch.\S+: row \d+, after 0 drafts, id \d+: needs \S+ \(no edit\), "
        r"found -inf, where a request asks for min_tokens=\d+, stop_token_ids=\[.+\], its prompt is \[.+\], its output "
        r"\[.*\], its bitmask .+",
        line.detail,
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
        f"; {len(refused)} request{'s' * (len(refused) > 1)} beyond the capabilities refused"
    )


def test_unadvertised_drafts_are_refused():
    capabilities = ProcessCapabilities(edits=EDITS)
    result = {line.name: line for line in run(subject(ProcessorMutant, capabilities)).lines}
    refused = {name for name, line in result.items() if line.status is Status.REFUSED}
    assert refused == {"process sync-free", "process graph replay"}
    assert result["process edits"].detail.endswith("; 1 request beyond the capabilities refused")
