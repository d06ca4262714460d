"""Random cases of edits find the bug of every mutant, and none in native."""

import pytest

from mutants import by_name, subject_of
from mutants.processors import PROCESSORS, ProcessorMutant
from tokendraw.plugin import EDITS, INPUT_DTYPES, ProcessCapabilities
from tokendraw_testing.kit.fuzz import FuzzCase, check_case, fuzz, fuzz_case

EVERYTHING = ProcessCapabilities(device_types=None, dtypes=INPUT_DTYPES, drafts=True, edits=EDITS)
MUTANTS = by_name(PROCESSORS)
FOUND_IN = {
    "penalties applied twice": 3,
    "logits below 0 divided": 3,
    "tokens of the output counted as prompt": 3,
    "presence subtracted by the count": 3,
    "no bias of ids that did not occur": 6,
    "a word of allowed ids taken whole": 3,
    "bad words that begin in the prompt": 6,
    "stop ids held back for a token too long": 40,
    "last word of a bitmask ignored": 3,
    "bias added behind penalties": 6,
    "bias rounded before penalties": 6,
    "last id unedited": 6,
    "rows read as if they lay dense": 6,
    "rows in the order of slots": 3,
    "slots as they were first seen": 12,
    "a draft counted in its own row": 6,
    "an id drafted twice counted once": 6,
    "a placeholder counted as id 0": 12,
    "tokens of the prompt counted as output": 3,
    "a token too many in the window of penalties": 3,
    "drafts left out of the window of penalties": 12,
    "a budget that is spent a token late": 6,
    "a budget that the prompt spends": 3,
    "of the end of thinking the first id alone": 12,
    "a bitmask that holds where a budget is spent": 6,
    "matches of DRY a token longer before they cost": 3,
    "breakers inside matches of DRY": 3,
    "a token too many searched by DRY": 3,
    "powers of DRY without a limit": 110,
    "DRY in front of the penalties": 3,
}
"""Number of cases among which one has to show the bug: about four times as many as it took."""


def subject(processor, capabilities=EVERYTHING):
    return subject_of("process_logits", capabilities, processor, quick=True)


@pytest.mark.parametrize("bug", FOUND_IN)
@pytest.mark.fast_first
def test_a_planted_bug_is_found(bug):
    of_bug, cases = subject(MUTANTS[bug].build), range(FOUND_IN[bug])
    result = next(
        (f for i in cases if (f := check_case(of_bug, FuzzCase("process_logits", i)).finding)), None
    )
    assert result is not None
    assert "a call raised" not in result.detail


@pytest.mark.slow
def test_native_s_processor_is_not_found_wrong():
    report = fuzz(subject(ProcessorMutant), 5)
    assert report.cases["process_logits"] > 10
    assert report.findings == ()


def test_random_cases_ask_for_advertised_calls_alone():
    limited = ProcessCapabilities(dtypes=("float16",), max_vocab_size=40)
    report = fuzz(subject(ProcessorMutant, limited), 0.5)
    assert report.findings == ()
    assert {(place.dtype, place.up_to, place.kind) for place, _ in report.looked} == {
        ("float16", 1024, "plain")
    }


def test_a_finding_has_the_case_in_words():
    class EditsNothing(ProcessorMutant):
        """Edits nothing."""

        def process(self, logits, *given, **options):
            return logits

    (result, *_) = fuzz_case(subject(EditsNothing), 0).findings
    assert result.number == 0
    assert ", where a request asks for " in result.detail
    assert "its prompt is [" in result.detail
