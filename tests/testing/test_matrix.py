"""The matrix of the kit: how many rows a line has looked at, by call, dtype, width and kind of row."""

import numpy as np
import pytest
import torch

from tokendraw import BatchFacts, Drafts, SamplingMetadata, SamplingParams
from tokendraw.plugin import HostCapabilities, ProcessCapabilities
from tokendraw_testing import Subject, run
from tokendraw_testing.cases.edits import EditRequest
from tokendraw_testing.kit.report import Place, places, width_class
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


@pytest.mark.parametrize(
    ("largest", "widths"),
    [
        (None, [1024, 65536, 131072, None]),
        (131073, [1024, 65536, 131072, None]),
        (65536, [1024, 65536]),
        (9, [1024]),
    ],
)
def test_places_end_at_the_largest_vocabulary_that_is_advertised(largest, widths):
    assert [place.up_to for place in places(["sample"], ["float32"], largest, ["greedy"])] == widths


def test_native_can_be_looked_at_in_every_place(native):
    view = SampleSubject(native)
    kinds, dtypes = ("greedy", "seeded", "unseeded"), ("float32", "bfloat16", "float16")
    assert set(view.places()) == set(places(["sample"], dtypes, None, kinds))
    assert len(view.places()) == 36
    assert {place.call for place in VerifySubject(native).places()} == {
        "verify rejection",
        "verify coupled",
        "verify block",
        "verify draft",
    }


def test_rows_of_one_kind_are_counted_together(native):
    view = SampleSubject(native)
    for params in (PLAIN, SEEDED, GREEDY, SamplingParams(temperature=0.0, seed=3)):
        view.sample(torch.zeros(5, 1025, dtype=torch.bfloat16), params)
    assert looked(view) == {
        ("sample", "bfloat16", 65536, "unseeded"): 5,
        ("sample", "bfloat16", 65536, "seeded"): 5,
        ("sample", "bfloat16", 65536, "greedy"): 10,
    }


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


def test_an_empty_batch_is_no_looking(native):
    view = SampleSubject(native)
    view.sample(torch.zeros(0, 8), [])
    assert looked(view) == {}


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


def test_drafts_and_samples_of_a_verifier_are_no_verifications(native):
    view = VerifySubject(native)
    view.draft(torch.zeros(2, 8), SamplingMetadata.from_params([PLAIN] * 2))
    SampleSubject(native).sample(torch.zeros(2, 8), PLAIN)
    assert looked(view) == {("verify draft", "float32", 1024, "unseeded"): 2}


def test_edits_with_and_without_drafts_are_counted_apart(native):
    view = ProcessSubject(native)
    engine = view.engine({0: EditRequest(SamplingParams(repetition_penalty=2.0), [1])}, 1, 8)
    rng = np.random.default_rng(0)
    for drafts in (None, [[3, 4]]):
        rows = 1 if drafts is None else 3
        view.check_edits(Silent(), "", engine, [0], view.logits(rng, rows, 8, torch.float16), drafts=drafts)
    assert looked(view) == {
        ("process_logits", "float16", 1024, "plain"): 1,
        ("process_logits", "float16", 1024, "drafts"): 3,
    }
    limited = ProcessCapabilities(dtypes=("float32",), max_vocab_size=5)
    one = Subject(
        "acme", capabilities={"process_logits": limited}, device="cpu", build=lambda operation, need: None
    )
    assert ProcessSubject(one).places() == (Place("process_logits", "float32", 1024, "plain"),)


class Silent:
    def require(self, holds, needed):
        assert holds, needed


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


def test_an_operation_without_rows_of_logits_has_no_matrix(dists):
    dists.add_engine_ops()
    report = run(Subject.installed("ops-torch", device="cpu"), only=["plan_paged_kv values"])
    assert (report.places, report.missed) == ((), ())
    assert {line.looked for line in report.lines} == {()}


def test_a_refusal_looks_at_nothing(dists):
    dists.add_engine_ops()
    nothing = {"plan_paged_kv": HostCapabilities()}
    one = Subject("acme", capabilities=nothing, device="cpu", build=lambda operation, need: None)
    refused = [line for line in run(one).lines if line.status == "refused"]
    assert refused
    assert {line.looked for line in refused} == {()}
