"""Warming up: batches of every kind are drawn before the first request, and nothing else changes."""

import logging
import sys
import threading
from dataclasses import dataclass, field

import pytest
import torch

import tokendraw
from calling import loaded, one_token, select, selected, selection_of
from fake_candidates import FILTERS, SEEDS
from fake_dists import faulty, place
from tokendraw import (
    BatchFacts,
    InvalidInputError,
    Need,
    SamplerFallbackWarning,
    SamplingMetadata,
)
from tokendraw.calls import warmup
from tokendraw.calls.negotiator import Negotiator
from tokendraw.operations.row_methods import Sampler
from tokendraw.plugin import Capabilities

EVERYTHING = Capabilities(
    logprobs_modes=("raw_logprobs",),
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    seeding="counter",
    greedy=True,
)


@dataclass
class Recorder:
    """Records every call."""

    calls: list = field(default_factory=list)

    def sample(self, logits, metadata):
        self.calls.append((logits, metadata))
        return one_token(0, logits, metadata)

    @property
    def kinds(self):
        """(any seed, all seeded, positions, filter, joint, all greedy, logprobs, slots) of every call."""
        return {
            (
                m.facts.any_seeded,
                m.facts.all_seeded,
                m.positions is not None,
                m.facts.max_top_k != 0 or m.facts.any_top_p or m.facts.any_min_p or m.facts.any_ceiling,
                m.facts.any_joint,
                m.facts.all_greedy,
                m.facts.max_logprobs,
                m.row_index is not None,
            )
            for _, m in self.calls
        }


def sampler_of(backend, capabilities=EVERYTHING, companion=None):
    other = companion and loaded(*companion)
    selection = selection_of(loaded("acme", backend, capabilities), other)
    return Sampler(Negotiator(torch.device("cpu"), Need(), selected=[selection]))


def warmed(capabilities=EVERYTHING, companion=None, **arguments):
    """Return the recording backend of a sampler after a warmup."""
    backend = Recorder()
    sampler_of(backend, capabilities, companion).warmup(
        **({"vocab_size": 100, "dtypes": [torch.float32], "batch_sizes": [4]} | arguments)
    )
    return backend


def kinds(seedings=SEEDS, counts=(None, 5), by_slot=(False,)):
    return {
        (*seeds, *filters, n, slots)
        for seeds in seedings
        for filters in FILTERS
        for n in counts
        for slots in by_slot
    }


class Crowd(Recorder):
    """Serves a call, then blocks until three calls are in flight."""

    def __init__(self):
        super().__init__()
        self.together, self.threads, self.more = threading.Barrier(3), [], threading.Event()

    def sample(self, logits, metadata):
        self.threads.append((threading.get_ident(), torch.is_grad_enabled(), logits.dtype))
        if len(self.threads) == 1:
            self.is_first_alone = not self.more.wait(timeout=0.2)
        else:
            self.more.set()
            self.together.wait(timeout=60)
        return super().sample(logits, metadata)


