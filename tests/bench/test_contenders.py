"""Contenders of ``tokendraw bench``: plugins without companions, and baselines with the reference's kept set."""

import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch

from fake_dists import EVERYTHING, plugin
from tokendraw import SamplerUnavailableError, TokendrawError, discover
from tokendraw_bench.baselines import flashinfer_draw, torch_sort
from tokendraw_bench.cells import FILTERS, KINDS, Cell
from tokendraw_bench.contenders import BASELINES, select_contenders
from tokendraw_bench.logits import metadata_of
from tokendraw_bench.operations.sample import BENCH
from tokendraw_bench.run import make_inputs
from tokendraw_testing import reference

CPU = torch.device("cpu")
CELL = Cell(5, 300, "float32", "both", "gaussian")


def prepared(contender, cell=CELL, *, seeded=True):
    cell = replace(cell, seeded=seeded)
    (call,) = contender.prepare(cell, metadata_of(cell, CPU), make_inputs(cell, CPU, 1)[0])
    return call


def cell_of(filters, dtype="float32", batch=5):
    return Cell(batch, 300, dtype, filters, "gaussian")


def test_by_default_every_available_sampler_takes_part_and_every_baseline(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    dists.add_plugin("licensed", plugin("licensed", probe="'needs a licence, found none'"))
    assert [c.name for c in select_contenders((), CPU)] == ["acme", "native", "torch-sort"]


def test_named_contenders_come_in_the_order_of_their_names_and_once():
    assert [c.name for c in select_contenders(("torch-sort", "native", "torch-sort"), CPU)] == [
        "torch-sort",
        "native",
    ]


def test_a_contender_has_the_versions_of_all_distributions(dists):
    dists.add("acme-kernels", "3.1")
    upstream = "tokendraw.plugin.Upstream(distribution='acme-kernels', versions='>=3', tested=('3.1',))"
    dists.add_plugin("acme", plugin("acme", upstream=upstream), version="2.0")
    acme, baseline = select_contenders(("acme", "torch-sort"), CPU)
    assert acme.versions == {"acme-tokendraw": "2.0", "acme-kernels": "3.1"}
    assert baseline.versions == {"torch": torch.__version__}


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(TokendrawError) as error:
        select_contenders(("torch-srot",), CPU)
    installed = ", ".join(candidate.name for candidate in discover())
    assert str(error.value) == (
        f"'torch-srot' needs to be an installed sampler or a baseline, found {installed}, torch-sort, "
        "flashinfer-direct and flashinfer-unfused. Try: tokendraw bench --sampler torch-sort"
    )


def test_a_name_without_a_near_match_leads_to_the_list():
    with pytest.raises(TokendrawError, match=r" Try: tokendraw list$"):
        select_contenders(("greedy",), CPU)


@pytest.mark.parametrize(
    ("name", "operation", "reason"),
    [
        ("licensed", "sample", "needs a licence, found none"),
        ("acme", "verify", "needs the operation verify, found sample"),
        ("torch-sort", "verify", "needs the operation sample, found verify"),
        ("flashinfer-direct", "sample", "needs an NVIDIA GPU, found cpu"),
        ("flashinfer-direct", "verify", "needs an NVIDIA GPU, found cpu"),
    ],
)
def test_a_contender_of_another_machine_or_operation_gives_the_reason(dists, name, operation, reason):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    dists.add_plugin("licensed", plugin("licensed", probe="'needs a licence, found none'"))
    with pytest.raises(SamplerUnavailableError) as error:
        select_contenders((name,), CPU, operation)
    assert str(error.value) == f"'{name}' cannot be timed on cpu: {reason}."


@pytest.mark.parametrize(
    ("capabilities", "cell", "seeded", "reason"),
    [
        (EVERYTHING.replace("'counter'", "'launch'"), cell_of("none"), True, "seeded rows"),
        (
            EVERYTHING.replace("plugin.FILTERS)", "plugin.FILTERS if name != 'top_p')"),
            cell_of("both"),
            True,
            "top_p per row",
        ),
        (f"{EVERYTHING}, max_top_k=49", cell_of("mixed"), False, "top_k above 49"),
        (
            EVERYTHING.replace("tokendraw.plugin.FILTER_ORDERS", "('joint',)"),
            cell_of("both"),
            True,
            "filter order top_k_first",
        ),
    ],
)
def test_rows_beyond_the_capabilities_are_not_timed(dists, capabilities, cell, seeded, reason):
    dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    (acme,) = select_contenders(("acme",), CPU)
    with pytest.raises(SamplerUnavailableError) as error:
        prepared(acme, cell, seeded=seeded)
    assert str(error.value) == f"it does not serve {reason}"


def test_a_sampler_serves_cells_within_the_capabilities(dists):
    capabilities = EVERYTHING.replace("'counter'", "'launch'")
    dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
    (acme,) = select_contenders(("acme",), CPU)
    (logits,) = make_inputs(CELL, CPU, 1)
    call = prepared(acme, seeded=False)
    assert call.draw(logits).token_ids.tolist() == logits.argmax(-1).tolist()
    assert not call.graph_safe


def test_an_unsupported_dtype_is_a_reason(dists):
    dists.add_plugin("acme", plugin("acme", capabilities=EVERYTHING))
    (acme,) = select_contenders(("acme",), CPU)
    with pytest.raises(SamplerUnavailableError) as error:
        prepared(acme, cell_of("none", "bfloat16"))
    assert str(error.value) == "the request needs logits in bfloat16, found float32"


@pytest.mark.parametrize("filters", [f for f in FILTERS if f != KINDS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.fast_first
def test_tokens_of_the_pipeline_of_sorts_are_in_the_kept_set_of_the_reference(filters, dtype):
    """Logits without ties: the pipeline does not keep every tie."""
    cell = Cell(10, 300, dtype, filters, "gaussian")
    metadata = metadata_of(cell, CPU)
    logits = torch.stack([torch.randperm(300) for _ in range(10)]).mul(0.05).to(getattr(torch, dtype))
    if dtype == "bfloat16":
        logits = torch.stack([torch.randperm(300).sub(150).mul(1 / 8) for _ in range(10)]).bfloat16()
    (call,) = torch_sort(cell, metadata)
    kept = [
        set(reference.prepare(row, params).kept.nonzero()[0].tolist())
        for row, params in zip(logits.float().numpy(), cell.requests, strict=True)
    ]
    drawn = torch.stack([call.draw(logits) for _ in range(400)], 1).tolist()
    for row in range(10):
        assert set(drawn[row]) <= kept[row]
        if len(kept[row]) < 20:
            assert set(drawn[row]) >= {int(logits[row].argmax())}


def test_the_pipeline_of_sorts_draws_by_the_softmax_of_the_kept_set():
    cell = Cell(1, 300, "float32", "top-k", "gaussian")
    logits = torch.full((1, 300), -50.0)
    logits[0, [7, 200, 13]] = torch.tensor([2.0, 1.2, 0.4])
    (call,) = torch_sort(cell, metadata_of(replace(cell, seeded=False), CPU))
    counts = torch.bincount(torch.cat([call.draw(logits) for _ in range(4000)]), minlength=300)
    expected = 4000 * (logits / 0.8).softmax(-1)[0]
    assert (counts - expected).abs().max() < 5 * 4000**0.5 / 2


@pytest.fixture
def fake_flashinfer(monkeypatch):
    """Stand-in for FlashInfer's functions: logs each call and returns the probabilities."""
    calls = []
    package, module = types.ModuleType("flashinfer"), types.ModuleType("flashinfer.sampling")

    def note(name, rows=(), options=()):
        """Make a function of probabilities and a tensor for each of ``rows``, which logs its other arguments."""

        def noted(probs, **given):
            assert list(given) == [*rows, *options]
            calls.append((name, [_kind(given[row]) for row in rows], *(given[option] for option in options)))
            return probs

        first = inspect.Parameter("probs", inspect.Parameter.POSITIONAL_ONLY)
        named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in (*rows, *options)]
        noted.__signature__ = inspect.Signature([first, *named])
        return noted

    def softmax(logits, temperature):
        calls.append("softmax")
        return (logits / temperature[:, None]).softmax(-1)

    def install(*, takes_seed=True, fused=True):
        seed = ("seed", "offset") if takes_seed else ()
        module.softmax = softmax
        for name, rows in (
            ("sampling", ()),
            ("top_p_sampling", ("top_p",)),
            ("top_k_sampling", ("top_k",)),
            ("top_k_top_p_sampling", ("top_k", "top_p")),
            ("min_p_sampling", ("min_p",)),
        ):
            setattr(module, f"{name}_from_probs", note(name, rows, seed))
        module.sampling_from_logits = note("from_logits", (), seed)
        for name, rows in (("top_k_renorm_probs", "top_k"), ("top_p_renorm_probs", "top_p")):
            setattr(module, name, note(name, (rows,)))
        module.top_k_mask_logits = note("top_k_mask_logits", ("top_k",))
        if fused:
            options = ("top_k_max", "philox_seed", "philox_offset")
            package.cake_top_k_top_p_sampling_from_probs = note("cake", ("top_k", "top_p"), options)
        monkeypatch.setitem(sys.modules, "flashinfer", package)
        monkeypatch.setitem(sys.modules, "flashinfer.sampling", module)
        return calls

    return install


def _kind(value):
    return value.dtype if isinstance(value, torch.Tensor) else value


def drawn_by_flashinfer(calls, filters):
    """Map each way to its calls, for logits [5, 300]."""
    cell, found = cell_of(filters), {}
    for call in flashinfer_draw(cell, metadata_of(cell, CPU)):
        call.draw(torch.zeros(5, 300))
        found[call.way] = (*calls, call.graph_safe)
        calls.clear()
    return found


F, K = torch.float32, torch.int32


@pytest.mark.parametrize(
    ("filters", "called"),
    [
        (
            "none",
            {
                "softmax, sampling_from_probs": ("softmax", ("sampling", [], 1, 0)),
                "division by T, sampling_from_logits": (("from_logits", [], 1, 0),),
            },
        ),
        (
            "top-k",
            {
                "softmax, top_k_sampling_from_probs": ("softmax", ("top_k_sampling", [K], 1, 0)),
                "top_k_mask_logits, softmax, sampling_from_probs": (
                    ("top_k_mask_logits", [K]),
                    "softmax",
                    ("sampling", [], 1, 0),
                ),
                "softmax, cake_top_k_top_p_sampling_from_probs": ("softmax", ("cake", [K, 1.0], 50, 1, 0)),
            },
        ),
        (
            "top-p",
            {
                "softmax, top_p_sampling_from_probs": ("softmax", ("top_p_sampling", [F], 1, 0)),
                "softmax, top_p_renorm_probs, sampling_from_probs": (
                    "softmax",
                    ("top_p_renorm_probs", [F]),
                    ("sampling", [], 1, 0),
                ),
            },
        ),
        (
            "both",
            {
                "softmax, top_k_top_p_sampling_from_probs": (
                    "softmax",
                    ("top_k_top_p_sampling", [K, F], 1, 0),
                ),
                "top_k_mask_logits, softmax, top_p_sampling_from_probs": (
                    ("top_k_mask_logits", [K]),
                    "softmax",
                    ("top_p_sampling", [F], 1, 0),
                ),
                "softmax, cake_top_k_top_p_sampling_from_probs": ("softmax", ("cake", [K, F], 50, 1, 0)),
            },
        ),
        ("min-p", {"softmax, min_p_sampling_from_probs": ("softmax", ("min_p_sampling", [F], 1, 0))}),
        (
            "mixed",
            {
                "softmax, top_k_renorm_probs, top_p_renorm_probs, min_p_sampling_from_probs": (
                    "softmax",
                    ("top_k_renorm_probs", [K]),
                    ("top_p_renorm_probs", [F]),
                    ("min_p_sampling", [F], 1, 0),
                )
            },
        ),
    ],
)
def test_every_way_of_flashinfer_to_draw_for_the_filters_is_called(fake_flashinfer, filters, called):
    found = drawn_by_flashinfer(fake_flashinfer(), filters)
    assert found == {way: (*steps, True) for way, steps in called.items()}


def test_a_flashinfer_without_the_fused_sampler_has_the_remaining_ways(fake_flashinfer):
    found = drawn_by_flashinfer(fake_flashinfer(fused=False), "both")
    assert list(found) == [
        "softmax, top_k_top_p_sampling_from_probs",
        "top_k_mask_logits, softmax, top_p_sampling_from_probs",
    ]


def test_ways_without_the_fused_sampler_compile_nothing_for_a_shape(fake_flashinfer):
    fake_flashinfer()
    cell = cell_of("both")
    calls = BENCH.baselines()["flashinfer-unfused"](cell, metadata_of(cell, CPU))
    assert [call.way for call in calls] == [
        "softmax, top_k_top_p_sampling_from_probs",
        "top_k_mask_logits, softmax, top_p_sampling_from_probs",
    ]


def test_a_flashinfer_without_a_seed_stays_out_of_graphs(fake_flashinfer):
    found = drawn_by_flashinfer(fake_flashinfer(takes_seed=False), "top-p")
    assert list(found.values()) == [
        ("softmax", ("top_p_sampling", [F]), False),
        ("softmax", ("top_p_renorm_probs", [F]), ("sampling", []), False),
    ]


def test_no_baseline_has_the_name_of_a_sampler():
    from tokendraw.backends.resolution.admission import FIRST_PARTY

    assert not {baseline.name for baseline in BASELINES} & set(FIRST_PARTY)
