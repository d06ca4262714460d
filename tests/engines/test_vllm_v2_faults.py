"""Fault drills of the V2 runner, seam by seam: vLLM goes on by itself, from its own logits, and a line says why.

Tests of failing edits, of filtered logits and of failing verifications without edits stand beside those of the seam.
"""

import importlib.util

import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from tokendraw.operations.row_methods import ScoreProvider
from vllm_stand_in import MODULES, DraftingEngine, request

V, K = 40, 3
LOGITS = torch.randn(3, V, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
BEST, EDITED = int(LOGITS[0].float().argmax()), 7
"""The token that filters leave, and that which an edit makes certain."""
BIAS = {"logit_bias": {EDITED: 50.0}}
MASKS = {"return_sampling_mask": True}
SEAMS = {
    "sample": ({}, {}),
    "edits": ({}, BIAS),
    "masks": (MASKS, {}),
    "masks of edited logits": (MASKS, BIAS),
    "verification": ({}, {}),
    "verification of edited logits": ({}, BIAS),
    "verification with masks": (MASKS, {}),
    "drafts": ({"drawn": True}, {}),
    "scoring": ({}, {}),
}
"""Options of the engine, and edits of its request."""
VLLMS = 0
"""The token that the stand-in of vLLM draws, and the best one that it finds."""
SAMPLER, REJECTION = "vllm.v1.worker.gpu.sample.sampler", "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
LOGPROB = "vllm.v1.worker.gpu.sample.logprob"

each_seam = pytest.mark.parametrize("seam", SEAMS)


class Drill:
    """A request on a seam whose filters keep the largest logit alone. The engine asserts that the logits stay."""

    def __init__(self, seam):
        options, edits = SEAMS[seam]
        operations = {"verification": "verify", "drafts": "draft", "scoring": "score"}
        self.operation = operations.get(seam.partition(" ")[0], "sample")
        if self.operation == "draft":
            pytest.importorskip("triton", reason="Triton is not installed")
        self.token = EDITED if edits else BEST
        self.engine = DraftingEngine(V, K, **options)
        one_token = {"temperature": 0.0} if self.operation == "draft" else {"top_k": 1}
        self.engine.add(0, request(seed=1, **one_token, **edits), [VLLMS, 9])

    def step(self):
        """The first token of a step, or the best one beside it."""
        if self.operation == "verify":
            return self.engine.verify(LOGITS[:2], [0], [[1]])[0][0]
        if self.operation == "score":
            self.wait()
            return int(self.function()(LOGITS[:1], 1, torch.tensor([9])).logprob_token_ids[0, 1])
        if self.operation == "draft":
            return self.engine.draft(LOGITS[:1], [0], [1], 0, torch.zeros(8, K, V, dtype=LOGITS.dtype))[0]
        return self.engine.step(LOGITS[:1], [0])[0]

    def wait(self):
        """Wait until the sampler and the scorer are loaded, as vLLM does with its first step."""
        slots = getattr(self.engine.sampler, "_tokendraw", None)
        return slots is not None and slots.can_draw()

    @staticmethod
    def function():
        """The function of log-probabilities that vLLM's sampler calls."""
        return importlib.import_module(SAMPLER).compute_topk_scores


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    if importlib.util.find_spec("triton") is not None:
        monkeypatch.setattr("tokendraw_vllm._v2_draft_kernels.keep_logits", vllm_stand_in.keep_logits)


@pytest.fixture
def calls(monkeypatch):
    """Number of calls of each operation, by ``calls(after)``: the later ones raise."""
    owners = dict.fromkeys(("sample", "verify", "draft"), tokendraw.Sampler) | {"score": ScoreProvider}
    counts = dict.fromkeys(owners, 0)

    def failing(after):
        def method_of(name):
            original = getattr(owners[name], name)

            def method(self, *arguments, **named):
                counts[name] += 1
                if counts[name] > after:
                    raise RuntimeError("no kernel image")
                return original(self, *arguments, **named)

            return method

        for name, owner in owners.items():
            monkeypatch.setattr(owner, name, method_of(name))
        return counts

    return failing


def sentences(log_lines):
    return [line for _, line in log_lines()]


@each_seam
def test_without_a_fault_tokendraw_draws(vllm, native, log_lines, seam):
    tokendraw_vllm.register()
    drill = Drill(seam)
    assert drill.step() == drill.token
    assert sentences(log_lines) == ["tokendraw: V2 sampler replaced (native 0.1.0, vLLM 0.33.0)"]


@each_seam
def test_an_untested_version_is_left_alone(install, native, log_lines, seam):
    install("0.33.1rc1")
    tokendraw_vllm.register()
    assert Drill(seam).step() == VLLMS
    assert sentences(log_lines) == [
        "tokendraw: left alone: vLLM 0.33.1rc1 is untested, tested are 0.32.0 and 0.33.0"
    ]


@pytest.mark.parametrize(
    ("module", "old", "new", "named"),
    [
        (SAMPLER, "self, logits, expanded_idx_mapping, idx_mapping,", "self, logits, idx_mapping,", "sample"),
        (SAMPLER, "self, processed_logits, expanded", "self, logits, expanded", "_sample_random"),
        ("vllm.v1.worker.gpu.sample.bad_words", "req_idx, sampling_params", "request", "add_request"),
        (REJECTION, "expanded_idx_mapping, expanded_local_pos", "expanded_idx_mapping", "_verify"),
        (
            LOGPROB,
            "num_logprobs, sampled_token_ids",
            "sampled_token_ids, num_logprobs",
            "compute_topk_scores",
        ),
    ],
)
@each_seam
def test_a_changed_signature_of_a_seam_leaves_all_of_them(
    install, native, log_lines, seam, module, old, new, named
):
    source = MODULES[module].replace(old, new, 1)
    assert source != MODULES[module]
    install(modules={**MODULES, module: source})
    tokendraw_vllm.register()
    assert not tokendraw_vllm.state().applies
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    replaced = [
        name
        for owner in (Sampler, RejectionSampler)
        for name, method in vars(owner).items()
        if hasattr(method, "__wrapped__")
    ]
    assert replaced == []
    assert not hasattr(Drill.function(), "__wrapped__")
    (line,) = sentences(log_lines)
    assert line.startswith("tokendraw: left alone: '")
    assert f".{named}' needs the parameters " in line


@pytest.mark.parametrize(
    ("module", "old", "part", "error"),
    [
        (
            "vllm.config.model",
            "PROCESSED_LOGPROBS_MODES",
            "V2 sampler left alone",
            "ImportError: cannot import name 'PROCESSED_LOGPROBS_MODES' from 'vllm.config.model'",
        ),
        (
            SAMPLER,
            "self.num_speculative_tokens",
            "V2 sampler is vLLM's own again",
            "'native' raised AttributeError: 'Sampler' object has no attribute 'num_speculative_tokens'",
        ),
        (
            REJECTION,
            "self.synthetic_conditional_rates",
            "V2 verification is vLLM's own again",
            "'native' raised AttributeError: 'RejectionSampler' object has no attribute "
            "'synthetic_conditional_rates'",
        ),
        (
            "vllm.v1.outputs",
            "cu_num_generated_tokens_tensor",
            "V2 scoring is vLLM's own again",
            "'native' raised TypeError: LogprobsTensors.__new__() got an unexpected keyword argument "
            "'cu_num_generated_tokens_tensor'",
        ),
    ],
    ids=["masks", "edits", "verification", "scoring"],
)
def test_a_renamed_value_of_a_seam_leaves_it_to_vllm(install, native, log_lines, module, old, part, error):
    renamed = MODULES[module].replace(old, old.replace("_", "_of_", 1))
    assert renamed != MODULES[module]
    install(modules={**MODULES, module: renamed})
    tokendraw_vllm.register()
    seams = {REJECTION: "verification of edited logits", "vllm.v1.outputs": "scoring"}
    drill = Drill(seams.get(module, "edits"))
    assert [drill.step() for _ in range(3)] == [VLLMS] * 3
    line = sentences(log_lines)[-1]
    assert line.startswith(f"tokendraw: {part}: {error}")
    assert sentences(log_lines).count(line) == 1


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TOKENDRAW_DISABLE", "native,cpu,triton-gumbel,flashinfer,aiter", "No plugin can serve"),
        ("TOKENDRAW_SAMPLER", "nativ", "'nativ', asked for by TOKENDRAW_SAMPLER, cannot serve"),
    ],
)
@each_seam
def test_without_a_plugin_vllm_goes_on(vllm, log_lines, monkeypatch, seam, variable, value, words):
    monkeypatch.setenv(variable, value)
    tokendraw_vllm.register()
    drill = Drill(seam)
    assert [drill.step() for _ in range(3)] == [VLLMS] * 3
    (line,) = sentences(log_lines)
    assert line.startswith(f"tokendraw: V2 sampler left alone: SamplerUnavailableError: {words}")


