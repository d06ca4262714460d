"""The kit asks for advertised capabilities alone; what it cannot test is not run, and what may fail is listed."""

from dataclasses import replace

import pytest
import torch

import call_tables
import tokendraw_testing
from calling import loaded
from fake_dists import deadly
from fake_dists import plugin as plugin_of
from mutants.samplers import CUDA_SAMPLERS, NATIVE, PLAIN, SamplerMutant, sampler_mutant
from tokendraw import operations
from tokendraw.calls.call import RowGroup
from tokendraw.calls.rows import Verify
from tokendraw.plugin import Capabilities, VerifyCapabilities
from tokendraw_native import plugin
from tokendraw_testing import Effort, Property, Status, Subject, check_filter, fake_dist, run
from tokendraw_testing.commands.check import read_definition
from tokendraw_testing.kit import run as running
from tokendraw_testing.kit.property import OperationKit
from tokendraw_testing.kit.subject import SampleSubject

TINY = Effort.tiny()
QUICK = Effort.of(quick=True, device_type="cpu")
FEW_DRAWS = replace(QUICK, draws=QUICK.draws // 5, tiled_draws=QUICK.tiled_draws // 5, tails=QUICK.tails[:1])
"""For what the kit asks of a sampler, which the number of draws does not change."""
FEW = replace(QUICK, draws=2000, tiled_draws=400)
UNSEEDED_NATIVE = replace(NATIVE, seeding="launch")
LEAST = replace(
    Effort.tiny(),
    fewer=32,
    draws=16,
    tiled_draws=12,
    most_draws=12,
    tail_vocab_size=2049,
    crossed_sizes=(33, 1025),
    crossed_rows=8,
)
"""Enough to ask for everything: a call that asks for too much raises."""
NOTHING = {
    "dtypes": ("float32",),
    "logprobs_modes": (),
    "filters": (),
    "seeding": "none",
    "greedy": False,
    "gumbel_dtypes": ("fp32",),
    "valid_flag": False,
    "batch_invariant": False,
}
UNSEEDED = {"seeding": "launch", "batch_invariant": False}
SCALAR = {"filters": (("top_k", "scalar"), ("top_p", "scalar"), ("min_p", "per_row"))}
EXACTLY_K = {
    "tie_rule": "exact_k",
    "filter_orders": ("top_k_first",),
    "logprobs_modes": (),
    "threshold": False,  # no value divides tokens that tie with the k-th
}
PROMISES = {
    "nothing at all": NOTHING,
    "one value of a filter for all rows, no seeds": SCALAR | UNSEEDED,
    "one seed a call": UNSEEDED,
    "exactly k, no logprobs, float64 noise alone": EXACTLY_K | {"gumbel_dtypes": ("fp64",)},
    "k up to 50, V up to 3000, no float16, one order": {
        "max_top_k": 50,
        "max_vocab_size": 3000,
        "dtypes": ("float32", "bfloat16"),
        "filter_orders": ("joint",),
    },
}
DENSE = {
    "verify_modes": ("rejection",),
    "draft_kinds": ("probs",),
    "ragged_drafts": False,
    "placeholder_drafts": False,
}


# Native with fewer promises, which asserts them in every call.


OFFERED = plugin.tokendraw_describe().operations
INFINITY = float("inf")


class Modest:
    """Serves an operation like native, within the capabilities."""

    def __init__(self, operation, capabilities, need):
        assert capabilities.gumbel_dtypes == () or need.gumbel_dtype in capabilities.gumbel_dtypes
        self.operation, self.own, self.need = operation, capabilities, need
        self.inner = plugin.tokendraw_build(operation, torch.device("cpu"), need)

    def sample(self, logits, metadata, **draft):
        self.check(logits, metadata)
        return self.inner.sample(self.kept(logits, metadata), metadata, **draft)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        self.check(target_logits, metadata)
        self.require(Verify(target_logits, drafts, metadata, mode))
        if drafts.draft_logits is not None:
            name = str(drafts.draft_logits.dtype).removeprefix("torch.")
            assert name in self.own.dtypes, name
        return self.inner.verify(self.kept(target_logits, metadata), drafts, metadata, mode=mode)

    def check(self, logits, metadata):
        """Assert that a batch holds promised features alone."""
        assert str(logits.dtype).removeprefix("torch.") in self.own.dtypes, logits.dtype
        self.require(RowGroup(metadata.facts, logits.shape[1]))
        for name, how in self.own.filters:
            column = None if how == "per_row" else metadata.per_row(name)
            assert column is None or len(column.unique()) <= 1, name
        if metadata.facts.max_logprobs is not None:
            assert self.need.logprobs_mode in self.own.logprobs_modes, self.need.logprobs_mode

    def require(self, call):
        """Assert that the capabilities cover a call, whose filters may differ by row."""
        filters = tuple((name, "per_row") for name, _ in self.own.filters)
        capabilities = replace(self.own, filters=filters)
        backend = loaded("modest", None, capabilities, operation=self.operation, need=self.need)
        reason = backend.reason_against(call)
        assert reason is None, reason

    def kept(self, logits, metadata):
        """Drop logits behind the k-th, the later of equals, under the tie rule ``exact_k``."""
        k = metadata.per_row("top_k")
        if self.own.tie_rule == "value" or k is None:
            return logits
        order = (
            logits.nan_to_num(-INFINITY, INFINITY, -INFINITY)
            .sort(dim=-1, descending=True, stable=True)
            .indices
        )
        place = order.argsort(-1)
        dropped = (place >= k.unsqueeze(-1)) & (k.unsqueeze(-1) > 0) & ~logits.isnan()
        return logits.masked_fill(dropped, -INFINITY)


def modest(effort, seed=0, verify=None, **promises):
    """Return the sampler and verifier as a subject of the kit.

    :param verify: fields of its capabilities beside those of the sampler; None: it verifies nothing.
    :param promises: fields of the capabilities that differ from native's.
    """
    capabilities = {"sample": replace(OFFERED["sample"], **promises)}
    if verify is not None:
        given = {name: getattr(OFFERED["verify"], name) for name in ("verify_modes", "draft_kinds")}
        capabilities["verify"] = VerifyCapabilities.of(capabilities["sample"], **given | verify)
    return Subject(
        "modest",
        capabilities=capabilities,
        device="cpu",
        build=lambda operation, need: Modest(operation, capabilities[operation], need),
        effort=effort,
        seed=seed,
    )


@pytest.mark.slow
@pytest.mark.parametrize("promises", PROMISES)
def test_a_sampler_and_a_verifier_get_advertised_calls_alone(promises):
    report = run(modest(LEAST, verify=DENSE, **PROMISES[promises]))
    assert [(line.name, line.detail) for line in report.failed] == []
    assert {"crossed requests", "last ids", "verify crossing"} <= {
        line.name for line in report.ended(Status.PASSED)
    }


def test_a_sampler_that_draws_while_it_is_built_may_be_built_by_any_line():
    subject = modest(Effort.tiny())

    def rehearsed(operation, need):
        torch.rand(3)
        return subject.built(operation, need)

    result = Subject(
        "rehearsed", capabilities=subject.capabilities, device="cpu", build=rehearsed, effort=subject.effort
    )
    (line,) = run(result, only="torch.manual_seed").lines
    assert line.status is Status.PASSED, line


# Not run


def line(subject, name):
    (result,) = run(subject, only=name).lines
    return result


def planted(sampler, name, capabilities):
    (result,) = sampler_mutant(sampler, capabilities=capabilities).look(name, effort=FEW)
    return result


@pytest.mark.parametrize(
    ("name", "promises", "reason"),
    [
        ("threads", {}, "needs compiled kernels, found an effort for interpreted ones"),
        (
            "noise of distant rows",
            {"max_vocab_size": 20},
            "needs a vocabulary in which few rows draw the same token, found a limit of 20",
        ),
        ("far NaN and infinities", {"max_vocab_size": 20}, "needs a vocabulary of 64, found a limit of 20"),
        ("verify crossing, wide", {}, "needs a vocabulary above 65,536, found an effort without one"),
        ("verify shared noise", {"max_vocab_size": 200}, "needs a vocabulary of 257, found a limit of 200"),
    ],
)
def test_a_line_that_finds_nothing_to_look_at_is_not_run(name, promises, reason):
    result = line(modest(TINY, verify=DENSE, **promises), name)
    assert (result.status, result.detail) == (Status.NOT_RUN, reason)


def test_a_line_without_a_call_is_not_run(monkeypatch):
    idle = Property(name="idle", about="Nothing.", check=lambda subject, trial: "0 rows", operation="sample")
    monkeypatch.setattr(running, "find", lambda name: OperationKit(view=SampleSubject, properties=(idle,)))
    result = running.check(modest(TINY), idle)
    assert result is not None
    assert (result.status, result.detail) == (Status.NOT_RUN, "needs a call to look at, found none: 0 rows")


# Batch invariance without seeds


class SecondInLargeBatches(SamplerMutant):
    """In more than 60 rows the largest token is passed over."""

    def change(self, logits, metadata):
        if len(logits) > 60:
            logits = logits.scatter(1, logits.argmax(1, keepdim=True), -torch.inf)
        return logits, metadata


def test_batch_invariance_needs_neither_greedy_rows_nor_logprobs():
    offered = Capabilities(batch_invariant=True)
    assert planted(SamplerMutant, "batch invariance", offered).status is Status.PASSED
    assert planted(SecondInLargeBatches, "batch invariance", offered).status is Status.FAILED


# fp64 noise without seeds


class OffInFloat64(SamplerMutant):
    """Built for float64 noise, the sampler draws at half the temperature."""

    def change(self, logits, metadata):
        return (logits * 2 if self.need.gumbel_dtype == "fp64" else logits), metadata


def test_the_second_noise_precision_without_seeds_is_judged_by_its_distribution():
    result = planted(SamplerMutant, "noise precision", UNSEEDED_NATIVE)
    assert (result.status, result.detail) == (
        Status.PASSED,
        "fp64, distribution of 11 rows; without seeds nothing tells float64 noise from float32",
    )
    assert result.checks == 11
    assert planted(OffInFloat64, "noise precision", UNSEEDED_NATIVE).status is Status.FAILED
    assert planted(OffInFloat64, "distribution", UNSEEDED_NATIVE).status is Status.PASSED


# Refused, and by operation


def report_of(capabilities=NATIVE, *lines, effort=None):
    subject = sampler_mutant(SamplerMutant, capabilities=capabilities).subject(effort=effort)
    return run(subject, only=lines or None)


@pytest.mark.gpu
def test_the_lines_of_a_device_are_green_without_a_bug():
    for mutant in CUDA_SAMPLERS:
        (result,) = sampler_mutant(SamplerMutant).look(*mutant.lines, device="cuda")
        assert result.status is Status.PASSED, result


@pytest.mark.slow
def test_a_sampler_without_capabilities_is_refused_everything_in_words():
    result = report_of(PLAIN, effort=FEW_DRAWS)
    assert result.failed == ()
    refused = {line.name: line.detail for line in result.lines if line.status is Status.REFUSED}
    (details,) = [line.detail for line in result.lines if line.name == "output"]
    assert details == "5 shapes; 21 requests beyond the capabilities refused"
    assert refused["graph capture"] == (
        "'SamplerMutant' cannot serve the operation 'sample' on cpu: the request needs graph-safe calls, found no "
        "such promise."
    )
    assert set(refused) == {"batch invariance", "sync-free", "graph capture"}


@pytest.mark.slow
def test_limits_are_served_up_to_and_refused_beyond():
    limited = replace(NATIVE, max_top_k=50, max_vocab_size=3000)
    result = report_of(limited, "limits", "last ids")
    assert result.failed == ()
    assert [line.name for line in result.lines] == ["limits", "last ids"]
    (words,) = [line.detail for line in result.lines if line.name == "limits"]
    assert "cannot serve top_k above 50, which" in words
    assert "the request needs a vocabulary of 3001, found a limit of 3000" in words


def test_lines_of_an_operation_are_listed_alone_and_all_in_the_order_of_operations():
    listed = [prop.name for name in operations.RECORDS for prop in tokendraw_testing.properties(name)]
    assert [prop.name for prop in tokendraw_testing.properties()] == listed
    assert {prop.operation for prop in tokendraw_testing.properties("score")} == {"score"}


def test_an_installed_plugin_of_a_single_operation_is_checked_by_its_lines(dists):
    dists.add_plugin("acme", deadly(operations=("process_logits",)))
    subject = Subject.installed("acme", device="cpu", quick=True)
    (line,) = run(subject, operation="process_logits", only="process crossing").lines
    assert line.status is Status.PASSED
    assert run(subject, operation="verify").lines == ()


# Expected failures


REASON = "acme issue 12: 32-bit ids"
PLUGIN = """
import tokendraw_native
from dataclasses import replace
from tokendraw.plugin import hookimpl

class Plugin(type(tokendraw_native.plugin)):
    @hookimpl
    def tokendraw_describe(self):
        info = super().tokendraw_describe()
        return replace(info, name="acme", expected_failures={"last ids": "acme issue 12: 32-bit ids"})

plugin = Plugin()
"""


class ShortIds(SamplerMutant):
    """Returns ids in a dtype that the contract does not have."""

    def output(self, output, *rest):
        return type(output)(token_ids=output.token_ids.int(), valid=output.valid)


def expecting(made, **reasons):
    under_test = sampler_mutant(made).subject(
        expected_failures={name.replace("_", " "): reason for name, reason in reasons.items()}
    )
    report = run(under_test, only="last ids", operation="sample")
    (line,) = report.lines
    return line.status, line.detail, report


def test_a_failure_that_is_expected_leaves_the_run_green_with_its_reason():
    status, detail, report = expecting(ShortIds, last_ids=REASON)
    assert (status, report.passed) == (Status.EXPECTED, True)
    assert detail.startswith(f"{REASON}; found: ")
    assert report.summary == "0 passed, 0 failed, 0 refused, 0 not run, 1 expected to fail"


def test_an_expected_failure_that_passes_is_an_error():
    status, detail, report = expecting(SamplerMutant, last_ids=REASON)
    assert (status, report.passed) == (Status.FAILED, False)
    assert detail == (
        f"needs to fail, as PluginInfo.expected_failures says ({REASON}), found it passed. Take it off that list"
    )


def test_what_the_kit_refuses_with_which_words(dists, tmp_path):
    dists.add_plugin("beta", plugin_of("beta", capabilities="dtypes=('float32',)"))
    installed = Subject.installed("native", device="cpu", quick=True)
    words = {
        "properties": tokendraw_testing.properties,
        "subject_of": lambda name, **need: Subject.installed(name, device="cpu", need=need),
        "checked": lambda *given, **options: check_filter(*given, device="cpu", **options),
        "written": lambda name="acme", **options: fake_dist(tmp_path / "written", name, **options),
        "expecting": lambda **reasons: expecting(SamplerMutant, **reasons),
        "only": lambda *names, **operation: run(installed, only=names, **operation),
        "with_jobs": lambda: run(sampler_mutant(SamplerMutant).subject(), jobs=2),
        "read_definition": read_definition,
    }
    table = call_tables.Table(__file__, "refusals.txt")
    assert table.found(lambda: dict(words)) == table.text
    assert not (tmp_path / "written").exists()


def test_the_list_of_an_installed_plugin_counts(tmp_path, monkeypatch):
    folder = fake_dist(
        tmp_path, "acme-tokendraw", plugins={"acme": "acme_plugin:plugin"}, modules={"acme_plugin": PLUGIN}
    )
    monkeypatch.syspath_prepend(folder)
    assert Subject.installed("acme", device="cpu").expected_failures == {"last ids": REASON}
