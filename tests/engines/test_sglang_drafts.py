"""Drafts of SGLang's speculative decoding are verified by tokendraw: tokens, seeds, edits and faults.

Each check of a distribution calls a correct verification wrong with a probability of 1e-7.
"""

from types import SimpleNamespace

import pytest
import torch

import tokendraw
import tokendraw_sglang
from goodness_of_fit import FALSE_ALARM, chi_square
from sglang_drafts import batch_of, chains, speculation, trees, verify
from sglang_engine import Request, backend, draw, info_of, keep
from tokendraw_sglang import _metadata, _registration
from tokendraw_sglang._metadata import NO_SEED

pytestmark = pytest.mark.usefixtures("sglang")
V, WIDTH = 40, 4
KINDS = (
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9},
    {"temperature": 1.3},
    {"temperature": 0.0},
    {"min_p": 0.05, "top_p": 0.8},
    {"temperature": 0.6, "top_k": 3},
)
SEQ_LENS = [7, 100, 31, 5000, 12]


@pytest.fixture
def sampler():
    from sglang.srt.layers.sampler import create_sampler

    with speculation():
        yield create_sampler()


@pytest.fixture
def logits():
    return 3 * torch.randn(len(KINDS) * WIDTH, V, generator=torch.Generator().manual_seed(1))


def params_of(kind, seed):
    order = {"filter_order": "joint"} if "top_p" in kind else {}
    return tokendraw.SamplingParams(seed=seed, **order, **kind)


def native():
    return tokendraw.load_sampler("native", device="cpu")


def plain_tokens(logits, kinds=KINDS, seq_lens=SEQ_LENS):
    """The token that each row draws in a plain step, [B][WIDTH]."""
    params = [params_of(kind, seed) for seed, kind in enumerate(kinds) for _ in range(WIDTH)]
    positions = [length + step for length in seq_lens for step in range(WIDTH)]
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    return native().sample(logits, metadata).token_ids.view(-1, WIDTH).tolist()


def near(tokens):
    """Drafts of which each request has one more right than the request before it: [B][WIDTH]."""
    return [
        [1, *(token if step < b % WIDTH else (token + 1) % V for step, token in enumerate(row[:-1]))]
        for b, row in enumerate(tokens)
    ]


def seeded(kinds=KINDS):
    return [Request(sampling_seed=seed, **kind) for seed, kind in enumerate(kinds)]


def coupled(logits, drafts):
    """What tokendraw's own verification emits, on ``SamplingParams`` alone."""
    metadata = tokendraw.SamplingMetadata.from_params(
        [params_of(kind, seed) for seed, kind in enumerate(KINDS)], positions=SEQ_LENS
    )
    own = tokendraw.Drafts.from_lists([row[1:] for row in drafts])
    output = native().verify(logits, own, metadata, mode="coupled")
    counts = (output.num_accepted + 1).tolist()
    return [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]


def test_chains_are_accepted_as_by_tokendraws_verification_alone_and_in_any_batch(sampler, logits):
    drafts = near(plain_tokens(logits))
    expected = coupled(logits, drafts)
    assert {len(text) for text in expected} >= {1, 2, 3, 4}
    texts, _ = verify(chains(drafts, SEQ_LENS), info_of(*seeded(), vocab_size=V), logits, SEQ_LENS)
    assert texts == expected
    for b, request in enumerate(seeded()):
        rows = logits[b * WIDTH : (b + 1) * WIDTH]
        info, length = info_of(request, Request(), vocab_size=V), [SEQ_LENS[b], 3]
        beside, _ = verify(
            chains([drafts[b], [1, 2, 3, 4]], length), info, torch.cat([rows, logits[:WIDTH]]), length
        )
        assert beside[0] == expected[b]


