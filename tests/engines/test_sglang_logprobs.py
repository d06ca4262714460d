"""Log-probabilities of draws and of verifications are SGLang's, by tokendraw's scores."""

import pytest
import torch

from sglang_drafts import batch_of, chains, speculation, trees
from sglang_engine import Request, draw, info_of
from tokendraw_sglang import _logprobs

pytestmark = pytest.mark.usefixtures("sglang")
V = 60
LEAST = torch.finfo(torch.float32).min
REQUESTS = (
    {"temperature": 0.6, "top_k": 3},
    {"temperature": 1.4, "top_p": 0.7},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 1},
)
FIELDS = (
    "logprobs",
    "top_logprobs_val",
    "top_logprobs_idx",
    "token_ids_logprobs_val",
    "token_ids_logprobs_idx",
)
WANTED = [
    {"top": [4, 0, 2, 9], "ids": [[5, 0], None, [7], []]},
    {"top": [0] * 4, "ids": [None, None, [3, 3, 59], None]},
    {"top": [1, 0, 0, 0], "ids": [None] * 4},
    {"top": [0] * 4, "ids": [None, [], None, None]},
    {"top": [V, 0, 0, 0], "ids": [None] * 4},
    {"top": [0] * 4, "ids": [None] * 4},
]


@pytest.fixture
def sampler():
    from sglang.srt.layers.sampler import create_sampler

    return create_sampler()


@pytest.fixture(params=[False, True], ids=["temperature", "original"])
def original(request, monkeypatch):
    from sglang.srt.layers import sampler as module

    monkeypatch.setattr(module, "SGLANG_RETURN_ORIGINAL_LOGPROB", request.param)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", str(request.param).lower())
    return request.param


@pytest.fixture
def logits():
    made = torch.randn(4, V, generator=torch.Generator().manual_seed(2)) * 3
    made[[0, 1], [5, 7]] = -torch.inf
    return made


def assert_same(ours, theirs, is_emitted=None):
    """The same fields of ``LogitsProcessorOutput`` are filled with the same numbers.

    :param is_emitted: [B, depth] bool of a verification, whose other entries nobody reads.
    """
    for name in FIELDS:
        mine, other = (getattr(output, f"next_token_{name}", None) for output in (ours, theirs))
        assert (mine is None) == (other is None), name
        if mine is None:
            continue
        pairs = list(zip(mine, other, strict=True))
        if is_emitted is not None:
            if name == "logprobs":
                pairs = [(mine[is_emitted], other[is_emitted])]
            else:
                pairs = [pair for pair, read in zip(pairs, is_emitted.view(-1), strict=True) if read]
        for left, right in pairs:
            if name == "token_ids_logprobs_idx":
                assert left == right
            else:
                torch.testing.assert_close(left, right)


def scored_by_sglang(logits, info, tokens, wanted, original):
    """SGLang's own selection from a log-softmax."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.layers.logprob_processor import OutputLogprobProcessor

    scaled = logits if original else logits / info.temperatures
    output = LogitsProcessorOutput(next_token_logits=logits)
    result = OutputLogprobProcessor().compute_logprobs(
        scaled.log_softmax(-1), wanted["top"], wanted["ids"], tokens
    )
    result.write_output_to(output)
    return output


@pytest.mark.parametrize("wanted", WANTED)
def test_of_draws_equal_sglangs_and_leave_the_logits_alone(sampler, logits, original, wanted):
    info = info_of(*(Request(**params) for params in REQUESTS), vocab_size=V)
    given = logits.clone()
    tokens, ours = draw(sampler, given, info, **wanted, copy=False)
    assert sampler._scores is not None
    assert torch.equal(given, logits)
    assert_same(ours, scored_by_sglang(logits, info, tokens, wanted, original))
    assert ours.next_token_logprobs.min() >= LEAST


def test_of_greedy_batches_are_sglangs_own(sampler, logits, monkeypatch):
    monkeypatch.setattr(sampler, "score", lambda *_: pytest.fail("tokendraw scored"))
    info = info_of(*[Request(temperature=0.0)] * 4, vocab_size=V)
    tokens, ours = draw(sampler, logits, info, **WANTED[0])
    assert_same(ours, scored_by_sglang(logits, info, tokens, WANTED[0], True))


def test_what_requests_want_is_described_once_for_all_steps(sampler, logits, monkeypatch):
    uploads, padded = [], _logprobs._padded
    monkeypatch.setattr(_logprobs, "_padded", lambda *args: (uploads.append(1), padded(*args))[1])
    info = info_of(*(Request(**params) for params in REQUESTS), vocab_size=V)
    for _ in range(3):
        draw(
            sampler,
            logits,
            info.copy_for_forward(),
            **{name: list(WANTED[0][name]) for name in ("top", "ids")},
        )
    assert len(uploads) == 1
    for _ in range(2):
        draw(sampler, logits, info, top=[4, 0, 2, 9], ids=[[5, 1], None, [7], []])
    assert len(uploads) == 2
    info.temperatures = info.temperatures.clone()
    draw(sampler, logits, info, top=[4, 0, 2, 9], ids=[[5, 1], None, [7], []])
    assert len(uploads) == 3


PARENTS = [-1, 0, 0, 2]


@pytest.mark.parametrize("form", ["chain", "tree"])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("wanted", [WANTED[0], WANTED[1], {"top": None, "ids": None}])
def test_of_verifications_equal_sglangs(original, form, greedy, wanted):
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.layers.sampler import create_sampler
    from sglang.srt.speculative import eagle_utils

    logits = torch.randn(16, V, generator=torch.Generator().manual_seed(3)) * 3
    lengths, tokens = [3, 4, 5, 6], logits.argmax(-1).view(4, 4).tolist()
    nodes = [[1, *row[:3]] for row in tokens]
    if form == "tree":  # the second child of the first node is right
        nodes = [[1, (row[0] + 1) % V, row[0], row[2]] for row in tokens]
    made = trees([PARENTS] * 4, nodes, lengths) if form == "tree" else chains(nodes, lengths)
    requests = (
        [Request(temperature=0.7, top_k=1)] * 4 if greedy else [Request(**params) for params in REQUESTS]
    )
    with speculation():
        sampler = create_sampler()
        batch = batch_of(info_of(*requests, vocab_size=V), lengths)
        batch.top_logprobs_nums, batch.token_ids_logprobs = wanted["top"], wanted["ids"]
        outputs = [LogitsProcessorOutput(next_token_logits=logits.clone()) for _ in range(2)]
        predict, counts, accept_index = eagle_utils.eagle_sample(made, batch, outputs[0])
        logprob_processor.compute_spec_logprobs(batch, outputs[0], predict, accept_index=accept_index)
        assert sampler._scores is not None
        own = logprob_processor.compute_spec_logprobs.__wrapped__
        own(batch, outputs[1], predict, accept_index=accept_index)
        assert outputs[0].next_token_logprobs.shape == accept_index.shape
        is_emitted = torch.arange(accept_index.shape[1]) < counts[:, None]
        assert_same(*outputs, is_emitted)
        assert counts.max() > 1
        failing = LogitsProcessorOutput(next_token_logits=logits.clone())
        sampler._draws.score = lambda *_: (_ for _ in ()).throw(ValueError("no scorer"))
        logprob_processor.compute_spec_logprobs(batch, failing, predict, accept_index=accept_index)
        assert sampler._scores is None
        assert_same(failing, outputs[1], is_emitted)
