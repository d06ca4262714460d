"""The matrix of the kit: how many rows a line has looked at, by call, dtype, width and kind of row."""

import numpy as np
import pytest
import torch

from tokendraw import BatchFacts, Drafts, SamplingMetadata, SamplingParams
from tokendraw.plugin import ProcessCapabilities
from tokendraw_testing import Subject, run
from tokendraw_testing.cases.edits import EditRequest
from tokendraw_testing.kit.report import Place, width_class
from tokendraw_testing.process_logits import ProcessSubject
from tokendraw_testing.subjects import SampleSubject, VerifySubject

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=3)
PLAIN = SamplingParams()


@pytest.fixture(scope="module")
def native():
    return Subject.installed("native", device="cpu", quick=True)


def looked(view):
    return {tuple(place): rows for place, rows in view.looked.items()}


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


def test_rows_of_a_mixed_batch_are_counted_apart_also_where_several_share_a_slot(native):
    view = SampleSubject(native)
    view.sample(np.zeros((3, 8), np.float32), [GREEDY, SEEDED, PLAIN])
    view.sample(torch.zeros(4, 70_000), [GREEDY, SEEDED], [0, 1, 2, 3], row_index=[1, 1, 0, 1])
    assert looked(view) == {
        ("sample", "float32", 1024, "greedy"): 1,
        ("sample", "float32", 1024, "seeded"): 1,
        ("sample", "float32", 1024, "unseeded"): 1,
        ("sample", "float32", 131072, "greedy"): 1,
        ("sample", "float32", 131072, "seeded"): 3,
    }


def test_ready_tensors_are_read_where_the_host_does_not_know(native):
    view = SampleSubject(native)
    metadata = SamplingMetadata(
        temperature=torch.tensor([0.0, 1.0, float("nan"), 2.0]),
        seed=torch.tensor([1, 2, 3, 4]),
        seeded=torch.tensor([True, True, True, False]),
        positions=torch.arange(4),
        facts=BatchFacts(),
    )
    view.call(torch.zeros(4, 8), metadata)
    assert looked(view) == {
        ("sample", "float32", 1024, "greedy"): 2,
        ("sample", "float32", 1024, "seeded"): 1,
        ("sample", "float32", 1024, "unseeded"): 1,
    }


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_verifications_count_the_rows_of_the_target_by_mode(native, mode):
    view = VerifySubject(native)
    drafts = Drafts.from_lists([[1, 2], [], [3]])
    metadata = SamplingMetadata.from_params(
        [GREEDY, SEEDED, PLAIN], positions=[5, 6, 7]
    )  # an entry a request
    view.verify(torch.zeros(6, 8, dtype=torch.float16), drafts, metadata, mode)
    assert looked(view) == {
        (f"verify {mode}", "float16", 1024, "greedy"): 3,
        (f"verify {mode}", "float16", 1024, "seeded"): 1,
        (f"verify {mode}", "float16", 1024, "unseeded"): 2,
    }


def test_edits_with_and_without_drafts_are_counted_apart(native):
    view = ProcessSubject(native)
    engine = view.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1])}, 1, 8)
    for drafts in (None, Drafts.from_lists([[3, 4]])):
        logits = torch.zeros(1 if drafts is None else 3, 8, dtype=torch.float16)
        view.make(view.new_call("process", logits, engine.slots, torch.tensor([0]), None, drafts))
    assert looked(view) == {
        ("process_logits", "float16", 1024, "plain"): 1,
        ("process_logits", "float16", 1024, "drafts"): 3,
    }
    limited = ProcessCapabilities(dtypes=("float32",), max_vocab_size=5)
    one = Subject(
        "acme", capabilities={"process_logits": limited}, device="cpu", build=lambda operation, need: None
    )
    assert ProcessSubject(one).places() == (Place("process_logits", "float32", 1024, "plain"),)


def test_a_line_has_the_rows_of_the_line_and_the_report_the_missed_places(native):
    report = run(native, only=["seeds at the edges", "torch.manual_seed"])
    lines = {line.name: {tuple(place): rows for place, rows in line.looked} for line in report.lines}
    every = {Place("sample", dtype, 1024, "unseeded") for dtype in ("float32", "bfloat16", "float16")}
    seeded = {Place("sample", dtype, 65536, "seeded") for dtype in ("float32", "bfloat16", "float16")}
    assert {name: set(looked) for name, looked in lines.items()} == {
        "seeds at the edges": seeded,
        "torch.manual_seed": every,
    }
    assert not every & set(report.missed)
    assert len(report.missed) == 30
    entry, *_ = report.as_json()["lines"][0]["looked"]
    first, *_ = lines["seeds at the edges"]
    assert entry == {**Place(*first)._asdict(), "rows": lines["seeds at the edges"][first]}