def test_the_text_of_a_seeded_request_is_its_text_without_drafts(sampler, logits):
    """Some drafts are right, some wrong; the requests leave and join."""
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(2)) * 2
    request, steps = Request(sampling_seed=5, temperature=1.1, top_p=0.9), 40

    def plain():
        text, info = [3], info_of(request, vocab_size=V)
        while len(text) <= steps:
            tokens, _ = draw(sampler, table[[text[-1]]], info, [len(text) - 1])
            text += tokens.tolist()
        return text

    expected, text, accepted = plain(), [3], 0
    info, rows = info_of(request, vocab_size=V), 1
    while len(text) <= steps:
        if len(text) > 10 and rows == 1:
            info.merge_batch(info_of(Request(sampling_seed=6), Request(), vocab_size=V))
            rows = 3
        if len(text) > 25 and rows == 3:
            keep(info, [0, 2])
            rows = 2
        nodes = [text[-1]]
        for step in range(WIDTH - 1):  # a model that is often right
            index = len(text) + step
            right = expected[index] if index < len(expected) else 0
            nodes.append(right if (index * 7) % 5 else (right + 1) % V)
        lengths = [len(text) - 1] * rows
        (emitted, *_), _ = verify(
            chains([nodes] * rows, lengths), info.copy_for_forward(), table[nodes * rows], lengths
        )
        text += emitted
        accepted += len(emitted) - 1
    assert text[: steps + 1] == expected
    assert 0 < accepted < steps


def test_greedy_requests_are_walked_as_sglang_walks_them(sampler):
    """Beside one that is not, in logits with ties: SGLang's own batches of greedy requests alone are its argmax."""
    logits = torch.randn(6 * WIDTH, V, generator=torch.Generator().manual_seed(4)).bfloat16().float()
    best = logits.argmax(-1).view(-1, WIDTH).tolist()
    greedy = [Request(temperature=0.0)] * 3 + [Request(top_k=1, temperature=0.7)] * 2
    drafts, lengths = near(best), [4, 5, 6, 7, 8, 9]
    own, _ = verify(
        chains(drafts[:5], lengths[:5]), info_of(*greedy, vocab_size=V), logits[: 5 * WIDTH], lengths[:5]
    )
    mixed, _ = verify(chains(drafts, lengths), info_of(*greedy, Request(), vocab_size=V), logits, lengths)
    assert mixed[:5] == own
    assert {len(text) for text in own} == {1, 2, 3, 4}


PARENTS, NODES, DEPTHS = [-1, 0, 0, 1, 2, 0, 4, 0], [3, 0, 1, 2, 3, 2, 0, 0], [0, 1, 1, 2, 2, 1, 3, 1]
"""A tree that branches: three children of the first node and padding, as n-grams make it."""


def test_trees_that_branch_emit_the_tokens_of_plain_steps(sampler):
    requests, length = 200, 11
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(5)).repeat(requests, 1)
    params = [tokendraw.SamplingParams(seed=seed) for seed in range(requests) for _ in NODES]
    positions = [length + depth for depth in DEPTHS] * requests
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    plain = native().sample(logits, metadata).token_ids.view(requests, -1).tolist()
    info = info_of(*(Request(sampling_seed=seed) for seed in range(requests)), vocab_size=4)
    lengths = [length] * requests
    texts, _ = verify(trees([PARENTS] * requests, [NODES] * requests, lengths), info, logits, lengths)
    for drawn, text in zip(plain, texts, strict=True):
        node, expected = 0, [drawn[0]]
        while children := [i for i in range(8) if PARENTS[i] == node and NODES[i] == drawn[node]]:
            node = children[0]
            expected.append(drawn[node])
        assert text == expected
    assert {len(text) for text in texts} == {1, 2, 3, 4}


