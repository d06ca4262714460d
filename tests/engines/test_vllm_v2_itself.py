"""vLLM's V2 sampler from its sources, with and without the adapter: on a GPU, or in Triton's interpreter.

Here are many rows of chosen logits, and kernels counted; whole requests are in test_vllm_runner.py.
``make test-engines`` runs it with the sources of the installed vLLM; ``VLLM_SOURCES`` names other ones, such as those
of an unpacked wheel for CUDA.
"""

import importlib
import os
from types import SimpleNamespace

import pytest
import torch

import tokendraw
import vllm_stand_in
import vllm_v2_sources
from vllm_engine import DEVICE, ON_GPU, DraftingEngine, Engine, Parameters

if vllm_v2_sources.sources() is None or not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("needs vLLM's sources and a GPU or TRITON_INTERPRET=1", allow_module_level=True)
if not ON_GPU:
    importlib.import_module("triton_on_cpu")

V, PROMPT = 50, [4, 9, 9, 2]
DRAWS = 400
HALF = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter compares the bits of bfloat16
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 2.0


@pytest.fixture(scope="module", autouse=True)
def vllm():
    """vLLM's modules, with tokendraw in them."""
    with vllm_v2_sources.vllm_with_tokendraw():
        yield


def with_and_without(make):
    """Two engines: with tokendraw's draws, then with vLLM's own."""
    for ours in (True, False):
        engine = make()
        if not ours:
            engine.leave_to_vllm()
        yield engine


def tokens(output):
    return output.sampled_token_ids.flatten().tolist()


def batch(rows):
    return LOGITS.repeat(rows, 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Engine, {}),
        (Engine, {"return_sampling_mask": True, "logprobs_mode": "processed_logits"}),
        (DraftingEngine, {"most": 3}),
        (DraftingEngine, {"most": 2, "method": "block", "drawn": True}),
    ],
)
def test_the_seams_are_whole_and_the_proof_of_an_untested_version_passes(monkeypatch, caplog, kind, options):
    """But for the speculator and the front end: mocks."""
    from tokendraw_vllm import _engine, _parts

    assert set(_engine.misfits()) <= {_parts.DRAFTING, _parts.ADMISSION}
    monkeypatch.setattr(_engine, "TESTED", ())
    _parts._say.cache_clear()
    with caplog.at_level("INFO", "vllm.tokendraw"):
        assert kind(V, dtype=HALF, **options).sampler._tokendraw.can_draw()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vllm.tokendraw"]
    assert line.endswith(", untested: its seams are whole and a proof passed)")


# Draws.


ASKED = (
    ({"temperature": 0.7, "top_k": 6, "top_p": 0.9}, {}),
    ({"temperature": 1.3, "min_p": 0.05}, {"filter_order": "joint"}),
    ({"temperature": 0.0}, {}),
    ({}, {}),
    ({"temperature": 2.5, "top_k": 12, "min_p": 0.1}, {"filter_order": "temperature_last"}),
    ({"temperature": 2.0}, {"top_n_sigma": 1.0, "typical_p": 0.7}),
    ({"top_p": 0.8}, {"epsilon_cutoff": 0.05, "p_less": 1}),
    ({"temperature": 1.5}, {"xtc_probability": 0.7, "xtc_threshold": 0.05}),
)
"""Parameters of seeded requests, by names that vLLM and tokendraw share, and their rules."""
FLOORS = ("top_n_sigma", "epsilon_cutoff", "p_less")


def with_requests(engine):
    """The engine with these requests behind their prompts, and tokendraw's sampler alone with their parameters."""
    for slot, (asked, rules) in enumerate(ASKED):
        engine.start(slot, PROMPT, seed=slot, **asked, extra_args={"tokendraw": rules})

    def metadata(slots):
        params = []
        for slot in slots:
            asked, rules = ASKED[slot]
            floors = {name: value for name, value in rules.items() if name in FLOORS}
            others = {name: value for name, value in rules.items() if name not in FLOORS}
            params.append(tokendraw.SamplingParams(seed=slot, **asked, **others, filters=floors or None))
        positions = [len(engine.tokens[slot]) - 1 for slot in slots]
        return tokendraw.SamplingMetadata.from_params(params, positions=positions, device=DEVICE)

    return engine, tokendraw.load_sampler(device=DEVICE), metadata