@pytest.mark.usefixtures("warmup_on_a_cpu")
class TestBatches:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, kinds()),
            ({"row_index": True}, kinds(by_slot=(False, True))),
            ({"seeds": False, "logprobs": ()}, kinds(SEEDS[:1], (None,))),
            ({"logprobs": [0, 20, -1]}, kinds(counts=(None, 0, 20, -1))),
        ],
    )
    def test_every_kind_of_batch_that_may_come_is_drawn_and_no_other(self, arguments, expected):
        backend = warmed(**arguments)
        assert backend.kinds == expected
        assert {m.facts.all_top_k for _, m in backend.calls} == {True, False}

    @pytest.mark.parametrize("stride", [None, 64])
    def test_logits_have_the_dtypes_batch_sizes_and_strides_that_were_asked_for(self, stride):
        dtypes = [torch.float32, torch.bfloat16]
        backend = warmed(
            vocab_size=50, dtypes=dtypes, batch_sizes=[7, 2], row_stride=stride, logprobs=(), seeds=False
        )
        shapes = {(x.dtype, tuple(x.shape), x.stride()) for x, _ in backend.calls}
        assert shapes == {(dtype, (rows, 50), (stride or 50, 1)) for dtype in dtypes for rows in (2, 7)}
        assert not any(x.any() for x, _ in backend.calls)

    @pytest.mark.parametrize("has_companion", [False, True])
    def test_kinds_beyond_the_sampler_are_drawn_by_its_companion_or_left_out(self, has_companion):
        companion = Recorder()
        backend = warmed(Capabilities(), companion=("native", companion) if has_companion else None)
        assert backend.kinds == {(*seeds, False, False, False, None, False) for seeds in SEEDS[:2]}
        assert len(companion.kinds) == (len(kinds()) - 2 if has_companion else 0)
        assert not backend.kinds & companion.kinds

    def test_each_companion_draws_the_kinds_that_it_serves(self):
        backend, partial, companion = Recorder(), Recorder(), Recorder()
        sampler = sampler_of(backend, Capabilities(), ("native", companion))
        seeded = Capabilities(seeding="counter")
        select(sampler, companions=(loaded("fast", partial, seeded), *selected(sampler).companions))
        sampler.warmup(100, dtypes=[torch.float32], batch_sizes=[4])
        seeded = (*SEEDS[-1], False, False, False, None)
        assert {kind[:-1] for kind in partial.kinds} == {seeded}  # the seeded half of a batch comes by slot
        assert (*seeded, False) not in companion.kinds
        assert companion.kinds >= {kind for kind in kinds((SEEDS[0], SEEDS[-1])) if any(kind[3:6])}

    def test_nothing_is_drawn_before_every_argument_is_checked(self):
        backend = Recorder()
        with pytest.raises(InvalidInputError):
            sampler_of(backend).warmup(100, dtypes=[torch.float32], draft_kinds=[None])
        assert backend.calls == []

    def test_batches_of_ones_own_are_drawn_in_place_of_all_kinds(self):
        half = SamplingMetadata(temperature=torch.ones(3, dtype=torch.float16))
        anything = SamplingMetadata(facts=BatchFacts(any_greedy=False))
        backend = warmed(batch_sizes=[2, 5], metadata=[half, anything])
        assert [len(logits) for logits, _ in backend.calls] == [3, 2, 5]
        assert [metadata for _, metadata in backend.calls] == [half, anything, anything]
        elsewhere = SamplingMetadata(temperature=torch.ones(2, device="meta"))
        with pytest.raises(
            InvalidInputError, match="'metadata' needs the device of 'logits', cpu, found meta"
        ):
            warmed(metadata=[elsewhere])

    @pytest.mark.fast_first
    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
    def test_the_random_state_of_torch_is_left_alone(self, load_native, device, mode):
        sampler = load_native(mode)
        logits = torch.zeros(4, 1000, device=device)
        metadata = SamplingMetadata.from_params([tokendraw.SamplingParams()] * 4, device=device)

        def drawn_tokens(warm):
            torch.manual_seed(5)
            if warm:
                assert sampler.warmup(300, dtypes=[torch.bfloat16], logprobs=[0, -1], row_index=True) > 0
            on_host = torch.rand(())
            return sampler.sample(logits, metadata).token_ids.tolist(), on_host

        assert drawn_tokens(True) == drawn_tokens(False)

    def test_it_is_refused_while_a_graph_is_captured(self, monkeypatch):
        monkeypatch.setattr(warmup, "is_capturing", lambda: True)
        with pytest.raises(InvalidInputError) as error:
            warmed()
        assert str(error.value) == (
            "'warmup' needs a stream that captures no CUDA graph, found one that does: its calls would become part of "
            "the graph. Call it before the capture."
        )

    def test_a_sampler_that_fails_is_replaced_by_one_that_draws_every_kind(self, dists, warmup_on_a_cpu):
        source = faulty("acme", "if metadata.facts.any_joint: raise RuntimeError('no kernel image')")
        dists.add_plugin("acme", source)
        beta = dists.add_plugin("beta", faulty("beta", "CALLED[-1] = metadata.facts", priority=40))
        sampler = tokendraw.load_sampler(device="cpu")
        with pytest.warns(SamplerFallbackWarning) as warned:
            sampler.warmup(100, dtypes=[torch.float32], batch_sizes=[4])
        assert sampler.name == "beta"
        assert [str(warning.message) for warning in warned] == [
            f"'acme' failed: its call raised RuntimeError: no kernel image {place(source, 'kernel')}. Using "
            "'beta' from here on. Set TOKENDRAW_DISABLE=acme to silence this."
        ]
        called = sys.modules[beta].CALLED
        # The batch that failed, and then all 88 kinds, 8 of them joint.
        assert (len(called), sum(facts.any_joint for facts in called)) == (1 + 88, 1 + 8)

    def test_where_calls_compile_several_are_made_at_once_behind_the_first(self, monkeypatch):
        monkeypatch.setattr(warmup, "max_calls_in_flight", lambda device: 3)
        backend = Crowd()
        sampler_of(backend).warmup(
            100, dtypes=[torch.float32, torch.bfloat16], batch_sizes=[2], metadata=[SamplingMetadata()] * 2
        )
        assert backend.is_first_alone
        first, *together = [dtype for _, _, dtype in backend.threads]
        assert first == torch.float32
        assert sorted(together, key=str) == [torch.bfloat16, torch.bfloat16, torch.float32]
        assert len({ident for ident, *_ in backend.threads}) <= 3
        assert threading.get_ident() not in {ident for ident, *_ in backend.threads}
        assert not any(is_enabled for _, is_enabled, _ in backend.threads)


# Where there is nothing to compile, and how far a warmup is

ARGUMENTS = {"vocab_size": 50, "dtypes": [torch.float32], "batch_sizes": [2], "logprobs": (), "seeds": False}


def test_on_a_cpu_it_draws_nothing_and_says_so(dists, monkeypatch, caplog):
    sampler, calls = tokendraw.load_sampler("native", device="cpu"), []
    for name in ("sample", "draft", "verify"):
        monkeypatch.setattr(sampler, name, lambda *args, **kwargs: calls.append(args))
    with caplog.at_level(logging.INFO, "tokendraw"):
        assert sampler.warmup(**ARGUMENTS, progress=True, max_drafts=2) == 0.0
    assert (calls, {"sample", "verify"} <= set(sampler.choices)) == ([], True)
    assert caplog.messages == ["warmup calls nothing: on cpu there is nothing to compile"]
    dists.add_engine_ops()
    assert tokendraw.load("plan_paged_kv", device="cpu").warmup() == 0.0


@pytest.mark.parametrize(
    ("on_terminal", "progress"), [(True, None), (False, True), (False, None), (True, False)]
)
def test_a_terminal_shows_how_far_it_is_and_a_pipe_stays_quiet(
    warmup_on_a_cpu, monkeypatch, capsys, on_terminal, progress
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich believes in a terminal
    monkeypatch.setenv("COLUMNS", "100")
    sampler = tokendraw.load_sampler("native", device="cpu")
    assert sampler.warmup(**ARGUMENTS, max_drafts=1, progress=progress) > 0
    shown = capsys.readouterr()
    assert shown.out == ""
    expected = [f"tokendraw warms up: {doing}" for doing in ("batches", "drafts", "verifications")] + [
        "11/11"
    ]
    is_shown = on_terminal if progress is None else progress
    assert [text in shown.err for text in expected] == [is_shown] * 4
    assert is_shown or shown.err == ""
