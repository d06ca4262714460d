"""Faults of every place that the adapter to vLLM replaces: vLLM goes on by itself, and a line of its log says why.

From its own logits, which are edited once, and no step is drawn again by tokendraw. Beside other ranks nothing may
differ between them, so a fault raises.
"""

import contextlib
import importlib
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tokendraw
import tokendraw_vllm
import vllm_stand_in
from call_tables import agree, pairs
from checkout import ROOT
from tokendraw import SamplerUnavailableError
from tokendraw.operations.row_methods import ScoreProvider
from vllm_engine import DraftingEngine
from vllm_stand_in import MODULES, v1_sampler

V, K = 40, 3
LOGITS = torch.randn(3, V, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
BEST, EDITED = int(LOGITS[0].float().argmax()), 7
"""The token that filters leave, and that which an edit makes certain."""
VLLMS = 0
"""The token that the stand-in of vLLM draws, and the best one that it finds."""
BIAS, MASKS = {"logit_bias": {EDITED: 50.0}}, {"return_sampling_mask": True}
PLACES = {
    "V1": ({}, {}),
    "draws": ({}, {}),
    "edits": ({}, BIAS),
    "draws with masks": (MASKS, {}),
    "edits with masks": (MASKS, BIAS),
    "verification": ({}, {}),
    "verification of edits": ({}, BIAS),
    "verification with masks": (MASKS, {}),
    "drafting": ({"drawn": True}, {}),
    "scoring": ({}, {}),
}
"""Options of the engine, and edits of its request."""
PARTS = {"verify": "V2 verification", "draft": "V2 drafting", "score": "V2 scoring"}
OPERATIONS = {"verification": "verify", "drafting": "draft", "scoring": "score"}
NO_KERNEL = "'native' raised RuntimeError: no kernel image"
REPLACED = "replaced (native 0.1.0, vLLM 0.33.0)"
SAMPLER, REJECTION = "vllm.v1.worker.gpu.sample.sampler", "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"

NEWER = "0.34.0"
NOT_PROVEN = {"edits", "edits with masks", "verification of edits", "scoring"}
RUNNER = "vllm.v1.worker.gpu"

each_place = pytest.mark.parametrize("place", PLACES)


class Drill:
    """A request in a place, whose filters keep the largest logit alone. The engine asserts that the logits stay."""

    def __init__(self, place):
        options, edits = PLACES[place]
        self.place, self.operation = place, OPERATIONS.get(place.partition(" ")[0], "sample")
        self.part = "V1 sampler" if place == "V1" else PARTS.get(self.operation, "V2 sampler")
        self.token = EDITED if edits else BEST
        if self.operation == "draft":
            pytest.importorskip("triton", reason="Triton is not installed")
        if place == "V1":
            self.v1 = v1_sampler()
            return
        self.engine = DraftingEngine(V, K, **options)
        one_token = {"temperature": 0.0} if self.operation == "draft" else {"top_k": 1}
        self.engine.start(0, [VLLMS, 9], seed=1, **one_token, **edits)

    def step(self):
        """The first token of a step, or its best alternative."""
        if self.place == "V1":
            return self.v1(LOGITS[:1].float(), {}, torch.tensor([1], dtype=torch.int32), None)[0].item()
        if self.operation == "verify":
            return self.engine.verify(LOGITS[:2], [0], [[1]])[0][0]
        if self.operation == "score":
            self.wait()
            return int(function()(LOGITS[:1], 1, torch.tensor([9])).logprob_token_ids[0, 1])
        if self.operation == "draft":
            return vllm_stand_in.draft(
                self.engine, LOGITS[:1], [0], [1], 0, torch.zeros(8, K, V, dtype=LOGITS.dtype)
            )[0]
        return self.engine.decode(LOGITS[:1], [0])[0]

    def wait(self):
        """Wait until all is loaded, as vLLM does with its first step; the load draws made-up batches."""
        if self.place == "V1":
            self.step()
        elif (slots := getattr(self.engine.sampler, "_tokendraw", None)) is not None:
            slots.can_draw()


def function():
    """The function of log-probabilities that vLLM's sampler calls."""
    return importlib.import_module(SAMPLER).compute_topk_scores


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv("TOKENDRAW_SAMPLER", "native")
    if importlib.util.find_spec("triton") is not None:
        monkeypatch.setattr("tokendraw_vllm.v2.draft_kernels.keep_logits", vllm_stand_in.keep_logits)


@pytest.fixture
def failing(monkeypatch):
    """``failing(after)``: the number of calls of each operation from now on; the later ones raise."""
    owners = dict.fromkeys(("sample", "verify", "draft"), tokendraw.Sampler) | {"score": ScoreProvider}
    counts = dict.fromkeys(owners, 0)

    def fail(after):
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

    return fail


def sentences(log_lines):
    return [line.removeprefix("tokendraw: ") for _, line in log_lines()]


# vLLM as it is, and versions and settings that do not fit.


@each_place
def test_without_a_fault_tokendraw_draws(vllm, native, log_lines, place):
    for _ in range(2):
        tokendraw_vllm.register()
    drill = Drill(place)
    assert drill.step() == drill.token
    version = "V1" if place == "V1" else "V2"
    assert log_lines() == [("INFO", f"tokendraw: {version} sampler {REPLACED}")]


def test_the_v2_sampler_is_replaced_by_the_reference_only_if_asked_for(vllm, log_lines):
    tokendraw_vllm.register()
    assert Drill("draws").step() == VLLMS
    assert log_lines() == [
        (
            "WARNING",
            "tokendraw: V2 sampler left alone: 'native' is the best sampler for cpu here, and no quicker than "
            "vLLM's own. Install tokendraw-cpu, or set TOKENDRAW_SAMPLER=native to use it nevertheless",
        )
    ]


def changed(module, old, new):
    source = MODULES[module].replace(old, new, 1)
    assert source != MODULES[module]
    return {"modules": {**MODULES, module: source}}


def served():
    """The places with tokens of tokendraw. vLLM's own may raise, since it misses a name."""
    places = set()
    for place in PLACES:
        with contextlib.suppress(AttributeError, ImportError, NameError, TypeError):
            drill = Drill(place)
            places |= {place} if drill.step() == drill.token else set()
    return places


@pytest.mark.parametrize("version", ["0.33.0", NEWER])
@pytest.mark.parametrize(("fault", "lines"), pairs(Path(__file__).with_name("vllm_left_alone.txt")))
def test_a_part_whose_seam_has_moved_is_left_alone_with_what_stands_on_it(
    install, native, log_lines, fault, lines, version
):
    left, line = lines.split("\n", 1)
    install(version, **eval(fault, globals()))
    for _ in range(2):
        tokendraw_vllm.register()
    assert [each for level, each in log_lines() if level == "WARNING"] == [f"tokendraw: {line}"]
    assert tokendraw_vllm.state().applies
    assert line in tokendraw_vllm.state().reason
    own = {place for place in PLACES if re.search(left, place)}
    assert served() == set(PLACES) - own - (NOT_PROVEN if version == NEWER else set())


def test_an_untested_version_is_used_but_for_the_parts_that_fail_their_proof(install, native, log_lines):
    """The stand-in neither edits nor scores, so these fail."""
    install(NEWER)
    tokendraw_vllm.register()
    assert tokendraw_vllm.state().applies
    assert served() == set(PLACES) - NOT_PROVEN
    proven = ", untested: its seams are whole and a proof passed)"
    lines = {level: [line for each, line in log_lines() if each == level] for level in ("INFO", "WARNING")}
    replaced = f"replaced (native 0.1.0, vLLM {NEWER}{proven}"
    assert sorted(lines["INFO"]) == [f"tokendraw: {runner} sampler {replaced}" for runner in ("V1", "V2")]
    edits, scores = lines["WARNING"]
    failed = f"left alone: vLLM {NEWER} is untested, tested are 0.32.0 and 0.33.0, and its proof failed:"
    assert edits.startswith(f"tokendraw: V2 editing {failed} needs the tokens [")
    assert scores == f"tokendraw: V2 scoring {failed} logprob_token_ids differ from those of vLLM's own"


@pytest.mark.parametrize(("fault", "found"), pairs(Path(__file__).with_name("vllm_not_proven.txt")))
def test_an_untested_version_that_fails_its_proof_is_left_alone(install, native, log_lines, fault, found):
    """Its seams are whole, but a seed, a filter or a record of parameters means something else."""
    install(NEWER, **eval(fault, globals()))
    tokendraw_vllm.register()
    assert [Drill("draws").step() for _ in range(2)] == [VLLMS, VLLMS]
    ((level, line),) = log_lines()
    assert level == "WARNING"
    untested = f"vLLM {NEWER} is untested, tested are 0.32.0 and 0.33.0, and its proof failed"
    assert agree(f"tokendraw: V2 sampler left alone: {untested}: {found}", line)


def test_a_variable_switches_the_adapter_off(vllm, native, log_lines, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_VLLM", "0")
    tokendraw_vllm.register()
    assert served() == set()
    assert log_lines() == [("INFO", "tokendraw: left alone: switched off by TOKENDRAW_VLLM")]


def test_the_state_is_that_of_a_dry_run(vllm, native):
    state = tokendraw_vllm.state()
    assert (state.engine, state.installed, state.tested) == ("vLLM", "0.33.0", ("0.32.0", "0.33.0"))
    assert (state.applies, state.reason) == (True, "would replace the V1 and the V2 sampler")
    assert served() == set()


def test_the_entry_points_of_the_adapter_are_there():
    project = tomllib.loads((ROOT / "integrations/vllm/pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "vllm.general_plugins": {"tokendraw": "tokendraw_vllm:register"},
        "tokendraw.engines": {"vllm": "tokendraw_vllm:state"},
    }


NO_PLUGIN = {
    "TOKENDRAW_DISABLE": ("native,cpu,triton-gumbel,flashinfer,aiter", "No plugin can serve"),
    "TOKENDRAW_SAMPLER": ("nativ", "'nativ', asked for by TOKENDRAW_SAMPLER, cannot serve"),
}


@pytest.mark.parametrize("beside_ranks", [False, True])
@pytest.mark.parametrize("variable", NO_PLUGIN)
@each_place
def test_without_a_plugin_vllm_goes_on(vllm, log_lines, monkeypatch, request, place, variable, beside_ranks):
    """Beside further ranks too, told by the first rank."""
    if beside_ranks:
        request.getfixturevalue("ranks")
    value, words = NO_PLUGIN[variable]
    monkeypatch.setenv(variable, value)
    tokendraw_vllm.register()
    drill = Drill(place)
    assert [drill.step() for _ in range(3)] == [VLLMS] * 3
    (line,) = sentences(log_lines)
    version = "V1" if place == "V1" else "V2"
    assert line.startswith(f"{version} sampler left alone: SamplerUnavailableError: {words}")


# A place whose load fails, or whose values have other names: it alone is vLLM's.


def without(operation, error):
    """Have tokendraw load no provider of an operation."""

    def break_it(patch):
        load = tokendraw.load

        def refuse(name, *given, **named):
            if name == operation:
                raise error
            return load(name, *given, **named)

        patch.setattr(tokendraw, "load", refuse)

    return break_it


def verifies_nothing(patch):
    warmup = tokendraw.Sampler.warmup

    def refuse(self, *given, max_drafts=None, **named):
        if max_drafts is not None:
            raise SamplerUnavailableError("no verifier")
        return warmup(self, *given, **named)

    patch.setattr(tokendraw.Sampler, "warmup", refuse)


def renamed(module, name):
    return changed(module, name, name.replace("_", "_of_", 1))


@pytest.mark.parametrize(("case", "lines"), pairs(Path(__file__).with_name("vllm_loads.txt")))
def test_a_place_that_cannot_be_loaded_is_vllms_alone(install, native, log_lines, monkeypatch, case, lines):
    """Where vLLM's own edits would come first, the stand-in has none."""
    place, fault, token = eval(case, globals())
    install(**(fault if isinstance(fault, dict) else {}))
    if not isinstance(fault, dict):
        fault(monkeypatch)
    tokendraw_vllm.register()
    monkeypatch.setitem(PLACES, "verification", ({"drawn": "drafting" in lines}, {}))
    drill = Drill(place)
    assert [drill.step() for _ in range(3)] == [token] * 3
    found = [sentence for sentence in sentences(log_lines) if REPLACED not in sentence]
    assert agree(lines, "\n".join(found))


# A call that raises in the middle of a run.


@each_place
def test_a_call_that_raises_in_the_middle_of_a_run_is_the_last(vllm, native, log_lines, failing, place):
    tokendraw_vllm.register()
    drill = Drill(place)
    drill.wait()
    counts = failing(after=2)
    found = [drill.step() for _ in range(6)]
    assert (found[:2], found[2:]) == ([drill.token] * 2, [VLLMS] * 4)
    assert counts == {"sample": 0, "verify": 0, "draft": 0, "score": 0, drill.operation: 3}
    assert sentences(log_lines)[1:] == [f"{drill.part} is vLLM's own again: {NO_KERNEL}"]


def broken(*given, **_):
    for logits in given[:1]:
        if isinstance(logits, torch.Tensor) and logits.dtype is torch.float32:
            logits.fill_(7.0)  # in the middle of its work
    raise RuntimeError("no kernel image")


def no_edits(drill, patch):
    processor = SimpleNamespace(name="native", process=broken)
    patch.setattr(drill.engine.sampler._tokendraw._edits, "_processor", processor)


def no_append(drill, patch):
    requests = drill.engine.sampler._tokendraw._edits.requests
    patch.setattr(requests, "append", broken)
    patch.setattr(requests, "append_verified", broken)


def no_draw_of_edits(drill, patch):
    """Of the two draws of a batch with edited rows the second one fails, and vLLM draws all rows."""
    drill.engine.start(1, [3], seed=2, top_k=1)
    sample = tokendraw.Sampler.sample
    patch.setattr(
        tokendraw.Sampler,
        "sample",
        lambda self, logits, metadata: (
            broken() if logits.dtype is torch.float32 else sample(self, logits, metadata)
        ),
    )
    assert drill.engine.decode(LOGITS[:2], [0, 1]) == [VLLMS] * 2


def no_thresholds(drill, patch):
    for name in ("sample", "verify"):
        original = getattr(tokendraw.Sampler, name)

        def without_thresholds(self, *given, _original=original, **named):
            output = _original(self, *given, **named)
            object.__setattr__(output, "threshold", None)
            return output

        patch.setattr(tokendraw.Sampler, name, without_thresholds)


@pytest.mark.parametrize(("case", "line"), pairs(Path(__file__).with_name("vllm_faults.txt")))
def test_a_fault_beside_a_call_leaves_to_vllm_what_it_is_about(
    vllm, native, log_lines, monkeypatch, case, line
):
    """Where vLLM's own edits come first from then on, the stand-in has none."""
    place, fault, token = eval(case, globals())
    tokendraw_vllm.register()
    drill = Drill(place)
    assert drill.step() == drill.token
    fault(drill, monkeypatch)
    assert [drill.step() for _ in range(3)] == [token] * 3
    assert sentences(log_lines)[1:] == [line]


def test_a_failed_verification_leaves_steps_and_a_failed_draft_leaves_verifications(vllm, native, failing):
    tokendraw_vllm.register()
    verification, drafting = Drill("verification"), Drill("drafting")
    for drill in (verification, drafting):
        drill.wait()
    sample, verify = tokendraw.Sampler.sample, tokendraw.Sampler.verify
    failing(after=0)
    assert (verification.step(), drafting.step()) == (VLLMS, VLLMS)
    tokendraw.Sampler.sample, tokendraw.Sampler.verify = sample, verify
    assert verification.engine.decode(LOGITS[:1], [0]) == [BEST]
    drafting.engine.start(0, seed=1, top_k=1)
    assert drafting.engine.verify(LOGITS[:2], [0], [[BEST]])[0][0] == BEST


# Beside other ranks.


@pytest.fixture
def ranks(monkeypatch):
    """The adapter sees a group of ranks, of which this is the first and the only one that runs."""
    monkeypatch.setattr("tokendraw_vllm._parts._groups", lambda: ["group"])
    monkeypatch.setattr("tokendraw_vllm._parts.choose_once", lambda choose, group: choose())
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)


RANK = "tokendraw failed on rank 3: RuntimeError: no kernel image"


@pytest.mark.parametrize("after", [0, 2])
@each_place
def test_beside_other_ranks_a_call_that_raises_ends_the_process(
    vllm, native, log_lines, failing, ranks, place, after
):
    tokendraw_vllm.register()
    drill = Drill(place)
    drill.wait()
    failing(after=after)
    assert [drill.step() for _ in range(after)] == [drill.token] * after
    for _ in range(2):
        with pytest.raises(SystemExit, match=RANK):
            drill.step()
    assert len(sentences(log_lines)) == 1


LOADS = {
    "draws": ("_replacement._plugin_of", "v2.loading.example_batches", "v2.loading.max_best_of"),
    "scoring": ("v2.logprobs.Scorer",),
    "edits": ("v2.edits._warm_up", "v2.edits.request_bytes"),
}
"""What the load of a place calls."""


@pytest.mark.parametrize(("place", "name"), [(place, name) for place in LOADS for name in LOADS[place]])
def test_beside_other_ranks_a_load_that_raises_ends_the_process(
    vllm, native, monkeypatch, ranks, place, name
):
    tokendraw_vllm.register()
    monkeypatch.setattr(f"tokendraw_vllm.{name}", broken)
    with pytest.raises(SystemExit, match=RANK):
        Drill(place).step()