@pytest.mark.parametrize("beside_edits", [False, True], ids=["raw logits", "edited logits"])
def test_rows_draw_what_tokendraw_draws_for_them_by_seed_and_position(beside_edits):
    """Also behind the edits of vLLM, which divides all rows by their temperatures then, and drops tokens by min-p."""
    engine, native, metadata = with_requests(Engine(V, 9, dtype=torch.bfloat16))
    engine.start(
        8, logit_bias={7: 1000.0}, min_tokens=90, all_stop_token_ids={9}, structured_outputs="a grammar"
    )
    for step in range(9):
        slots = ([0, 1, 2, 3, 4, 5, 6, 7], [5, 3, 1], [2, 7, 4, 0])[step % 3]
        logits = model_logits(len(slots) + beside_edits, step)
        expected = native.sample(logits[: len(slots)], metadata(slots)).token_ids.tolist()
        assert engine.decode(logits, [*slots, *[8] * beside_edits]) == expected + [7] * beside_edits


@pytest.mark.parametrize("mode", ["coupled", "rejection", "block"])
def test_drafts_are_verified_as_by_tokendraw_alone(mode):
    method, slots, lengths = "block" if mode == "block" else "standard", list(range(len(ASKED))), set()
    made = DraftingEngine(V, 3, method=method, drawn=mode != "coupled", dtype=torch.bfloat16)
    engine, native, metadata = with_requests(made)
    engine.decode(model_logits(len(slots), 99), slots)  # vLLM drops drafts of the step after a prompt
    temperature = torch.tensor([asked.get("temperature", 1.0) or 1.0 for asked, _ in ASKED], device=DEVICE)
    for step in range(6):
        logits = model_logits(4 * len(slots), step)
        drafts = logits.float().argmax(1).view(-1, 4)[:, :3].tolist()
        kept = probs = None
        if mode != "coupled":
            kept = torch.randn(8, 3, V, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            probs = (kept / temperature[:, None, None]).softmax(-1).view(-1, V)
        given = tokendraw.Drafts.from_lists(drafts, draft_probs=probs, device=DEVICE)
        output = native.verify(logits, given, metadata(slots), mode=mode)
        counts = (output.num_accepted + 1).tolist()
        expected = [row[:count] for row, count in zip(output.token_ids.tolist(), counts, strict=True)]
        assert engine.verify(logits, slots, drafts, kept) == expected
        lengths.update(counts)
    assert lengths == {1, 2, 3, 4}


@pytest.mark.skipif(not ON_GPU, reason="test_vllm_v2_warmup.py counts kernels on a CPU")
@pytest.mark.parametrize("vocab_size", [301, 320], ids=["odd", "no padding"])
def test_after_the_warmup_no_batch_compiles_a_kernel(monkeypatch, vocab_size):
    """As vLLM's own monitor counts."""
    from triton import knobs

    modules = []
    monkeypatch.setattr(
        knobs.runtime, "jit_post_compile_hook", lambda **event: modules.append(event["fn"].module)
    )
    engine = Engine(vocab_size, 130, dtype=vllm_stand_in.MODEL_DTYPE)
    assert engine.sampler._tokendraw.can_draw()
    modules.clear()
    for requests in vllm_stand_in.batches(130, {"presence_penalty": 0.5}):
        for slot, parameters in enumerate(requests):
            engine.start(slot, **parameters)
        slots = list(range(len(requests)))
        engine.step(vllm_stand_in.model_logits(len(slots), vocab_size).to(DEVICE), slots, slots)
        assert not [module for module in modules if module.startswith("tokendraw")], requests[0]


# Log-probabilities.


@pytest.fixture
def scored(monkeypatch):
    """The calls of tokendraw's scores."""
    from tokendraw.operations.row_methods import ScoreProvider

    calls, score = [], ScoreProvider.score
    monkeypatch.setattr(ScoreProvider, "score", lambda *call: calls.append(call) or score(*call))
    return calls


def assert_same_scores(logits, mine, theirs, *, rows=slice(None), first=0):
    """Two ``LogprobsTensors`` are equal but for the last bits, and for ids of equal logits.

    :param first: the first column to compare; 0: and the ranks.
    """
    ids, their_ids = mine.logprob_token_ids[rows, first:], theirs.logprob_token_ids[rows, first:]
    assert (ids.dtype, ids.shape) == (their_ids.dtype, their_ids.shape)
    assert torch.equal(logits[rows].gather(1, ids), logits[rows].gather(1, their_ids))
    values, their_values = mine.logprobs[rows, first:], theirs.logprobs[rows, first:]
    torch.testing.assert_close(values, their_values, rtol=1e-5, atol=1e-5)
    if not first:
        assert torch.equal(ids[:, 0], their_ids[:, 0])
        ranks, their_ranks = mine.selected_token_ranks[rows], theirs.selected_token_ranks[rows]
        assert ranks.dtype == their_ranks.dtype
        assert torch.equal(ranks, their_ranks)
    assert mine[3] is theirs[3]
    assert mine[4] is theirs[4]


SCORED_LOGITS = {
    "the model's": (HALF, 14, 0.0),
    "edited": (torch.float32, 0, 0.0),
    "filtered": (torch.float32, 0, 0.4),
}
"""Dtype, padding of rows, and the share of logits that are -inf."""


@pytest.mark.parametrize("returns_logits", [False, True], ids=["log-probabilities", "logits"])
@pytest.mark.parametrize(("num_best", "num_own"), [(0, 0), (4, 0), (20, 0), (0, 5), (0, 128)])
@pytest.mark.parametrize("kind", SCORED_LOGITS)
def test_scores_equal_those_of_vllms_kernels(scored, kind, num_best, num_own, returns_logits):
    from vllm.v1.worker.gpu.sample import prompt_logprob
    from vllm.v1.worker.gpu.sample.logprob import LogprobTokenIdsState

    mode = "raw_logits" if returns_logits else "raw_logprobs"
    assert Engine(V, logprobs_mode=mode).sampler._tokendraw.can_draw()
    dtype, padding, dropped = SCORED_LOGITS[kind]
    generator = torch.Generator().manual_seed(5)
    made = torch.randn(7, V + padding, generator=generator) * 4.0
    made.masked_fill_(torch.rand(made.shape, generator=generator) < dropped, -float("inf"))
    logits = made.to(DEVICE, dtype)[:, :V]
    before, drawn = logits.clone(), logits.float().argsort(descending=True)[:, 3].contiguous()
    state = LogprobTokenIdsState(9, DEVICE)
    for slot, ids in {1: range(num_own), 4: [7, 7, 0][:num_own], 2: [], 8: range(3, 5)}.items():
        lists = [token % V for token in ids]
        state.add_request(slot, Parameters(logprob_token_ids=lists))
    state.apply_staged_writes()
    mapping = torch.tensor([4, 1, 2, 2, 8, 4, 1], dtype=torch.int32, device=DEVICE)
    bounds = [0, 3, 7] if num_best else torch.tensor([0, 3, 7], device=DEVICE)
    arguments = (logits, num_best, drawn, bounds, state, mapping, num_own, returns_logits)
    mine = prompt_logprob.compute_topk_scores(*arguments)
    assert len(scored) == 1
    theirs = prompt_logprob.compute_topk_scores.__wrapped__(*arguments)
    assert len(scored) == 1
    assert torch.equal(logits, before)
    assert_same_scores(logits, mine, theirs)


def test_greedy_rows_and_the_log_probabilities_of_ties_are_vllms(scored):
    """Rows of few distinct values, with many ties among the best."""
    logits = torch.randint(0, 6, (6, V), generator=torch.Generator().manual_seed(1)).to(DEVICE, HALF)
    both = []
    for engine in with_and_without(lambda: Engine(V)):
        for slot in range(6):
            sampled = {"temperature": 0.8, "top_k": 3, "seed": 5} if slot == 3 else {"temperature": 0.0}
            engine.start(slot, **sampled, logprobs=4)
        both.append(engine.step(logits, range(6), [9] * 6))
        assert len(scored) == 1
    mine, theirs = both
    greedy = [0, 1, 2, 4, 5]
    assert [tokens(mine)[row] for row in greedy] == [tokens(theirs)[row] for row in greedy]
    assert_same_scores(logits, mine.logprobs_tensors, theirs.logprobs_tensors, rows=greedy)
    assert_same_scores(logits, mine.logprobs_tensors, theirs.logprobs_tensors, first=1)


@pytest.mark.parametrize("ids", [None, [3, 44]], ids=["best", "ids of requests"])
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_filtered_logits_masks_and_log_probabilities_are_vllms_in_every_mode(scored, mode, ids):
    """Of the same tokens: those of greedy rows, and of rows with a single token left."""
    wanted = {"logprobs": 3} if ids is None else {"logprob_token_ids": ids}
    logits = model_logits(5, 1).float()
    outputs = []
    for engine in with_and_without(lambda: Engine(V, logprobs_mode=mode, return_sampling_mask=True)):
        engine.start(0, temperature=0.0, **wanted)
        engine.start(1, temperature=0.7, top_k=1, **wanted)
        engine.start(2, temperature=0.7, top_k=6, top_p=0.9, seed=1)
        engine.start(3, temperature=1.4, min_p=0.1, presence_penalty=1.0, seed=1)
        engine.start(4, seed=1, logit_bias={3: 2.0})
        drawn = engine.sampler(logits, engine.rows([0, 1, 2, 3, 4]))
        masks, scores = drawn.sampling_mask_tensors.tolists(), drawn.logprobs_tensors
        kept = scores.logprobs[:2] > -torch.inf  # the order of dropped tokens means nothing
        kept_ids = scores.logprob_token_ids[:2][kept].tolist()
        outputs.append((masks.token_ids.tolist(), masks[1].tolist(), kept_ids, scores.logprobs))
        assert len(scored) == 1
    (*ours, values), (*theirs, their_values) = outputs
    assert ours == theirs
    torch.testing.assert_close(values[:2], their_values[:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values[2:, 1:], their_values[2:, 1:], rtol=1e-5, atol=1e-5)


# Edits.


REQUESTS = {
    0: {"repetition_penalty": 1.7},
    1: {"frequency_penalty": 1.1, "presence_penalty": -0.7},
    2: {"logit_bias": {3: 2.5, 9: -4.0}, "repetition_penalty": 0.6},
    3: {"allowed_token_ids": [1, 4, 9, 17, 30], "presence_penalty": 1.5},
    4: {"bad_words_token_ids": [[5], [9, 4], [30, 30, 2]], "frequency_penalty": -0.4},
    5: {"min_tokens": 4, "all_stop_token_ids": {4, 9, 17}, "logit_bias": {9: 3.0}},
    6: {},
}


def model_logits(rows, step):
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(rows, V, generator=generator) * 2.0).to(DEVICE, torch.bfloat16)


def same_logits(ours, theirs):
    """Equal but for the last bits: vLLM multiplies by the reciprocal of a repetition penalty."""
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=3e-7)
    assert ours.argmax(1).tolist() == theirs.argmax(1).tolist()


