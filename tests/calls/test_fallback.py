"""A failed call: the successor, the logits for the successor, and the user's message."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

from fake_dists import EVERYTHING, faulty, place, plugin, serving_both
from tokendraw import (
    Drafts,
    InvalidInputError,
    InvalidParameterError,
    Need,
    PluginError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    UntestedUpstreamWarning,
    load_sampler,
)
from tokendraw.calls.call import Call
from tokendraw.calls.negotiator import is_device_fault

NO_GREEDY = EVERYTHING.replace("greedy=True", "greedy=False")
HALVES = EVERYTHING.replace("('float32',)", "('float32', 'bfloat16')")
GREEDY = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 2)
PLAIN = SamplingMetadata.from_params([SamplingParams()] * 2)
FAILS = "raise RuntimeError('no kernel image')"
HERE = place(faulty("acme", FAILS), FAILS)
IN_BETA = HERE.replace("acme", "beta")
USING = "Using 'native' from here on. "
FAILED = f"'acme' failed: its call raised RuntimeError: no kernel image {HERE}. {USING}"
SILENCE = "Set TOKENDRAW_DISABLE=acme to silence this."
NOT_FROM_THESE = (
    "'acme' may have overwritten its inputs before it failed, so no other one is given them. Only the first call of "
    "each kind, which runs on copies, can be taken over. Set TOKENDRAW_DISABLE=acme to use another one."
)
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes. Error code 12"


def batch():
    return torch.tensor([[0.0, 9.0, 1.0], [5.0, 0.0, 0.0]])


def draw(sampler, metadata=GREEDY):
    return sampler.sample(batch(), metadata).token_ids.tolist()


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


def reasons(sampler):
    return {decision.name: decision.reason for decision in sampler.resolution.decisions}


def capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.parametrize("after", [0, 1], ids=["first call", "later call"])
def test_without_another_sampler_the_error_is_the_cause_of_an_unavailable_one(dists, monkeypatch, after):
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    dists.add_plugin("acme", faulty("acme", FAILS, after=after))
    sampler = load_sampler(device="cpu")
    for _ in range(after):
        draw(sampler)
    with pytest.raises(SamplerUnavailableError) as raised:
        draw(sampler)
    assert str(raised.value.__cause__) == "no kernel image"
    assert sampler.name == "acme"


# Whose verdict an error is


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("raise torch.OutOfMemoryError('CUDA out of memory')", torch.OutOfMemoryError),
        ("raise MemoryError", MemoryError),
        ("torch.empty(2**60, dtype=torch.uint8)", RuntimeError),  # torch has no class for that on a CPU
        (f'raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. {NO_MEMORY}")', RuntimeError),
        ("raise tokendraw.InvalidInputError('no')", InvalidInputError),
        ("raise tokendraw.InvalidParameterError('no')", InvalidParameterError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_what_says_nothing_against_a_sampler_passes_unchanged(dists, fault, kind):
    dists.add_plugin("acme", faulty("acme", fault))
    for choice in (None, "acme"):
        sampler = load_sampler(choice, device="cpu")
        with pytest.raises(kind) as raised:
            draw(sampler)
        assert (sampler.name, hasattr(raised.value, "__notes__")) == ("acme", False)


def test_while_a_graph_is_captured_the_error_passes_and_nothing_is_copied(dists, monkeypatch):
    module = dists.add_plugin("acme", faulty("acme", f"CALLED.append(logits.data_ptr()); {FAILS}"))
    sampler, logits = load_sampler(device="cpu"), batch()
    capture(monkeypatch)
    with pytest.raises(RuntimeError, match="no kernel image") as raised:
        sampler.sample(logits, GREEDY)
    assert not hasattr(raised.value, "__notes__")
    assert (sys.modules[module].CALLED[-1], sampler.name) == (logits.data_ptr(), "acme")


@pytest.mark.gpu
def test_an_error_while_a_real_graph_is_captured_leaves_the_sampler_in_its_place(dists):
    dists.add_plugin("acme", faulty("acme", f"logits.argmax(-1); {FAILS}", after=1, priority=99))
    sampler = load_sampler(device="cuda")
    logits, metadata = batch().cuda(), SamplingMetadata(temperature=torch.zeros(2, device="cuda"))
    sampler.sample(logits, metadata)
    with (
        pytest.raises(RuntimeError, match="no kernel image") as raised,
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        sampler.sample(logits, metadata)
    assert (sampler.name, hasattr(raised.value, "__notes__")) == ("acme", False)
    with pytest.raises(RuntimeError, match="no kernel image"):  # drawn from the logits themselves
        sampler.sample(logits, metadata)


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("the argument sampler=", "Leave out sampler="),
        ("TOKENDRAW_SAMPLER", "Unset TOKENDRAW_SAMPLER"),
    ],
)
def test_an_explicit_choice_is_not_replaced_and_its_error_carries_a_note_once(
    dists, monkeypatch, source, step
):
    dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
    dists.add_plugin("beta", "ERROR = RuntimeError('again')\n" + faulty("beta", "raise ERROR", priority=40))
    if "=" not in source:
        monkeypatch.setenv(source, "acme")
    sampler = load_sampler("acme" if "=" in source else None, device="cpu")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="again") as raised:
            draw(sampler)
        assert raised.value.__notes__ == [
            f"'beta' serves what 'acme' cannot. 'acme' was asked for by {source}, so no other one takes over. "
            f"{step} to let tokendraw choose."
        ]
    assert sampler.resolution.companion == "beta"


def test_a_call_that_exits_is_a_failure_and_does_not_end_the_host(dists):
    dists.add_plugin("acme", faulty("acme", "raise SystemExit(1)"))
    with pytest.raises(PluginError) as raised:
        draw(load_sampler("acme", device="cpu"))
    failed = f"'acme' failed: its call raised SystemExit: 1 {HERE}"
    assert (str(raised.value), repr(raised.value.__cause__)) == (failed, "SystemExit(1)")
    sampler, tokens = load_sampler(device="cpu"), []
    assert warnings_of(lambda: tokens.extend(draw(sampler))) == [f"{failed}. {USING}{SILENCE}"]
    assert (tokens, sampler.name) == ([1, 0], "native")


def test_a_companion_whose_call_raises_is_replaced_and_the_chosen_one_stays(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
    dists.add_plugin("beta", faulty("beta", FAILS, priority=40))
    sampler = load_sampler(device="cpu")
    with pytest.warns(SamplerFallbackWarning, match="'beta' failed: .*Using 'native' from here on"):
        assert [draw(sampler), draw(sampler, PLAIN), draw(sampler)] == [[1, 0]] * 3
    assert (sampler.name, sampler.resolution.companion) == ("acme", "native")
    assert reasons(sampler) == {
        "acme": "best available, priority 50",
        "native": "available, priority 0; serves the rows that acme cannot",
        "beta": f"its call raised RuntimeError: no kernel image {IN_BETA}",
    }


# A batch that nobody can draw

BAD_SLOT = "if logits[0, 0] > 50: raise IndexError('slot 7')"


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (BAD_SLOT, f"its call raised IndexError: slot 7 {IN_BETA}"),
        ("raise MemoryError('full')", f"its call raised MemoryError: full {IN_BETA}"),
        ("return 3", "its call needs to return a SamplerOutput, found int"),
    ],
    ids=["the same way", "for memory", "with no output"],
)
def test_what_the_successor_fails_too_is_the_callers_mistake_and_nobody_is_replaced(
    dists, monkeypatch, other, found
):
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    dists.add_plugin("acme", faulty("acme", BAD_SLOT))
    dists.add_plugin("beta", faulty("beta", other, priority=40))
    sampler, bad = load_sampler(device="cpu"), torch.full((2, 3), 60.0)
    for _ in range(2):
        with pytest.raises(IndexError) as raised:
            sampler.sample(bad, GREEDY)
        assert str(raised.value) == "slot 7"
        assert raised.value.__notes__ == [
            f"'beta' failed on this batch too: {found}. So nobody is replaced. Check what the call was given."
        ]
    assert warnings_of(lambda: draw(sampler)) == []
    assert (sampler.name, sampler.stats()) == ("acme", {"acme": 2})


def test_failures_of_a_batch_that_nobody_can_draw_count_against_no_sampler(dists, monkeypatch):
    """A batch that acme alone cannot draw goes to beta, the second in rank, which failed an earlier batch as well."""
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    dists.add_plugin("acme", faulty("acme", "if logits[0, 0] > 0: raise IndexError('slot 7')"))
    dists.add_plugin("beta", faulty("beta", BAD_SLOT, priority=40))
    dists.add_plugin("gamma", faulty("gamma", BAD_SLOT, priority=30))
    sampler = load_sampler(device="cpu")
    with pytest.raises(IndexError, match="slot 7"):
        sampler.sample(torch.full((2, 3), 60.0), GREEDY)
    assert sampler.name == "acme"
    with pytest.warns(SamplerFallbackWarning, match="Using 'beta' from here on"):
        sampler.sample(torch.full((2, 3), 1.0), PLAIN)


# From which logits another sampler draws


@pytest.mark.parametrize("inference", [False, True])
def test_a_later_call_of_a_kind_raises_its_own_error_and_no_backend_takes_over(dists, inference):
    dists.add_plugin("acme", faulty("acme", f"logits.neg_(); {FAILS}", after=2))
    sampler = load_sampler(device="cpu")
    with torch.inference_mode(inference):
        assert [draw(sampler), draw(sampler), sampler.name] == [[1, 0], [1, 0], "acme"]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no kernel image") as raised:
                draw(sampler)
            assert (raised.value.__notes__, sampler.name) == ([NOT_FROM_THESE], "acme")
    tokens = []
    torch.manual_seed(0)  # these rows draw at random, another token once in 80 times
    told = warnings_of(lambda: tokens.extend(draw(sampler, PLAIN)))  # of another kind
    assert (tokens, sampler.name, told) == ([1, 0], "native", [FAILED + SILENCE])


class Watched:
    """Loads samplers that draw as native, and lists the batches they got as copies."""

    def __init__(self, dists, choice=None):
        source = faulty("acme", "CALLED[-1] = logits.data_ptr()", capabilities=HALVES)
        self._module = dists.add_plugin("acme", source)
        self.sampler = load_sampler(choice, device="cpu")

    def gets_copy(self, logits, metadata=GREEDY):
        self.sampler.sample(logits, metadata)
        return bool(sys.modules[self._module].CALLED[-1] != logits.data_ptr())


REQUESTS = [{"seed": 3}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}]
REQUESTS += [{"top_k": 2, "top_p": 0.9, "filter_order": "joint"}]


def test_the_first_batch_of_each_kind_is_copied_since_there_compilations_fail(dists):
    watched = Watched(dists)
    kinds = [(torch.zeros(2, 3), metadata) for metadata in (PLAIN, GREEDY)]
    kinds += [(torch.zeros(2, 4), PLAIN), (torch.zeros(2, 3, dtype=torch.bfloat16), PLAIN)]
    for request in REQUESTS:
        of_kind = SamplingMetadata.from_params([SamplingParams(**request)] * 2, positions=[3, 4])
        kinds.append((torch.zeros(2, 3), of_kind))
    for expected in (True, False):
        assert [watched.gets_copy(*kind) for kind in kinds] == [expected] * len(kinds)
    more_rows = torch.zeros(9, 3), SamplingMetadata.from_params([SamplingParams()] * 9)
    assert not watched.gets_copy(*more_rows)


def test_what_a_warmup_drew_is_not_copied_again_and_few_kinds_are_remembered(dists, warmup_on_a_cpu):
    watched, plain = Watched(dists), SamplingMetadata()
    watched.sampler.warmup(3, dtypes=[torch.float32], batch_sizes=[2], logprobs=[])
    assert not watched.gets_copy(batch())
    watched.sampler = load_sampler(device="cpu")
    assert [size for size in range(2, 400) if watched.gets_copy(torch.zeros(1, size), plain)] == [
        *range(2, 258)
    ]


@pytest.mark.parametrize(
    ("choice", "disabled"), [("acme", ""), (None, "native")], ids=["explicit", "nobody else"]
)
def test_nothing_is_copied_for_a_sampler_that_cannot_be_replaced(dists, monkeypatch, choice, disabled):
    monkeypatch.setenv("TOKENDRAW_DISABLE", disabled)
    assert not Watched(dists, choice).gets_copy(batch())


def test_a_batch_that_a_successor_may_have_overwritten_is_given_to_no_other_sampler(dists, monkeypatch):
    """The memory suffices for a single copy, given to the first sampler."""
    copied, calls = Call.copied, []

    def copied_once(call):
        calls.append(call)
        if len(calls) > 1:
            raise torch.OutOfMemoryError
        return copied(call)

    dists.add_plugin("acme", faulty("acme", FAILS))
    dists.add_plugin("beta", faulty("beta", "logits.neg_(); raise OSError('no beta')", priority=40))
    sampler = load_sampler(device="cpu")
    monkeypatch.setattr(Call, "copied", copied_once)
    with pytest.raises(RuntimeError, match="no kernel image"):
        draw(sampler)
    assert (sampler.name, len(calls)) == ("acme", 2)


# Who draws instead


def test_a_successor_that_fails_too_makes_room_for_the_next_in_the_same_call(dists):
    dists.add_plugin("acme", faulty("acme", "logits.neg_(); raise OSError('no acme')"))
    dists.add_plugin("beta", faulty("beta", "logits.neg_(); raise OSError('no beta')", priority=40))
    sampler, tokens = load_sampler(device="cpu"), []
    told = warnings_of(lambda: tokens.extend(draw(sampler)))
    assert (tokens, sampler.name) == ([1, 0], "native")
    assert told == [
        f"'{name}' failed: its call raised OSError: no {name} {here}. Using 'native' from here on. "
        f"Set TOKENDRAW_DISABLE={name} to silence this."
        for name, here in (("acme", HERE), ("beta", IN_BETA))
    ]
    assert reasons(sampler) == {
        "native": "best available, priority 0",
        "acme": f"its call raised OSError: no acme {HERE}",
        "beta": f"its call raised OSError: no beta {IN_BETA}",
    }


def test_rows_that_only_the_failed_companion_could_serve_are_refused_and_it_stays(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DISABLE", "native")
    dists.add_plugin("acme", plugin("acme", capabilities=NO_GREEDY))
    dists.add_plugin("beta", faulty("beta", FAILS, priority=40))
    sampler = load_sampler(device="cpu")
    for _ in range(2):
        with pytest.raises(SamplerUnavailableError) as refused:
            draw(sampler)
        assert str(refused.value) == (
            "Nothing here can serve greedy rows, which this batch may hold: 'beta' failed, its call raised "
            f"RuntimeError: no kernel image {IN_BETA}. Make 'native' available, which is installed (switched off by "
            "TOKENDRAW_DISABLE), or, if the batch holds none, say so in SamplingMetadata.facts."
        )
        assert isinstance(refused.value.__cause__, RuntimeError)
    assert (draw(sampler, PLAIN), sampler.resolution.companion) == ([1, 0], "beta")


def test_a_companion_and_a_successor_are_built_with_the_need_of_the_caller(dists):
    source = plugin(
        "beta", priority=40, capabilities=EVERYTHING, build="BUILT[-1] = need; return ArgmaxSampler()"
    )
    dists.add_plugin("acme", faulty("acme", FAILS, capabilities=NO_GREEDY))
    module, need = dists.add_plugin("beta", source), Need(valid_flag=True, logprobs_mode="processed_logprobs")
    sampler = load_sampler(device="cpu", need=need)
    with pytest.warns(SamplerFallbackWarning, match="Using 'beta'"):
        assert [draw(sampler), draw(sampler, PLAIN)] == [[1, 0]] * 2
    assert set(sys.modules[module].BUILT) == {need}


# What the user reads


def test_an_untested_upstream_of_the_successor_is_told_of_too(dists):
    dists.add("beta-kernels", "2.5")
    upstream = "tokendraw.plugin.Upstream('beta-kernels', '>=2,<3', ('2.1',))"
    dists.add_plugin("acme", faulty("acme", FAILS))
    dists.add_plugin("beta", plugin("beta", priority=40, capabilities=EVERYTHING, upstream=upstream))
    sampler = load_sampler(device="cpu")
    with pytest.warns(SamplerFallbackWarning), pytest.warns(UntestedUpstreamWarning, match="found 2.5"):
        draw(sampler)
    assert sampler.name == "beta"


def test_a_plugin_is_told_of_once_whatever_it_raises_and_however_often_it_is_loaded(dists):
    dists.add_plugin("gone", "raise OSError('no libgone')")
    dists.add_plugin("acme", faulty("acme", "raise RuntimeError(f'failure {len(CALLED)}')"))
    with pytest.warns(SamplerFallbackWarning, match="'gone' was passed over"):
        samplers = [load_sampler(device="cpu") for _ in range(3)]
    assert [len(warnings_of(lambda: draw(sampler))) for sampler in samplers] == [1, 0, 0]  # noqa: B023
    assert reasons(samplers[2])["acme"] == f"its call raised RuntimeError: failure 3 {HERE}"


def test_the_warning_points_at_the_caller_and_names_all_that_is_switched_off(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_DISABLE", "other")
    dists.add_plugin("other", plugin("other"))
    dists.add_plugin("acme", faulty("acme", FAILS))
    sampler = load_sampler(device="cpu")
    with pytest.warns(SamplerFallbackWarning) as caught:
        sampler.sample(batch(), GREEDY)
    (warning,) = caught
    assert str(warning.message) == FAILED + SILENCE.replace("acme", "other,acme")
    assert Path(warning.filename).name == "test_fallback.py"


def test_strict_raises_the_warning_every_time_and_falls_back_never(dists, monkeypatch):
    monkeypatch.setenv("TOKENDRAW_STRICT", "1")
    dists.add_plugin("acme", faulty("acme", FAILS))
    sampler = load_sampler(device="cpu")
    for _ in range(2):
        with pytest.raises(SamplerFallbackWarning) as raised:
            draw(sampler)
        assert str(raised.value) == (
            f"{FAILED.removesuffix(USING)}{SILENCE} TOKENDRAW_STRICT=1 makes this warning an error."
        )
        assert isinstance(raised.value.__cause__, RuntimeError)
    assert sampler.name == "acme"


# Verifications, and faults of the device

ILLEGAL, GONE = (
    "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
    "raise OSError('gone')",
)
DAMAGE = (
    "arguments[0].zero_(); arguments[1].draft_token_ids.zero_(); arguments[1].draft_probs.numpy()[:] = 7.0; "
)


def given():
    """Make new target logits, drafts with distributions, and metadata of requests."""
    generator = torch.Generator().manual_seed(6)
    target = torch.randn(6, 50, generator=generator)
    probs = torch.rand(3, 50, generator=generator).softmax(-1)
    params = [SamplingParams(seed=i, top_k=9) for i in range(3)]
    metadata = SamplingMetadata.from_params(params, positions=[4, 5, 6])
    return target, Drafts.from_lists([[1, 2], [], [3]], draft_probs=probs), metadata


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_a_verification_is_taken_over_as_it_was_given_and_later_drafts_too(dists, mode):
    expected = load_sampler("native", device="cpu").verify(*given(), mode=mode).token_ids.tolist()
    fault = f"if options['mode'] == {mode!r}: {DAMAGE}{FAILS}"
    dists.add_plugin("acme", serving_both(verify=fault))
    sampler = load_sampler(device="cpu")
    if mode != "rejection":
        sampler.verify(*given())  # the first call of a mode is taken over after calls of another one
    (told,) = warnings_of(lambda: sampler.verify(*given(), mode=mode))
    assert told.startswith("'acme' failed: its call raised RuntimeError: no kernel image (fake_acme.py:")
    assert sampler.verify(*given(), mode=mode).token_ids.tolist() == expected
    target, _, metadata = given()
    sampler.sample(target[:3], metadata)
    sampler.draft(target[:3], metadata)
    assert (sampler.name, sampler.verify_resolution.chosen) == ("acme", "native")
    assert sampler.stats() == {"acme": 3, "native": 3}


def test_what_is_a_fault_of_the_device():
    faults = (
        RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for it"),
        RuntimeError("HIP error: invalid device function"),
        getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: misaligned address"),
    )
    others = RuntimeError("CUDA error: out of memory"), RuntimeError("The size of tensor a (2) must match")
    others += torch.OutOfMemoryError("CUDA out of memory."), OSError("CUDA error: no such file"), None
    assert [*map(is_device_fault, (*faults, *others))] == [True] * 3 + [False] * 5


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        ({"build": f"if operation == 'sample': {ILLEGAL}"}, ("native", "native")),
        ({"build": f"if operation == 'sample': {GONE}"}, ("native", "acme")),
        ({"sample": ILLEGAL}, ("native", "native")),
        ({"sample": GONE}, ("native", "acme")),
        ({"build": f"if operation == 'verify': {ILLEGAL}"}, ("native", "native")),
        ({"verify": ILLEGAL}, ("native", "native")),
        ({"verify": GONE}, ("acme", "native")),
    ],
    ids=str,
)
@pytest.mark.parametrize("operations", [("sample",), ("sample", "verify")], ids=str)
def test_a_fault_of_the_device_counts_for_every_operation_and_another_for_its_own(
    dists, statements, names, operations
):
    """Who samples and verifies in the end."""
    dists.add_plugin("acme", serving_both(**statements))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler = load_sampler(device="cpu", operations=operations)
        for _ in range(2):
            draw(sampler)
            sampler.verify(*given())
    assert (sampler.name, sampler.verify_resolution.chosen) == names
    assert {warning.category for warning in caught} == {SamplerFallbackWarning}
    if names[1] == "native" and GONE not in str(statements):
        (reason,) = [d.reason for d in sampler.verify_resolution.decisions if d.name == "acme"]
        assert "raised RuntimeError: CUDA error: an illegal memory access was encountered" in reason
