"""The kit sees the noise precision of every draw, at both levels, and of the acceptance of drafts."""

import pytest
import torch

from special_rows import drop_float64
from tokendraw import InvalidParameterError, philox
from tokendraw_native import plugin
from tokendraw_native.sampler import NativeSampler
from tokendraw_testing import Effort, Status, Subject, run
from tokendraw_testing.cases.telling import SEEDS

CAPABILITIES = plugin.tokendraw_describe().operations
LINES = ("noise precision", "verify noise precision")


def native(refusals=lambda need: need, **options):
    return Subject(
        "native",
        capabilities=CAPABILITIES,
        device="cpu",
        build=lambda operation, need: NativeSampler(torch.device("cpu"), refusals(need)),
        effort=Effort.tiny(),
        **options,
    )


def failed(subject, lines=LINES):
    return {line.name for line in run(subject, only=lines).lines if line.status is Status.FAILED}


@pytest.mark.slow
def test_an_honest_sampler_is_green():
    assert failed(native()) == set()


@pytest.mark.parametrize("stream", [philox.TOKEN, philox.TILE])
def test_float32_noise_of_a_stream_in_place_of_float64_turns_the_line_of_draws_red(monkeypatch, stream):
    drop_float64(monkeypatch, stream)
    assert failed(native(), ["noise precision"]) == {"noise precision"}


@pytest.mark.parametrize("stream", SEEDS)
@pytest.mark.fast_first
def test_float32_noise_of_a_stream_in_place_of_float64_turns_the_line_of_verifications_red(
    monkeypatch, stream
):
    drop_float64(monkeypatch, stream)
    assert failed(native(), ["verify noise precision"]) == {"verify noise precision"}


class TestARunForOnePrecision:
    @pytest.mark.slow
    def test_every_build_has_the_precision(self):
        needs = []
        subject = native(lambda need: needs.append(need) or need, need={"gumbel_dtype": "fp64"})
        report = run(subject, only=["output", "seeds at the edges", *LINES])
        assert report.failed == ()
        assert {need.gumbel_dtype for need in needs} == {"fp64"}

    def test_operations_without_noise_are_left_out(self):
        subject = native(need={"gumbel_dtype": "fp64"})
        assert subject.capabilities.keys() == {"sample", "verify", "score"}
        assert native(need={"graph_safe": False}).capabilities.keys() == CAPABILITIES.keys()

    def test_an_unknown_precision_is_refused(self):
        with pytest.raises(InvalidParameterError, match="'gumbel_dtype' of Need needs 'fp32' or 'fp64'"):
            Subject.installed("native", device="cpu", need={"gumbel_dtype": "fp16"})