def compared(engine, edited_by_vllm):
    """Have the edits of an engine compared with vLLM's from now on, and return a list for their numbers of rows."""
    edits, checked = engine.sampler._tokendraw._edits, []
    apply = edits.apply

    def apply_and_compare(logits, edited, drafts=None):
        ours = apply(logits, edited, drafts)
        same_logits(ours, edited_by_vllm(logits, edited))
        checked.append(len(ours))
        return ours

    edits.apply = apply_and_compare
    return checked


@pytest.fixture(params=["native", "triton-gumbel"])
def processor(request):
    if request.param == "native":
        return None  # as loaded
    processor = pytest.importorskip("tokendraw_triton_gumbel.processor", reason="needs triton-gumbel")
    return SimpleNamespace(name=request.param, process=processor.TritonLogitsProcessor(DEVICE).process)


@pytest.mark.parametrize("output", [(), (4, 9, 4)], ids=["new", "preempted"])
def test_tokendraw_edits_as_vllm_s_kernels_do(output, processor):
    """With the processor that is loaded, and with triton-gumbel's in the interpreter."""
    engine = Engine(V, dtype=torch.bfloat16)
    if processor is not None:
        assert engine.sampler._tokendraw.can_draw()
        engine.sampler._tokendraw._edits._processor = processor
    for slot, edits in REQUESTS.items():
        engine.start(slot, PROMPT, output, seed=slot, **edits)
    checked = compared(
        engine, lambda logits, edited: engine.edited(logits, engine.rows(slots))[edited.places]
    )
    for step in range(7):
        slots = ([0, 1, 2, 3, 4, 5, 6], [5, 3, 1, 6], [2, 4, 0])[step % 3]
        logits = model_logits(len(slots), step)
        before = logits.clone()
        engine.decode(logits, slots)
        assert torch.equal(logits, before)
    engine.start(2, [7], (), seed=1, frequency_penalty=2.0)
    slots = [2, 1]
    engine.decode(model_logits(2, 9), slots)
    assert checked == [6, 3, 3, 6, 3, 3, 6, 2]


