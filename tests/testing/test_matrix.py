"""The places where a line has looked at rows, by call, dtype and width, and those that a run has missed."""

import pytest
import torch

from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw.plugin import ProcessCapabilities
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.report import Place, width_class
from tokendraw_testing.process_logits import EditRequest, ProcessSubject
from tokendraw_testing.subjects import VerifySubject

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=3)
PLAIN = SamplingParams()


@pytest.fixture(scope="module")
def native():
    return Subject.installed("native", device="cpu", quick=True)


@pytest.mark.parametrize(
    ("vocab_size", "up_to"),
    [
        (1, 1024),
        (1024, 1024),
        (1025, 65536),
        (65536, 65536),
        (65537, 131072),
        (131072, 131072),
        (131073, None),
    ],
)
def test_the_classes_of_widths_end_where_kernels_change(vocab_size, up_to):
    assert width_class(vocab_size) == up_to


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_verifications_are_counted_by_mode(native, mode):
    view = VerifySubject(native)
    drafts = Drafts.from_lists([[1, 2], [], [3]])
    metadata = SamplingMetadata.from_params(
        [GREEDY, SEEDED, PLAIN], positions=[5, 6, 7]
    )  # an entry a request
    view.verify(torch.zeros(6, 8, dtype=torch.float16), drafts, metadata, mode)
    view.call("draft", torch.zeros(1, 70_000), SamplingMetadata.from_params([PLAIN]))
    assert view.looked == {(f"verify {mode}", "float16", 1024), ("verify draft", "float32", 131072)}


def test_edits_have_places_within_the_limits(native):
    view = ProcessSubject(native)
    engine = view.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1])}, 1, 8)
    logits, drafts = torch.zeros(3, 8, dtype=torch.float16), Drafts.from_lists([[3, 4]])
    view.make(view.new_call("process", logits, engine.slots, torch.tensor([0]), None, drafts))
    assert view.looked == {("process_logits", "float16", 1024)}
    limited = ProcessCapabilities(dtypes=("float32",), max_vocab_size=5)
    one = Subject(
        "acme", capabilities={"process_logits": limited}, device="cpu", build=lambda operation, need: None
    )
    assert ProcessSubject(one).places() == (Place("process_logits", "float32", 1024),)


def test_a_line_has_its_places_and_the_report_the_missed_places(native):
    report = run(native, only=["seeds at the edges", "torch.manual_seed"])
    every = {Place("sample", dtype, 1024) for dtype in ("float32", "bfloat16", "float16")}
    wide = {Place("sample", dtype, 65536) for dtype in ("float32", "bfloat16", "float16")}
    assert {line.name: line.looked for line in report.lines} == {
        "seeds at the edges": wide,
        "torch.manual_seed": every,
    }
    assert not (every | wide) & set(report.missed)
    assert len(report.missed) == 6