def test_requests_without_seeds_emit_the_targets_distribution(sampler):
    """Beside seeded ones: of 3 tokens, the first and the two behind an accepted draft."""
    torch.manual_seed(3)
    requests, logits = 2000, torch.tensor([[0.3, 1.0, 0.0], [1.0, 0.2, 0.5]])
    info = info_of(Request(sampling_seed=1), *[Request(temperature=0.8)] * requests, vocab_size=3)
    lengths = [9] * (requests + 1)
    drafts = chains([[0, 1]] * (requests + 1), lengths)
    pairs = []
    for _ in range(3):
        texts, _ = verify(drafts, info, logits.repeat(requests + 1, 1), lengths)
        pairs += texts[1:]
    probs = (logits.double() / 0.8).softmax(-1)
    outcomes = [[0], [2], [1, 0], [1, 1], [1, 2]]
    expected = torch.cat([probs[0, [0, 2]], probs[0, 1] * probs[1]])
    found = [outcomes.index(pair) for pair in pairs]
    assert chi_square(torch.tensor(found).numpy(), expected.numpy()) > FALSE_ALARM


class TestDraftsWithProbabilities:
    """With ``--speculative-use-rejection-sampling``, where SGLang draws the drafts."""

    @pytest.fixture(params=["rejection", "block"])
    def mode(self, request):
        from sglang.srt.layers.sampler import create_sampler

        leaves = {"speculative_use_block_verification": request.param == "block"}
        with speculation(speculative_use_rejection_sampling=True, **leaves):
            self.sampler = create_sampler()
            yield request.param

    def test_chains_are_those_of_tokendraws_verification(self, mode, logits):
        q = torch.randn(len(KINDS), WIDTH - 1, V, generator=torch.Generator().manual_seed(7)).softmax(-1)
        drafts = near(plain_tokens(logits))
        info = info_of(*(Request(**kind) for kind in KINDS), vocab_size=V)
        metadata = tokendraw.SamplingMetadata.from_params([params_of(kind, None) for kind in KINDS])
        own = tokendraw.Drafts.from_lists([row[1:] for row in drafts], draft_probs=q.view(-1, V))
        lengths = set()
        for seed in range(8):
            torch.manual_seed(seed)
            output = native().verify(logits, own, metadata, mode=mode)
            torch.manual_seed(seed)
            texts, _ = verify(chains(drafts, SEQ_LENS, q), info, logits, SEQ_LENS)
            counts = (output.num_accepted + 1).tolist()
            assert texts == [
                row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)
            ]
            lengths.update(counts)
        assert len(lengths) > 2

    def test_requests_have_no_seeds(self, mode):
        """SGLang's draws of drafts would take ``NO_SEED`` for a seed."""
        assert info_of(Request(sampling_seed=3)).sampling_seed is None


class Mask:
    """A grammar's mask: forbids a token in every row."""

    def __init__(self, token):
        self.token, self.calls = token, 0

    def apply(self, logits):
        self.calls += 1
        logits[:, self.token] = -torch.inf


def edited(info):
    """Add to a batch the edits that SGLang keeps as tensors [B, V]; the same for equal batches."""
    generator = torch.Generator().manual_seed(9)
    shape = (len(info), V)
    info.acc_additive_penalties = torch.randn(shape, generator=generator)
    info.acc_scaling_penalties = 1 + torch.rand(shape, generator=generator)
    info.logit_bias = torch.randn(shape, generator=generator)
    return info


def test_edits_are_sglangs_own(sampler, logits):
    from sglang.srt.speculative import eagle_utils

    greedy, ours = ([Request(temperature=0.0)] * 5, [Request(**kind) for kind in KINDS])
    drafts, masks = chains(near(plain_tokens(logits)), SEQ_LENS), [Mask(5), Mask(5)]
    assert eagle_utils.eagle_sample.__wrapped__ is not None
    _, expected = verify(drafts, edited(info_of(*greedy, vocab_size=V)), logits, SEQ_LENS, masks[0])
    texts, found = verify(drafts, edited(info_of(*ours, vocab_size=V)), logits, SEQ_LENS, masks[1])
    assert torch.equal(found, expected)
    assert not torch.equal(found, logits)
    assert [mask.calls for mask in masks] == [1, 1]
    assert not any(5 in text for text in texts)


def renamed_forward(self, logits, batch):
    """Stand for another version of SGLang's ``Sampler.forward``."""


