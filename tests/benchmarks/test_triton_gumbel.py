"""The commands of ``benchmarks/triton_gumbel`` on a CPU, small, and native against itself; and how they judge."""

import contextlib
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

import tokendraw
import tokendraw_native.verify
from fake_dists import install_limited
from tokendraw import SamplerOutput, SamplingParams
from tokendraw_testing import reference


def cells(result):
    """The table as rows of cells, without its rule."""
    rows = [line.strip("| ").split(" | ") for line in result.stdout.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "---"]


def test_a_sampler_agrees_with_itself_and_the_file_has_what_is_printed(call, tmp_path):
    path = tmp_path / "agree.md"
    result = call("agree", "--draws", 300, "--output", path)
    assert result.exit_code == 0, result.output
    lines = path.read_text(encoding="utf-8").splitlines()
    assert result.stdout.splitlines()[: len(lines)] == lines
    assert lines[0] == (
        "`python benchmarks/triton_gumbel agree --draws 300 --sampler native --device cpu --small "
        f"--output {path}`"
    )
    assert lines[2].startswith(f"cpu: tokendraw {tokendraw.__version__}, torch {torch.__version__}, ")
    assert "(100.0000 %, needed 99.99 %)" in lines[4]
    total = cells(result)[-1]
    assert total[0] == "all"
    assert int(total[2]) >= 300
    assert total[2:] == [total[2], total[2], "0", "", "0"]


def test_every_disagreement_is_listed_with_its_margin(call, benchmarks, monkeypatch):
    """One row of the first batch draws another token than it should: by far, so that no rounding explains it."""
    native = tokendraw.load_sampler("native", device="cpu")

    class Wrong:
        name = "wrong"

        def sample(self, logits, metadata):
            output = native.sample(logits, metadata)
            output.token_ids[7] = (output.token_ids[7] + 1) % logits.shape[1]
            return SamplerOutput(output.token_ids, output.valid)

    monkeypatch.setattr(benchmarks("setting").Setting, "subject", Wrong())
    result = call("agree", "--draws", 20)
    assert result.exit_code == 1
    listed = cells(result)[-1]
    assert listed[:3] == ["1000", "float32", "gaussian"]
    ours, theirs, right = map(int, listed[4:7])
    assert ours == theirs + 1
    assert right == theirs
    assert listed[-1] == "not explained"


@pytest.mark.slow
def test_a_sampler_verifies_as_itself_whatever_is_known_of_the_drafts(call):
    result = call("chains", "--requests", 120)
    assert result.exit_code == 0, result.output
    assert "fp32: 132 of 132 requests agree (100.0000 %, needed 99.99 %), and " in result.stdout
    tables = cells(result)
    counted = {tuple(row[:2]): row[2:] for row in tables if row[0] in ("fp32", "fp64") and len(row) == 7}
    for noise, requests in (("fp32", 33), ("fp64", 8)):
        for kind in ("logits", "probs", "chosen", "coupled"):
            compared, emitted, accepted, *agreement = counted[noise, kind]
            assert (compared, agreement) == (str(requests), ["0", "100.0000 %"])
            assert int(emitted) == requests + int(accepted) > requests
        assert counted[noise, "as draft() draws them"][-2:] == ["0", "100.0000 %"]
    assert [row[-1] for row in tables[-2:]] == ["0", "0"]
    assert "Replays of CUDA graphs were not tried: there is no CUDA device." in result.stdout


@pytest.mark.slow
def test_every_nucleus_is_timed_beside_its_largest_batch(call):
    result = call("nuclei")
    assert result.exit_code in (0, 1), result.output
    rows = cells(result)[1:]
    assert [row[2] for row in rows][2:6] == ["peaked-100", "peaked-300", "peaked-1000", "peaked-2000"]
    for row in rows:
        median, largest, ratio = float(row[5].split()[0]), float(row[6]), float(row[7])
        assert largest >= median
        assert ratio == pytest.approx(largest / median, abs=0.01)
    worst = max(float(row[7]) for row in rows)
    assert (result.exit_code == 0) == (worst <= 2.0) or worst == pytest.approx(2.0, abs=0.01)