DRAFTS = {0: [4, 9, 9], 1: [30], 2: [], 3: [9, 1], 4: [9, 4], 5: [9, 4, 2], 6: [1, 1]}


def test_a_verification_is_edited_as_vllm_s_kernels_do_it_draft_by_draft():
    engine = DraftingEngine(V, 3, dtype=torch.bfloat16)
    for slot, edits in REQUESTS.items():
        engine.start(slot, PROMPT, (), seed=slot, **edits)
    engine.decode(model_logits(7, 99), list(range(7)))  # vLLM drops drafts of the step after a prompt
    checked = compared(engine, lambda logits, _: engine.edited(logits, engine.rows(order, drafts)))
    emitted = []
    for step in range(5):
        order = ([0, 1, 2, 3, 4, 5, 6], [5, 3, 1, 6])[step % 2]
        drafts = [DRAFTS[slot] for slot in order]
        logits = model_logits(sum(len(each) + 1 for each in drafts), step)
        emitted += engine.verify(logits, order, drafts)
    assert checked == [20, 12, 20, 12, 20]
    assert max(map(len, emitted)) > 1


# Draws of drafts.


@pytest.fixture
def draw_drafts(monkeypatch):
    """vLLM's draw of drafts, and tokendraw's in its place."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    from tokendraw_vllm import _parts
    from tokendraw_vllm._replacement import Replacement
    from tokendraw_vllm.v2 import draft_kernels, drafts

    sampler = tokendraw.load_sampler(device=DEVICE)
    replacement = Replacement("V2 sampler", sampler, {"V2 drafting"}, seeds_every_row=True)
    draft_kernels.warm_up(DEVICE, torch.bfloat16, V)
    drafter = drafts.Drafter(V, lambda: replacement)
    monkeypatch.setitem(drafts._drafters, LOGITS.device, drafter)
    return gumbel_sample, _parts.served(gumbel_sample, drafts.Call, drafts.draw)


def drafted(draw, logits, slots, temperature, steps):
    """Drafts of rows, and the logits that are kept. Positions and seeds differ by row and slot."""
    kept = torch.full((8, 3, V), 7.0, dtype=logits.dtype, device=DEVICE)
    given = torch.tensor(slots), torch.tensor(temperature), torch.arange(8), torch.arange(len(slots))
    tensors = [tensor.to(DEVICE) for tensor in given]
    named = {"apply_temperature": True, "is_drafting": True, "use_fp64": False}
    ids = draw(
        logits, *tensors, logits_cache=kept, logits_cache_col=torch.tensor(steps, device=DEVICE), **named
    )
    return ids.tolist(), kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, [2, 0, 1, 0, 2]], ids=["a step", "a step of each row"])
def test_kept_logits_and_greedy_drafts_are_vllms(draw_drafts, dtype, steps):
    """The third and the last row pad the batch. Rows of the logits are padded too."""
    logits = torch.randn(5, V + 14, device=DEVICE).to(dtype)[:, :V]
    slots, temperature = [5, 2, -1, 0, -1], [0.0, 1.0, 0.7, 1.0, 1.0, 0.0, 1.0, 1.0]
    (theirs, kept_by_vllm), (mine, kept) = (
        drafted(draw, logits, slots, temperature, steps) for draw in draw_drafts
    )
    assert torch.equal(kept, kept_by_vllm)
    assert (mine[0], mine[3]) == (theirs[0], theirs[3])
    assert mine[0] == int(logits[0].float().argmax())


def test_drafts_are_drawn_at_the_temperature_alone_by_seed_position_and_step(draw_drafts):
    for step in (0, 1):
        positions = torch.arange(DRAWS, device=DEVICE) + (step << 32)
        column = torch.full((DRAWS,), 3, device=DEVICE)
        metadata = tokendraw.SamplingMetadata(temperature=column * 0 + 1.6, seed=column, positions=positions)
        found, _ = drafted(draw_drafts[1], batch(DRAWS), [3] * DRAWS, [1.6] * 8, step)
        native = tokendraw.load_sampler(device=DEVICE)
        assert found == native.draft(batch(DRAWS), metadata).token_ids.tolist()
