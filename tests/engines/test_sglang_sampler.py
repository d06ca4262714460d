"""SGLang's sampler and verification through tokendraw: random requests in batches that come and go.

Each seeded row draws what tokendraw draws for it alone. The modules are SGLang's own, and load the adapter as its
server would: see `make test-engines`.
"""

import argparse
import random
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch

import tokendraw
from sglang_drafts import batch_of, chains, speculation, trees, verify
from sglang_engine import IS_REAL, Request, backend, draw, info_of, keep, made_sampler
from special_rows import FALSE_ALARM
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_sglang import state
from tokendraw_sglang._engine import default_backend, without_seeds
from tokendraw_sglang._requests import _CHOICE, NO_SEED
from tokendraw_sglang._verification import _TARGETS
from tokendraw_testing.kit.statistical_tests import fit

if not IS_REAL:
    pytest.skip("needs SGLang", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("sglang")
V, WIDTH = 60, 4
FIELDS = {
    "temperature": (0.0, 0.7, 1.8),
    "top_k": (1, 3, 12),
    "top_p": (0.6, 0.9),
    "min_p": (0.02, 0.2),
    "sampling_seed": (0, -1, 7, -5, 2**63 - 1),
}
RULES = (
    {"top_n_sigma": 0.5},
    {"epsilon_cutoff": 0.02, "p_less": 1},
    {"filter_order": "temperature_last"},
    {"filter_order": "top_k_first"},
    {"filter_order": "joint"},
)


@pytest.fixture
def sampler():
    return made_sampler()


@pytest.fixture
def verifying():
    """The sampler where SGLang speculates."""
    with speculation():
        yield made_sampler()


@pytest.fixture
def deterministic():
    """SGLang with ``--enable-deterministic-inference``."""
    from sglang.srt.runtime_context import get_exec

    with get_exec().deterministic.override(enable_deterministic_inference=True):
        yield


def row_logits(number, seed=1):
    """Logits [number, V] with ties."""
    return (3 * torch.randn(number, V, generator=torch.Generator().manual_seed(seed))).bfloat16().float()


def params_of(fields):
    """A request in tokendraw's names. SGLang's order of filters is joint; one token to draw is its argmax."""
    fields, rules = dict(fields), dict(fields.get("custom_params", {}).get("tokendraw", {}))
    for name in ("custom_params", "presence_penalty"):
        fields.pop(name, None)
    order = rules.pop("filter_order", "joint" if "top_p" in fields else "top_k_first")
    if fields.get("top_k") == 1:
        fields["temperature"] = 0.0
    seed = fields.pop("sampling_seed", None)
    return SamplingParams(seed=seed, filter_order=order, filters=rules or None, **fields)


def own(logits, fields, positions):
    """The tokens of tokendraw for the same requests, without SGLang."""
    metadata = SamplingMetadata.from_params([params_of(each) for each in fields], positions=positions)
    return tokendraw.load_sampler("native", device="cpu").sample(logits, metadata).token_ids.tolist()


def is_known(fields):
    """Whether the token of a request is known: those without a seed draw anew."""
    return "sampling_seed" in fields or params_of(fields).temperature == 0.0


class Random(random.Random):
    def asked(self):
        chances = {name: 0.8 if name == "sampling_seed" else 0.4 for name in FIELDS}
        fields = {name: self.choice(FIELDS[name]) for name in FIELDS if self.random() < chances[name]}
        if self.random() < 0.3:
            fields["custom_params"] = {"tokendraw": self.choice(RULES)}
        return fields

    def wanted(self, rows):
        """Numbers of best tokens, and tokens by id, that rows want log-probabilities of."""
        top, ids = [0] * rows, [None] * rows
        if self.random() < 0.5:
            top = [self.choice((0, 1, 9, V)) for _ in range(rows)]
        if self.random() < 0.5:
            ids = [self.choice((None, [], [3, 3, 59], [7])) for _ in range(rows)]
        return {"top": top, "ids": ids}


class Batch:
    """SGLang's parameters of a batch, and its requests."""

    def __init__(self, rng):
        self.rng = rng
        self.fields = [rng.asked() for _ in range(rng.randint(1, 3))]
        self.info = self._info(self.fields)

    def _info(self, fields):
        return info_of(*(Request(**each) for each in fields), vocab_size=V)

    def change(self):
        """Requests come or go."""
        if len(self.fields) < 5 and self.rng.random() < 0.6:
            others = [self.rng.asked() for _ in range(self.rng.randint(1, 2))]
            self.info.merge_batch(self._info(others))
            self.fields += others
        else:
            rows = sorted(self.rng.sample(range(len(self.fields)), self.rng.randint(1, len(self.fields))))
            keep(self.info, rows)
            self.fields = [self.fields[row] for row in rows]

    @property
    def is_greedy(self):
        return all(params_of(each).temperature == 0.0 for each in self.fields)


@pytest.fixture(params=[False, True], ids=["temperature", "original"])
def original(request, monkeypatch):
    """Whether SGLang returns log-probabilities without the temperature."""
    from sglang.srt.layers import sampler as module

    monkeypatch.setattr(module, "SGLANG_RETURN_ORIGINAL_LOGPROB", request.param)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", str(request.param).lower())
    return request.param


NAMES = (
    "logprobs",
    "top_logprobs_val",
    "top_logprobs_idx",
    "token_ids_logprobs_val",
    "token_ids_logprobs_idx",
)


def assert_same(logits, ours, theirs, is_emitted=None):
    """The same fields of ``LogitsProcessorOutput`` are filled with the same numbers, but for ids of equal logits.

    :param logits: of the rows.
    :param is_emitted: [B, depth] bool of a verification, whose other entries nobody reads.
    """
    for name in NAMES:
        mine, other = (getattr(output, f"next_token_{name}", None) for output in (ours, theirs))
        assert (mine is None) == (other is None), name
        if mine is None:
            continue
        if name == "logprobs":
            mine, other = mine.view(-1), other.view(-1)
        triples = list(zip(mine, other, logits, strict=True))
        if is_emitted is not None:
            triples = [each for each, read in zip(triples, is_emitted.view(-1), strict=True) if read]
        for left, right, row in triples:
            if name == "token_ids_logprobs_idx":
                assert left == right
            elif name == "top_logprobs_idx":
                assert torch.equal(row[left], row[right])
            else:
                torch.testing.assert_close(left, right)


def scored_by_sglang(logits, info, tokens, wanted, *, original):
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


@pytest.mark.parametrize("speculates", [False, True])
def test_rows_draw_their_tokens_and_get_sglangs_log_probabilities_in_any_batch(original, speculates):
    rng = Random(f"draws {original} {speculates}")
    with speculation() if speculates else backend("tokendraw"):
        sampler, batch = made_sampler(), Batch(rng)
        for step in range(60):
            if rng.random() < 0.3:
                batch.change()
            rows, positions = len(batch.fields), [rng.randrange(5000) for _ in batch.fields]
            logits, wanted = row_logits(rows, seed=step), rng.wanted(rows)
            logits[:, [5, 7]] = -torch.inf
            given, info = logits.clone(), batch.info.copy_for_forward()
            tokens, output = draw(sampler, given, info, positions, copy=False, **wanted)
            assert torch.equal(given, logits)
            assert tokens.dtype is torch.int32 or batch.is_greedy
            expected = own(logits, batch.fields, positions)
            for row, fields in enumerate(batch.fields):
                assert tokens[row] == expected[row] or not is_known(fields), fields
            theirs = scored_by_sglang(logits, info, tokens, wanted, original=original or batch.is_greedy)
            assert_same(logits, output, theirs)
            assert output.next_token_logprobs.min() >= torch.finfo(torch.float32).min
        assert sampler._scores is not None


class Mask:
    """A grammar's mask: forbids a token in every row."""

    def __init__(self, token):
        self.token, self.calls = token, 0

    def apply(self, logits):
        self.calls += 1
        logits[:, self.token] = -torch.inf


def edited(info):
    """Add to a batch the edits that SGLang keeps as tensors [B, V]; the same for equal batches."""
    generator, shape = torch.Generator().manual_seed(9), (len(info), V)
    info.acc_additive_penalties = torch.randn(shape, generator=generator)
    info.acc_scaling_penalties = 1 + torch.rand(shape, generator=generator)
    info.logit_bias = torch.randn(shape, generator=generator)
    return info


PARENTS = {
    "chain": [-1, 0, 1, 2],
    "tree": [-1, 0, 0, 2],
    "padded tree": [-1, 0, 0, 1, 2, 0, 4, 0],
}
"""Parent of each node: in a tree the first node has two children or more, as n-grams make it."""


def depth_of(parents, node):
    return 0 if node == 0 else 1 + depth_of(parents, parents[node])


@pytest.mark.parametrize("form", PARENTS)
def test_drafts_are_accepted_as_far_as_plain_steps_draw_them_behind_sglangs_edits(original, verifying, form):
    """And the log-probabilities of what is emitted are SGLang's, also after a failed score."""
    from sglang.srt.speculative import eagle_utils

    rng, parents = Random(f"{form} {original}"), PARENTS[form]
    width, lengths_of_texts = len(parents), set()
    batch = Batch(rng)
    assert eagle_utils.eagle_sample.__wrapped__ is not None
    for step in range(30):
        if rng.random() < 0.4:
            batch.change()
        rows, seq_lens = len(batch.fields), [rng.randrange(3, 5000) for _ in batch.fields]
        logits, mask = row_logits(rows * width, seed=step), Mask(5) if rng.random() < 0.3 else None
        info = batch.info.copy_for_forward()
        if rng.random() < 0.4:
            edited(info)
        by_sglang = logits_edited_by_sglang(info, logits, seq_lens, mask, width)
        positions = [length + depth_of(parents, node) for length in seq_lens for node in range(width)]
        fields = [each for each in batch.fields for _ in range(width)]
        drawn = own(by_sglang, fields, positions)
        nodes = [
            [
                1,
                *(
                    rng.choice([drawn[b * width + parents[node]], rng.randrange(V)])
                    for node in range(1, width)
                ),
            ]
            for b in range(rows)
        ]
        drafts = chains(nodes, seq_lens) if form == "chain" else trees([parents] * rows, nodes, seq_lens)
        texts, found = verify(drafts, info, logits, seq_lens, mask)
        assert torch.equal(found, by_sglang)
        assert mask is None or mask.calls == 2
        for b, each in enumerate(batch.fields):
            if is_known(each):
                assert texts[b] == walk(parents, nodes[b], drawn[b * width : (b + 1) * width])
                lengths_of_texts.add(len(texts[b]))
        compare_scores(verifying, rng, drafts, info, found, seq_lens, fails=step == 29)
    assert len(lengths_of_texts) >= 3


def logits_edited_by_sglang(info, logits, seq_lens, mask, width):
    """The logits as SGLang's own verification of greedy requests edits them."""
    greedy = info_of(*[Request(temperature=0.0)] * len(info), vocab_size=V)
    for name in ("acc_additive_penalties", "acc_scaling_penalties", "logit_bias"):
        setattr(greedy, name, getattr(info, name))
    return verify(chains([[0] * width] * len(info), seq_lens), greedy, logits, seq_lens, mask)[1]


def walk(parents, nodes, drawn):
    """The tokens of a request: its draws along equal drafts."""
    node, text = 0, [drawn[0]]
    while children := [i for i in range(1, len(nodes)) if parents[i] == node and nodes[i] == drawn[node]]:
        node = children[0]
        text.append(drawn[node])
    return text


def compare_scores(sampler, rng, drafts, info, logits, seq_lens, *, fails):
    """Compare the log-probabilities of a verification with SGLang's own."""
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.speculative import eagle_utils

    batch, wanted = batch_of(info, seq_lens), rng.wanted(len(info))
    if rng.random() < 0.7:
        batch.top_logprobs_nums, batch.token_ids_logprobs = wanted["top"], wanted["ids"]
    ours, theirs = (LogitsProcessorOutput(next_token_logits=logits.clone()) for _ in range(2))
    plain = info_of(*[Request(temperature=0.0)] * len(info), vocab_size=V)
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    predict, counts, accept_index = eagle_utils.eagle_sample(drafts, batch_of(plain, seq_lens), output)
    if fails:
        sampler._draws.score = None
    logprob_processor.compute_spec_logprobs(batch, ours, predict, accept_index=accept_index)
    assert (sampler._scores is None) == fails
    logprob_processor.compute_spec_logprobs.__wrapped__(batch, theirs, predict, accept_index=accept_index)
    assert ours.next_token_logprobs.shape == accept_index.shape
    is_emitted = torch.arange(accept_index.shape[1]) < counts[:, None]
    assert_same(logits[accept_index.long().view(-1)], ours, theirs, is_emitted)


@pytest.mark.parametrize("rows", [1, 2, 8, 64])
def test_deterministic_rows_draw_their_tokens_in_any_batch(deterministic, rows):
    """Rows without a seed have SGLang's, 42. Log-probabilities are SGLang's to the bit."""
    others = [{"top_k": 3}, {"temperature": 0.0}, {"presence_penalty": 1.5}, {"min_p": 0.2}]
    sampler, logits = made_sampler(), row_logits(rows)
    for first in ({}, {"sampling_seed": NO_SEED}, {"top_p": 0.9}, {"min_p": 0.1, "sampling_seed": 7}):
        fields = [first, *(others[i % 4] for i in range(rows - 1))]
        info = info_of(*(Request(mask="top_k" in each, **each) for each in fields), vocab_size=V)
        for _ in range(2):
            step, seen = info.copy_for_forward(), logits.clone()
            step.apply_logits_bias(seen)
            tokens, output = draw(sampler, seen, step, top=[0] * rows)
            alone = [own(seen[[b]], [{"sampling_seed": 42} | fields[b]], [9])[0] for b in range(rows)]
            assert tokens.tolist() == alone
            logprobs = (seen / step.temperatures).log_softmax(-1)
            assert torch.equal(output.next_token_logprobs, logprobs[range(rows), tokens])
            info.penalizer_orchestrator.cumulate_output_tokens(tokens.long())


@pytest.mark.parametrize("judges", [False, True])
def test_equal_requests_have_equal_texts_in_deterministic_verifications(deterministic, judges):
    drafts = chains([[1, 2, 3, 4]] * 30, [7] * 30, torch.full((90, V), 1 / V))
    with speculation(speculative_use_rejection_sampling=judges):
        made_sampler()
        info = info_of(*[Request()] * 30, vocab_size=V)
        texts, _ = verify(drafts, info, torch.zeros(30 * WIDTH, V), [7] * 30)
    assert len(set(map(tuple, texts))) == 1


def test_sampling_masks_hold_what_sglang_keeps(sampler):
    """Of tied best tokens the drawn one; and SGLang makes them, too, where a plugin does not tell what it kept."""
    rules = [{}, {"top_k": 5}, {"top_k": 12, "top_p": 0.8}, {"top_k": 9, "min_p": 0.05}, {"temperature": 0.0}]
    info = info_of(*(Request(mask=bool(each), **each) for each in rules), vocab_size=V)
    logits, positions, sampler.sampling_mask_max_tokens = torch.randn(5, V), torch.tensor([9] * 5), 3
    with backend("pytorch"):
        probs = (logits / info.temperatures).softmax(-1)
        _, theirs = sampler._sample_from_probs(probs, info, positions, False)
    _, ours = sampler._draw(logits, info, positions)
    expected = torch.zeros(4, V).scatter_(1, theirs.token_ids.long(), theirs.weights)
    torch.testing.assert_close(ours.weights, expected)
    logits[4, 30:] = 9.0
    for masking in (sampler._masking, None):
        sampler._masking = masking
        tokens, output = draw(sampler, logits, info)
        assert masking is None or tokens[4] == 30
        assert output.sampling_mask_output.statuses.tolist() == [1, 1, 1, 0]
        assert output.sampling_mask_output.token_ids[3, 0] == tokens[4]


# Requests without seeds.


def test_unseeded_rows_beside_a_seeded_row_draw_anew(sampler):
    info, logits = info_of(Request(sampling_seed=7), *[Request()] * 100), row_logits(1).expand(201, -1)
    info.merge_batch(info_of(*[Request()] * 100))
    first, second = (draw(sampler, logits, info)[0] for _ in range(2))
    assert first[0] == second[0]
    for part in (slice(1, 101), slice(101, None)):
        assert len(set(first[part].tolist())) > 1
        assert (first[part] != second[part]).any()


def test_drafts_of_requests_without_seeds_emit_the_targets_distribution(verifying):
    """Beside seeded ones: of 3 tokens, the first and the two behind an accepted draft."""
    torch.manual_seed(3)
    requests, logits = 2000, torch.tensor([[0.3, 1.0, 0.0], [1.0, 0.2, 0.5]])
    info = info_of(Request(sampling_seed=1), *[Request(temperature=0.8)] * requests, vocab_size=3)
    lengths, pairs = [9] * (requests + 1), []
    drafts = chains([[0, 1]] * (requests + 1), lengths)
    for _ in range(3):
        texts, _ = verify(drafts, info, logits.repeat(requests + 1, 1), lengths)
        pairs += texts[1:]
    probs = (logits.double() / 0.8).softmax(-1)
    outcomes = [[0], [2], [1, 0], [1, 1], [1, 2]]
    expected = torch.cat([probs[0, [0, 2]], probs[0, 1] * probs[1]])
    found = [outcomes.index(pair) for pair in pairs]
    assert fit(torch.tensor(found).numpy(), expected.numpy()).p_value > FALSE_ALARM


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_drafts_with_probabilities_are_verified_as_by_tokendraw_alone_without_seeds(mode):
    """With ``--speculative-use-rejection-sampling``; SGLang's draws of drafts would take ``NO_SEED`` for a seed."""
    kinds = ({"temperature": 0.9, "top_k": 12}, {"temperature": 1.3}, {"temperature": 0.0}, {"min_p": 0.05})
    logits, lengths, found = row_logits(len(kinds) * WIDTH), [7, 100, 31, 5000], set()
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(len(kinds), WIDTH - 1, V, generator=generator).softmax(-1)
    best = logits.argmax(-1).view(-1, WIDTH).tolist()
    drafts = [[1, *row[:b], *[2] * (WIDTH - 1 - b)] for b, row in enumerate(best)]
    metadata = SamplingMetadata.from_params([SamplingParams(**kind) for kind in kinds])
    of_tokendraw = tokendraw.Drafts.from_lists([row[1:] for row in drafts], draft_probs=q.view(-1, V))
    block = {"speculative_use_block_verification": mode == "block"}
    with speculation(speculative_use_rejection_sampling=True, **block):
        made = made_sampler()
        assert info_of(Request(sampling_seed=3)).sampling_seed is None
        info = info_of(*(Request(**kind) for kind in kinds), vocab_size=V)
        native = tokendraw.load_sampler("native")
        for seed in range(8):
            torch.manual_seed(seed)
            output = native.verify(logits, of_tokendraw, metadata, mode=mode)
            torch.manual_seed(seed)
            texts, _ = verify(chains(drafts, lengths, q), info, logits, lengths)
            counts = (output.num_accepted + 1).tolist()
            rows = zip(output.token_ids.tolist(), counts, strict=True)
            assert texts == [row[:count] for row, count in rows]
            found.update(counts)
        assert made._draws is not None
    assert len(found) > 2


class TestTheColumnOfSeeds:
    def test_exists_with_a_seeded_request(self):
        column = info_of(Request(), Request(sampling_seed=3), Request(sampling_seed=NO_SEED)).sampling_seed
        assert column.tolist() == [NO_SEED, 3, 2**63 - 1]
        assert info_of(Request(), Request()).sampling_seed is None

    def test_exists_where_drafts_are_verified(self, verifying):
        assert info_of(Request(), Request(sampling_seed=4)).sampling_seed.tolist() == [NO_SEED, 4]

    def test_is_left_out_where_another_backend_draws_or_drafts_are_sglangs(self):
        from sglang.srt.runtime_context import get_spec

        with backend("pytorch"):
            assert info_of(Request(sampling_seed=3)).sampling_seed is None
        with get_spec().override(speculative_algorithm="EAGLE"):
            assert info_of(Request(sampling_seed=3)).sampling_seed is None

    def test_is_sglangs_own_in_deterministic_inference(self, deterministic, monkeypatch):
        info = info_of(Request(), Request(sampling_seed=3))
        assert without_seeds(info).sampling_seed.tolist() == [42, 3]
        found = SimpleNamespace(has_flashinfer=True)
        monkeypatch.setattr("sglang.srt.runtime_context.get_platform", lambda: found)
        assert default_backend() == "pytorch"  # FlashInfer's refuses seeds


# What is left to SGLang, and how often a batch is described.


class TestLeftToSGLang:
    """Batches with results that depend on SGLang's way to draw go to SGLang's sampler and backend."""

    def test_logprobs_before_a_watermark(self, sampler, monkeypatch):
        monkeypatch.setattr(sampler, "_draw", lambda *_: pytest.fail("tokendraw drew"))
        logits, plain = torch.full((1, V), -1e4), torch.randn(1, V)
        logits[0, 5] = 0.0  # what a watermark forces
        tokens, output = draw(sampler, logits, info_of(Request(top_k=3)), top=[1], logprob_logits=plain)
        assert tokens.tolist() == [5]
        torch.testing.assert_close(output.next_token_logprobs, plain.log_softmax(-1)[:, 5])

    def test_drafts_that_are_accepted_by_a_threshold_go_without_seeds(self, verifying, monkeypatch):
        from sglang.srt.runtime_context import get_spec

        monkeypatch.setattr(verifying, "verify", lambda *_: pytest.fail("tokendraw verified"))
        logits = torch.full((WIDTH, V), -1e4)
        logits[torch.arange(WIDTH), torch.tensor([3, 4, 5, 6])] = 0.0
        info = info_of(Request(sampling_seed=3), vocab_size=V)
        column = info.sampling_seed
        with get_spec().override(speculative_accept_threshold_single=0.5):
            assert verify(chains([[1, 3, 4, 9]], [7]), info, logits, [7])[0] == [[3, 4, 5]]
        assert info.sampling_seed is column


def test_ranks_agree_on_the_tokens_as_sglang_has_them_agree(sampler, monkeypatch):
    def smallest_of_all_ranks(self, batch_next_token_ids, sampling_info):
        batch_next_token_ids.clamp_(max=3)

    monkeypatch.setattr(type(sampler).__mro__[1], "_sync_token_ids_across_tp", smallest_of_all_ranks)
    logits = torch.full((2, V), -1e4)
    logits[[0, 1], [2, 50]] = 0.0
    assert draw(sampler, logits, info_of(Request(), Request(top_k=4)))[0].tolist() == [2, 3]


def test_empty_batches_and_idle_ranks_draw_nothing(verifying):
    """SGLang's ranks in data parallel take part in steps without a batch: there are no logits and no parameters."""
    from sglang.srt.speculative import eagle_utils

    assert draw(verifying, torch.empty(0, V), info_of())[0].tolist() == []
    mode = SimpleNamespace(is_idle=lambda: True)
    idle = SimpleNamespace(device="cpu", forward_mode=mode, sampling_info=None)
    assert [len(tensor) for tensor in eagle_utils.eagle_sample(None, idle, None)] == [0, 0, 0]


@pytest.fixture
def described(monkeypatch):
    """``described()``: the number of different descriptions of batches that tokendraw has drawn from."""
    memos, sample = [], tokendraw.Sampler.sample

    def noted(self, logits, metadata):
        memos.append(metadata.memo)
        return sample(self, logits, metadata)

    monkeypatch.setattr(tokendraw.Sampler, "sample", noted)
    return lambda: len({id(memo) for memo in memos})


@pytest.mark.parametrize(
    "changed", [{"is_any_greedy": True}, {"max_top_k": 9}, {"need_top_p_sampling": False}, "top_ps"]
)
def test_a_batch_is_described_once_for_all_its_steps_and_again_when_it_changes(sampler, described, changed):
    info = info_of(Request(sampling_seed=3, top_p=0.9), Request(min_p=0.1, top_k=9))
    for position in range(3):
        draw(sampler, row_logits(2), info.copy_for_forward(), [position] * 2)
    before = described()
    vars(info).update({"top_ps": info.top_ps.clone()} if changed == "top_ps" else changed)
    draw(sampler, row_logits(2), info)
    assert (before, described()) == (1, 2)


# Rules.


def asking(rules, **params):
    return Request(custom_params={"tokendraw": rules}, **params)


def test_bad_rules_are_refused_when_the_request_is_taken():
    """With the words of ``read_rules``, all of which test_vllm_rules.py has; SGLang's own refusals stay."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what SGLang answers with
        asking({"p_les": 1}).sampling_params.verify(V)
    assert str(caught.value) == (
        "custom_params['tokendraw'] needs names of filters or parameters, found 'p_les', the nearest is 'p_less'. "
        "Correct it."
    )
    asking({"p_less": 1}).sampling_params.verify(V)
    Request(custom_params={"thinking_budget": 3}).sampling_params.verify(V)
    params = asking({"p_les": 1}).sampling_params
    params.temperature = -1.0
    with pytest.raises(ValueError, match="non-negative"):
        params.verify(V)


def test_rules_are_refused_where_sglang_draws_or_verifies(verifying):
    params = asking({"p_less": 1}).sampling_params
    params.verify(V)
    with (
        backend("pytorch"),
        pytest.raises(ValueError, match="needs --sampling-backend tokendraw, found pytorch"),
    ):
        params.verify(V)
    with (
        speculation("DFLASH"),
        pytest.raises(ValueError, match=r"found that --speculative-algorithm DFLASH has a verification"),
    ):
        params.verify(V)


# As SGLang's server loads it.


def test_its_plugin_loader_registers_the_adapter_and_applies_the_hooks():
    from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert set(_CUSTOM_SAMPLER_FACTORIES) == {"tokendraw"}
    batch = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    methods = ("filter_batch", "merge_batch", "from_schedule_batch", "copy_for_forward")
    assert HookRegistry._patched - {*_TARGETS} == {
        *(f"{batch}.{name}" for name in methods),
        "sglang.srt.sampling.sampling_params.SamplingParams.verify",
        _CHOICE,
    }


def test_its_workers_call_the_hooks_of_the_verification():
    from sglang.srt.layers import logprob_processor
    from sglang.srt.layers.sampler import create_sampler
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative import eagle_utils, eagle_worker_common

    with speculation():
        create_sampler()
    assert HookRegistry._patched.issuperset(_TARGETS)
    assert eagle_worker_common.eagle_sample is eagle_utils.eagle_sample
    assert eagle_worker_common.compute_spec_logprobs is logprob_processor.compute_spec_logprobs
    assert eagle_utils.eagle_sample.__wrapped__.__module__ == eagle_utils.__name__


def test_the_factory_makes_tokendraws_sampler_for_the_backend_alone():
    from sglang.srt.layers.sampler import Sampler, create_sampler

    assert type(create_sampler()).__module__ == "tokendraw_sglang._sampler"
    assert type(create_sampler("pytorch")) is Sampler


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("tokendraw", "tokendraw"),
        ("tokendraw --rl-on-policy-target fsdp", "pytorch"),
        ("flashinfer", "pytorch"),
    ],
)
def test_the_command_line_takes_the_backend_and_deterministic_inference_leaves_it(tmp_path, given, left):
    from sglang.srt.arg_groups.attention_hook import handle_deterministic_inference
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    line = f"--model-path {tmp_path} --attention-backend triton --enable-deterministic-inference --sampling-backend"
    settings = ServerArgs.from_cli_args(parser.parse_args([*line.split(), *given.split()]))
    assert settings.sampling_backend == given.split()[0]
    handle_deterministic_inference(settings)
    assert resolved_view(settings).sampling_backend == left
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([*line.split(), "nosuch"])


def test_the_adapter_applies():
    assert vars(state()) == {
        "engine": "SGLang",
        "installed": version("sglang"),
        "tested": ("0.5.23",),
        "applies": True,
        "reason": "would replace its sampler, with --sampling-backend tokendraw",
    }