def test_one_dtype_of_the_noise_can_be_looked_at_alone(call):
    result = call("chains", "--requests", 40, "--noise", "fp64")
    assert result.exit_code == 0, result.output
    assert {row[0] for row in cells(result) if row[0].startswith("fp")} == {"fp64"}
    assert "--noise fp64 --requests 40" in result.stdout.splitlines()[0]


class Planted:
    """The native sampler, with a piece of its verification exchanged."""

    def __init__(self, native, pieces):
        self._native, self._pieces = native, pieces

    def __getattr__(self, name):
        return getattr(self._native, name)

    def verify(self, *args, **kwargs):
        with mock.patch.dict(vars(tokendraw_native.verify), self._pieces):
            return self._native.verify(*args, **kwargs)


@pytest.fixture
def call_planted(call, benchmarks, monkeypatch):
    def run(pieces):
        setting = benchmarks("setting").Setting
        load = setting.load

        def loaded(self, name, **options):
            native = load(self, "native", **options)
            return native if name == "native" else Planted(native, pieces)

        monkeypatch.setattr(setting, "load", loaded)
        return call("chains", "--requests", 60, sampler="planted")

    return run


@pytest.mark.parametrize("accepts_all", [True, False])
@pytest.mark.fast_first
def test_a_verification_that_accepts_or_rejects_all_drafts_is_reported(call_planted, accepts_all):
    result = call_planted({"accepts": lambda u, p, q: (q > 0) & accepts_all})
    assert result.exit_code == 1
    tables = cells(result)
    listed = [row for row in tables if len(row) == 8][1:]
    assert 5 <= len(listed) <= 20
    for *_, noise, kind, ours, theirs in listed:
        more, less = (int(chain.split("(")[1].rstrip(")")) for chain in (ours, theirs))
        assert (noise, kind == "coupled", more > less) == ("fp32", False, accepts_all), (ours, theirs)
    rejected = [int(row[-1]) for row in tables[-2:]]
    assert [number > 0 for number in rejected] == [not accepts_all] * 2


def test_what_a_sampler_cannot_verify_itself_ends_the_command(call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(install_limited(tmp_path, verify={"ragged_drafts": False}))
    result = call("chains", "--requests", 60, sampler="limited")
    assert result.exit_code == 1
    said = result.stdout.strip().splitlines()[-1]
    assert "'limited' cannot serve requests with different numbers of drafts, " in said


@pytest.mark.parametrize("is_stale", [True, False])
def test_replays_are_compared_with_eager_calls_after_every_change(benchmarks, monkeypatch, is_stale):
    """A graph is a call made again into the output of the first; a stale one leaves the tokens as they were."""
    replays, native = benchmarks("replays"), tokendraw.load_sampler("native", device="cpu")

    def captured(call):
        output = call()

        def replay():
            fresh = call()
            for name in ("token_ids", "num_accepted", "valid")[is_stale:]:
                getattr(output, name).copy_(getattr(fresh, name))

        return SimpleNamespace(replay=replay), output

    monkeypatch.setattr(replays, "captured", captured)
    monkeypatch.setattr(replays, "sync_is_an_error", contextlib.nullcontext)
    lines, holds = replays.replayed(native, "probs", torch.Generator(), requests=10, vocab_size=50)
    wrong = "30" if is_stale else "0"
    assert lines == [[filters, "3", wrong, "no"] for filters in ("mixed", "none", "top-k and top-p")]
    assert holds is not is_stale


@pytest.mark.slow
def test_a_seeded_batch_is_the_same_in_every_way_that_is_tried(call):
    result = call("invariance")
    tried = cells(result)[1:]
    assert {(row[0], row[-1]) for row in tried} == {
        (what, "0")
        for what in (
            "all rows, again",
            "1 row at a time",
            "2 rows at a time",
            "8 rows at a time",
            "64 rows at a time",
            "65 rows at a time",
            "with facts that know of nothing",
            "in another order",
            "at an odd stride, from offset 1",
            "with the vocabulary across rows",
        )
    }
    assert "not tried: tokendraw_native.host.tuning needs TABLE and override, found" in result.stdout
    assert result.exit_code == 1, "native has no tile configurations, so that not all was tried"


@pytest.mark.slow
def test_rows_at_the_limits_draw_what_they_draw_alone(call):
    result = call("large")
    assert result.exit_code == 0, result.output
    assert [row[3:5] for row in cells(result)[1:]] == [["0", "0"]] * 6


@pytest.mark.slow
@pytest.mark.parametrize(("command", "rows"), [("worst", 6), ("extras", 16)])
def test_what_is_timed_has_a_row_each(call, command, rows):
    result = call(command, "--repeats", 3)
    assert result.exit_code in (0, 1), result.output  # times of a busy machine promise nothing
    assert len(cells(result)) == 1 + rows
    assert "nan" not in result.stdout


@pytest.mark.slow
def test_the_host_time_of_each_kind_of_rows_has_a_row(call):
    result = call("host")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in cells(result)[1:]] == [
        "seeded",
        "unseeded",
        "seeded, top-k and top-p",
        "seeded, logprobs=5",
    ]
    assert "nan" not in result.stdout