renamed_forward.__qualname__ = "Sampler.forward"


def scored(drafts, info, logits):
    """Verify, and compute the log-probabilities [B, depth] of what is emitted; NaN for the rest."""
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.speculative import eagle_utils

    batch, output = batch_of(info, SEQ_LENS), LogitsProcessorOutput(next_token_logits=logits.clone())
    batch.top_logprobs_nums, batch.token_ids_logprobs = [1] * len(info), [None] * len(info)
    predict, counts, accept_index = eagle_utils.eagle_sample(drafts, batch, output)
    logprob_processor.compute_spec_logprobs(batch, output, predict, accept_index=accept_index)
    is_emitted = torch.arange(accept_index.shape[1]) < counts[:, None]
    return output.next_token_logprobs.masked_fill(~is_emitted, torch.nan)


def assert_certain(logprobs):
    """Every emitted token is certain."""
    emitted = logprobs[logprobs.isfinite()]
    assert len(emitted) > len(logprobs)
    torch.testing.assert_close(emitted, torch.zeros_like(emitted))


class TestFaults:
    """After any failure SGLang goes on with its verification, without seeds, from logits that are edited once."""

    @pytest.fixture
    def logged(self, caplog):
        caplog.set_level("INFO", logger="tokendraw.sglang")
        return lambda: [record.getMessage() for record in caplog.records if record.name == "tokendraw.sglang"]

    @pytest.fixture
    def certain(self):
        """Logits of the five requests with a certain token in each row, and drafts with 0 to 3 of them."""
        tokens = torch.randint(1, V, (5, WIDTH), generator=torch.Generator().manual_seed(2))
        logits = torch.full((5 * WIDTH, V), -1e4)
        logits[torch.arange(5 * WIDTH), tokens.view(-1)] = 0.0
        expected = [row[: b % WIDTH + 1] for b, row in enumerate(tokens.tolist())]
        return near(tokens.tolist()), logits, expected

    def test_a_call_that_raises_in_the_middle_of_a_run(self, sampler, certain, logged, monkeypatch):
        drafts, logits, expected = certain
        calls, sample = [], sampler._draws.sample

        def failing(logits, metadata):
            calls.append(1)
            if len(calls) > 1:
                raise RuntimeError("illegal\nshape")
            return sample(logits, metadata)

        monkeypatch.setattr(sampler._draws, "sample", failing, raising=False)
        _, once = verify(
            chains(drafts, SEQ_LENS),
            edited(info_of(*[Request(temperature=0.0)] * 5, vocab_size=V)),
            logits,
            SEQ_LENS,
        )
        for _ in range(4):
            info, mask = edited(info_of(*seeded(), vocab_size=V)), Mask(0)
            column = info.sampling_seed
            texts, found = verify(chains(drafts, SEQ_LENS), info, logits, SEQ_LENS, mask)
            assert mask.calls == 1
            once[:, 0] = -torch.inf
            assert torch.equal(found.clamp(min=-1e9), once.clamp(min=-1e9))
            assert info.sampling_seed is column
            assert info.logit_bias is not None
            assert texts == expected
        assert len(calls) == 2
        assert logged() == [
            f"tokendraw: {native().name!r} raised RuntimeError: illegal shape. SGLang goes on with its own sampling "
            "backend 'pytorch', without seeds per request; restart it to draw through tokendraw again"
        ]
        assert draw(sampler, logits[:1], info_of(Request(), vocab_size=V))[0].shape == (1,)

    @pytest.mark.parametrize(
        ("leaves", "reason"),
        [
            (
                {"algorithm": "DFLASH"},
                "--speculative-algorithm DFLASH has a verification of its own",
            ),
            (
                {"speculative_accept_threshold_acc": 0.9},
                "--speculative-accept-threshold-acc accepts drafts that the target would not draw",
            ),
        ],
    )
    def test_settings_that_leave_the_verification_to_sglang(self, leaves, reason, logged):
        from sglang.srt.layers.sampler import create_sampler

        with speculation(**leaves):
            for _ in range(2):
                create_sampler()
            assert info_of(Request(sampling_seed=3)).sampling_seed is None
        line = f"tokendraw: SGLang verifies drafts, without seeds per request: {reason}"
        assert [entry for entry in logged() if "replaced" not in entry][:1] == [line]

    @pytest.mark.parametrize(
        ("module", "name", "parameters"),
        [
            (
                "speculative.eagle_utils",
                "eagle_sample",
                "verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k, watermark_state, "
                "watermark_full_mask",
            ),
            (
                "layers.logprob_processor",
                "compute_spec_logprobs",
                "batch, logits_output, predict, accept_index, chain_stride",
            ),
        ],
    )
    def test_a_changed_signature_leaves_the_verification_to_sglang(
        self, logged, monkeypatch, module, name, parameters
    ):
        from sglang.srt.layers.sampler import create_sampler

        def changed(drafts, batch):
            return None

        with speculation():
            changed.__qualname__ = name
            monkeypatch.setattr(f"sglang.srt.{module}.{name}", changed)
            sampler = create_sampler()
            assert info_of(Request(sampling_seed=3)).sampling_seed is None
            assert type(sampler).__name__ == "TokendrawSampler"
        assert logged()[1:] == [
            f"tokendraw: SGLang verifies drafts, without seeds per request: {name!r} needs the parameters "
            f"{parameters}, found drafts, batch"
        ]

    def test_a_missing_name_leaves_the_verification_to_sglang(self, logged, monkeypatch):
        from sglang.srt.layers.sampler import create_sampler
        from sglang.srt.utils import async_probe

        with speculation():
            monkeypatch.delattr(async_probe, "sanitize_nan_logits")
            create_sampler()
            assert info_of(Request(sampling_seed=3)).sampling_seed is None
        (line,) = logged()[1:]
        assert line.startswith(
            "tokendraw: SGLang verifies drafts, without seeds per request: ImportError: cannot import name "
            "'sanitize_nan_logits' from 'sglang.srt.utils.async_probe' ("
        )

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("untested version", "SGLang 0.6.1 is untested, tested are 0.5.23"),
            ("changed signature", "'Sampler.forward' needs the parameters self, logits_output, "),
            ("no plugin", "SamplerUnavailableError: No plugin can serve"),
        ],
    )
    def test_without_the_sampler_sglang_verifies_and_scores(
        self, sampler, certain, logged, monkeypatch, fault, reason
    ):
        """An earlier sampler of this process has hooked SGLang's functions."""
        from sglang.srt.layers.sampler import Sampler

        drafts, logits, expected = certain
        for name in ("sample", "verify", "score"):
            monkeypatch.setattr(tokendraw.Sampler, name, lambda *_, **__: pytest.fail("tokendraw was called"))
        with speculation(), backend("tokendraw"), monkeypatch.context() as patch:
            if fault == "untested version":
                patch.setattr("tokendraw.engines.installed_version", lambda name: "0.6.1")
            elif fault == "no plugin":
                patch.setenv("TOKENDRAW_DISABLE", "native")
            else:
                patch.setattr(Sampler, "forward", renamed_forward)
            made = _registration.make_sampler(tokendraw_sglang.state())
            assert type(made) is Sampler
            info, mask = edited(info_of(*seeded(), vocab_size=V)), Mask(0)
            texts, _ = verify(chains(drafts, SEQ_LENS), info, logits, SEQ_LENS, mask)
            assert (texts, mask.calls) == (expected, 1)
            assert_certain(scored(chains(drafts, SEQ_LENS), info, logits))
        (line,) = logged()
        assert line.startswith(f"tokendraw: SGLang left alone: {reason}")

    def test_a_score_that_raises_leaves_log_probabilities_to_sglang_and_draws_nothing_again(
        self, sampler, certain, logged, monkeypatch
    ):
        drafts, logits, _ = certain
        calls, sample = [], sampler._draws.sample

        def drawn(*given):
            calls.append("sample")
            return sample(*given)

        def refuse(*_):
            calls.append("score")
            raise ValueError("no scorer.")

        monkeypatch.setattr(sampler._draws, "sample", drawn, raising=False)
        monkeypatch.setattr(sampler._draws, "score", refuse, raising=False)
        for _ in range(3):
            assert_certain(scored(chains(drafts, SEQ_LENS), edited(info_of(*seeded(), vocab_size=V)), logits))
        assert calls == ["sample", "score", "sample", "sample"]
        assert logged() == [
            "tokendraw: a score raised ValueError: no scorer. SGLang computes log-probabilities from now on"
        ]

    def test_batches_that_sglang_verifies_go_without_seeds(self, sampler, certain, monkeypatch):
        from sglang.srt.runtime_context import get_spec

        drafts, logits, expected = certain
        monkeypatch.setattr(sampler, "verify", lambda *_: pytest.fail("tokendraw verified"))
        with get_spec().override(speculative_accept_threshold_single=0.5):
            info = info_of(*seeded(), vocab_size=V)
            column = info.sampling_seed
            assert column.tolist() == [0, 1, 2, 3, 4]
            texts, _ = verify(chains(drafts, SEQ_LENS), info, logits, SEQ_LENS)
        assert texts == expected
        assert info.sampling_seed is column
        greedy = info_of(*[Request(temperature=0.0, sampling_seed=1)] * 5, vocab_size=V)
        assert verify(chains(drafts, SEQ_LENS), greedy, logits, SEQ_LENS)[0] == expected


