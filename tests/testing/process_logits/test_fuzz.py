"""Random cases of edits: processors with one bug each are found out, and native's is not."""

import pytest

import planted_edit_bugs as planted
from tokendraw.plugin import INPUT_DTYPES, ProcessCapabilities
from tokendraw_testing import Subject
from tokendraw_testing.kit.fuzz import FuzzCase, check_case, fuzz, fuzz_case

EVERYTHING = ProcessCapabilities(device_types=None, dtypes=INPUT_DTYPES, drafts=True)
FOUND_IN = {
    planted.PenaltiesTwice: 3,
    planted.DividesAll: 3,
    planted.OutputForPrompt: 3,
    planted.PresenceByTheTime: 3,
    planted.BiasOfWhatOccurred: 6,
    planted.AllowsNextToAllowed: 3,
    planted.BadWordsInPrompts: 6,
    planted.OneTokenLate: 40,
    planted.LastWord: 3,
    planted.BiasBehindPenalties: 6,
    planted.RoundsBetween: 6,
    planted.FewerIds: 6,
    planted.DenseRows: 6,
    planted.SortedSlots: 3,
    planted.StaleSlots: 12,
    planted.DraftsEarly: 6,
    planted.DraftsOnceEach: 6,
    planted.PlaceholdersAreIds: 12,
}
"""Number of cases among which one has to show the bug: about four times as many as it took."""


def subject(processor, capabilities=EVERYTHING):
    return Subject(
        "acme",
        capabilities={"process_logits": capabilities},
        device="cpu",
        build=lambda operation, need: processor(),
        quick=True,
    )


@pytest.mark.parametrize("bug", FOUND_IN, ids=lambda bug: bug.__name__)
@pytest.mark.fast_first
def test_a_planted_bug_is_found(bug):
    of_bug, cases = subject(bug), range(FOUND_IN[bug])
    found = next((f for i in cases if (f := check_case(of_bug, FuzzCase("process_logits", i)).finding)), None)
    assert found is not None
    assert "a call raised" not in found.detail


@pytest.mark.slow
def test_native_s_processor_is_not_found_wrong():
    report = fuzz(subject(planted.Honest), 5)
    assert report.cases["process_logits"] > 10
    assert report.findings == ()


def test_what_is_not_advertised_is_not_asked_for():
    limited = ProcessCapabilities(dtypes=("float16",), max_vocab_size=40)
    report = fuzz(subject(planted.Honest, limited), 0.5)
    assert report.findings == ()
    assert {(place.dtype, place.up_to, place.kind) for place, _ in report.looked} == {
        ("float16", 1024, "plain")
    }


def test_a_finding_has_the_case_in_words():
    class EditsNothing(planted.Honest):
        """Edits nothing."""

        def process(self, logits, *given, **options):
            return logits

    (found, *_) = fuzz_case(subject(EditsNothing), 0).findings
    assert found.number == 0
    assert ", where a request asks for " in found.detail
    assert "its prompt is [" in found.detail