def test_the_host_time_of_a_step_has_a_row_for_each_kind_of_call(call):
    result = call("step")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in cells(result)[1:]] == [
        "seeded",
        "unseeded",
        "seeded, top-k and top-p",
        "seeded, logprobs=0",
        "seeded, logprobs=5",
        "verify, draft_logits",
        "verify, draft_probs, top-k and top-p",
        "verify, chosen drafts",
    ]
    assert all(float(figure) > 0 for row in cells(result)[1:] for figure in row[1:5])


@pytest.mark.slow
def test_odd_shapes_are_drawn_from(call):
    result = call("memcheck-run")
    assert result.exit_code == 0, result.output
    assert "162 calls, 0 rows out of range or not valid." in result.stdout


def test_a_batch_as_arrays_is_the_batch_of_its_requests(benchmarks):
    batch = benchmarks("batches").mixed(np.random.default_rng(1), 40)
    for part in (batch, batch.take([3]), batch.take(np.flatnonzero(batch.greedy))):
        params = [part.params(row) for row in range(len(part))]
        made = tokendraw.SamplingMetadata.from_params(params, positions=part.position.tolist())
        found = part.metadata(torch.device("cpu"))
        assert found.facts == made.facts
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "positions"):
            assert torch.equal(getattr(found, name), getattr(made, name)), name


def test_the_races_are_those_of_the_reference(benchmarks):
    margins, rng = benchmarks("margins"), np.random.default_rng(2)
    for position in range(20):
        x = 3 * rng.standard_normal(3000)
        params = SamplingParams(top_p=0.95, seed=5)
        token, lead = reference.draw(reference.prepare(x, params), 5, position)
        found = margins.margin(x, params, position, token)
        assert (found.token, found.edge) == (token, math.inf)
        assert min(found.tile_lead, found.token_lead) == pytest.approx(lead, rel=1e-9)


def test_a_token_that_a_small_change_of_top_p_draws_is_put_down_to_rounding(benchmarks):
    """Two tokens share the mass, and the edge runs between them: the second one's fate hangs on rounding."""
    margins, x = benchmarks("margins"), np.log(np.array([0.5, 0.5 - 1e-12, 1e-12]))
    drawn = {}
    for position in range(50):
        for p in (0.49, 0.51):
            params = SamplingParams(top_p=p, seed=5)
            drawn[p, position] = reference.draw(reference.prepare(x, params), 5, position)[0]
    position = next(n for n in range(50) if drawn[0.49, n] != drawn[0.51, n])
    found = margins.margin(x, SamplingParams(top_p=0.5, seed=5), position, drawn[0.51, position])
    assert (found.token, found.explained, found.uncertain) == (drawn[0.49, position], True, True)
    assert 0 < found.edge <= 1e-6
    far = margins.margin(x, SamplingParams(top_p=0.4, seed=5), position, drawn[0.51, position])
    assert not far.explained