def test_an_idle_rank_has_nothing_to_verify(sampler):
    """SGLang's ranks in data parallel take part in steps without a batch: there are no logits and no parameters."""
    from sglang.srt.speculative import eagle_utils

    idle = SimpleNamespace(
        device="cpu", forward_mode=SimpleNamespace(is_idle=lambda: True), sampling_info=None
    )
    assert [len(tensor) for tensor in eagle_utils.eagle_sample(None, idle, None)] == [0, 0, 0]


def test_a_batch_is_described_once_for_all_its_steps_of_a_width(sampler, logits, monkeypatch):
    calls, real = [], _metadata.metadata_of
    monkeypatch.setattr(_metadata, "metadata_of", lambda *args: (calls.append(1), real(*args))[1])
    info = info_of(*seeded(), vocab_size=V)
    for width, count in ((WIDTH, 1), (WIDTH, 1), (2, 2), (WIDTH, 3)):
        drafts = chains([[1, 2, 3, 4][:width]] * 5, SEQ_LENS)
        verify(drafts, info.copy_for_forward(), logits[: 5 * width], SEQ_LENS)
        assert len(calls) == count


def test_the_column_of_seeds_has_requests_without(sampler):
    assert info_of(Request(), Request(sampling_seed=4)).sampling_seed.tolist() == [NO_SEED, 4]


def test_rules_are_drawn_and_refused_as_the_verification_is_served(sampler, logits):
    rules = {"custom_params": {"tokendraw": {"top_n_sigma": 0.5}}}
    request = Request(sampling_seed=3, temperature=1.5, **rules)
    request.sampling_params.verify(V)
    info = info_of(request, vocab_size=V)
    params = tokendraw.SamplingParams(temperature=1.5, seed=3, filters={"top_n_sigma": 0.5})
    metadata = tokendraw.SamplingMetadata.from_params([params] * WIDTH, positions=[9, 10, 11, 12])
    expected = native().sample(logits[:WIDTH], metadata).token_ids.tolist()
    (text,), _ = verify(chains([[1, *expected[:-1]]], [9]), info, logits[:WIDTH], [9])
    assert text == expected
    with (
        speculation("DFLASH"),
        pytest.raises(ValueError, match=r"found that --speculative-algorithm DFLASH has a verification"),
    ):
        request.sampling_params.verify(V)