@each_seam
def test_a_call_that_raises_in_the_middle_of_a_run_is_the_last(vllm, native, log_lines, calls, seam):
    tokendraw_vllm.register()
    drill = Drill(seam)
    drill.wait()  # the load draws made-up batches
    counts = calls(after=2)
    found = [drill.step() for _ in range(6)]
    assert (found[:2], found[2:]) == ([drill.token] * 2, [VLLMS] * 4)
    assert counts == {"sample": 0, "verify": 0, "draft": 0, "score": 0, drill.operation: 3}
    parts = {
        "sample": "V2 sampler",
        "verify": "V2 verification",
        "draft": "V2 drafting",
        "score": "V2 scoring",
    }
    part = parts[drill.operation]
    assert sentences(log_lines)[1:] == [
        f"tokendraw: {part} is vLLM's own again: 'native' raised RuntimeError: no kernel image"
    ]


@each_seam
def test_beside_other_ranks_a_call_that_raises_raises_on_its_rank(
    vllm, native, log_lines, calls, monkeypatch, seam
):
    alone_in_its_group(monkeypatch)
    tokendraw_vllm.register()
    drill = Drill(seam)
    drill.wait()
    calls(after=2)
    assert [drill.step() for _ in range(2)] == [drill.token] * 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no kernel image"):
            drill.step()
    assert len(sentences(log_lines)) == 1


