"""The kernels over the columns of a rank: they compile, a call takes few launches, and draws native's tokens."""

from collections import Counter

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from rank_threads import RanksAlone, on_ranks
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_ranks import VocabShard, kernels
from tokendraw_triton_gumbel import columns as tg
from triton_stand_ins import SOME, compiled_call, has_machine_code, interpreted

BOUNDS = (0, 4000, 8192)
CALLS = {
    "plain": ({"seed": 1, "temperature": 0.8}, {}),
    "top-k, top-p": ({"seed": 1, "temperature": 0.8, "top_k": 50, "top_p": 0.9}, {}),
    "top-p, fresh": ({"top_p": 0.9, "min_p": 0.01}, {}),
    "joint, large k": ({"seed": 1, "top_k": 3000, "top_p": 0.9, "filter_order": "joint"}, {}),
    "float64, logprobs": (
        {"seed": 1, "temperature": 0.8, "top_k": 50, "logprobs": 3},
        {"gumbel_dtype": "fp64"},
    ),
    "moments": ({"seed": 1, "filters": {"top_n_sigma": 1.0, "eta_cutoff": 0.01}}, {}),
    "greedy, logprobs": ({"temperature": 0.0, "logprobs": 3}, {}),
}
LAUNCHES = {
    "plain": "column_statistics draw_columns",
    "top-k, top-p": "column_statistics survey_columns find_thresholds weigh_kept draw_columns",
}


class Recorder:
    """Stands where a kernel does, and notes its launches."""

    def __init__(self, original, launched):
        self.original, self.launched = original, launched

    def __getitem__(self, grid):
        return lambda *arguments, **named: self.launched.append((self.original, arguments, named))


@pytest.fixture
def launched(monkeypatch):
    noted = []
    for name in ("survey_columns", "find_thresholds", "add_by_digit", "weigh_kept", "draw_columns"):
        monkeypatch.setattr(kernels, name, Recorder(getattr(kernels, name), noted))
    monkeypatch.setattr(tg, "column_statistics", Recorder(tg.column_statistics, noted))
    return noted


def draw(name):
    """Draw on two ranks by the launches of a GPU."""
    asked, need = CALLS[name]
    metadata = SamplingMetadata.from_params([SamplingParams(**asked)] * 2, positions=[0, 1])

    def work(rank):
        start, end = BOUNDS[rank.rank : rank.rank + 2]
        logits = torch.zeros(2, end - start, dtype=torch.bfloat16)
        return RanksAlone(Need(**need)).sample(logits, metadata, VocabShard(start, BOUNDS[-1], rank))

    return on_ranks(2, work)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_call_takes_few_launches(launched, name):
    draw(name)
    assert Counter(call[0].__name__ for call in launched) == dict.fromkeys(LAUNCHES[name].split(), 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", SOME)
@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_compile(launched, name, target):
    draw(name)
    for call in {call[0].__name__: call for call in launched}.values():
        assert has_machine_code(compiled_call(call, target)), call[0].__name__


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (2, "float32", "top-k, top-p", "plain"),
        (2, "bfloat16", "mixed", "top-p"),
        (3, "float16", "large k", "filters"),
    ],
    ids=str,
)
def test_the_tokens_of_ranks_are_those_of_native_on_one_device(arguments):
    assert interpreted("rank_threads", "interpreted_tokens", *arguments) == "alike"