@pytest.mark.parametrize(
    ("place", "seam"),
    [
        ("tokendraw_vllm._replacement._plugin_of", "sample"),
        ("tokendraw_vllm._v2_loading.example_batches", "sample"),
        ("tokendraw_vllm._v2_logprobs.Scorer", "scoring"),
        ("tokendraw_vllm._v2_edits.Processor", "edits"),
        ("tokendraw_vllm._v2_edits.Mirror", "edits"),
        ("tokendraw_vllm._v2_loading.max_best_of", "sample"),
    ],
)
def test_beside_other_ranks_a_load_that_raises_raises_on_its_rank(vllm, native, monkeypatch, place, seam):
    alone_in_its_group(monkeypatch)
    tokendraw_vllm.register()

    def broken(*_, **__):
        raise RuntimeError("no room")

    monkeypatch.setattr(place, broken)
    with pytest.raises(RuntimeError, match="no room"):
        Drill(seam).step()


@each_seam
def test_without_a_plugin_on_the_first_rank_vllm_goes_on_on_all(vllm, log_lines, monkeypatch, seam):
    alone_in_its_group(monkeypatch)
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "nativ")
    tokendraw_vllm.register()
    drill = Drill(seam)
    assert [drill.step() for _ in range(3)] == [VLLMS] * 3
    (line,) = sentences(log_lines)
    assert line.startswith(
        "tokendraw: V2 sampler left alone: SamplerUnavailableError: 'nativ', asked for by "
    )


def alone_in_its_group(monkeypatch):
    """Have the adapter see a group of ranks, of which this is the first and the only one that runs."""
    monkeypatch.setattr("tokendraw_vllm._ranks._groups", lambda: ["group"])
    monkeypatch.setattr("tokendraw_vllm._ranks.choose_once", lambda choose, group: choose())


def test_a_raising_call_drops_the_tokens_that_its_batch_had_drawn(vllm, native, log_lines, calls):
    """A batch with edited rows takes two draws; the second one fails, and vLLM draws all of its rows."""
    tokendraw_vllm.register()
    engine = Drill("edits").engine
    engine.add(1, request(seed=2, top_k=1), [3])
    engine.sampler._tokendraw.can_draw()
    counts = calls(after=1)
    assert engine.step(LOGITS[:2], [0, 1]) == [VLLMS] * 2
    assert counts["sample"] == 2
    assert len(sentences(log_lines)) == 2
