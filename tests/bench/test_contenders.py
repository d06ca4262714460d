"""Contenders of ``tokendraw bench``: plugins without companions, and baselines with the reference's kept set."""

import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, plugin
from tokendraw import Drafts, SamplerUnavailableError, SamplingParams
from tokendraw_bench import make_inputs, metadata_of, operations
from tokendraw_bench.baselines import CHAIN_WAYS, DRAW_WAYS
from tokendraw_bench.cells import FILTERS, KINDS, Cell
from tokendraw_bench.contenders import select_contenders
from tokendraw_bench.operations.process_logits import BOTH, ProcessCell
from tokendraw_bench.operations.verify import VerifyCell, draft_ids
from tokendraw_testing import reference

CPU = torch.device("cpu")
CELL = Cell(5, 300, "float32", "both", "gaussian")
VERIFIED = VerifyCell(3, 300, "float32", "both", "peaked-7", 4, "rejection")
COUPLED = replace(VERIFIED, mode="coupled")
EDITED = ProcessCell(3, 3200, "bfloat16", "all", 40)
UNSEEDING = EVERYTHING.replace("'counter'", "'launch'")


def prepared(name, cell, logits=None):
    """Return the call of a contender for a cell, and its logits."""
    logits = make_inputs(cell, CPU, 1)[0] if logits is None else logits
    (contender,) = select_contenders((name,), CPU, cell.operation)
    arguments = operations.get(cell.operation).arguments(cell, CPU)
    (call,) = contender.prepare(cell, arguments, logits)
    return call, logits


class TestSelection:
    def test_by_default_every_available_plugin_and_every_baseline_takes_part(self, dists):
        dists.add("acme-kernels", "3.1")
        upstream = "tokendraw.plugin.Upstream(distribution='acme-kernels', versions='>=3', tested=('3.1',))"
        source = plugin("acme", capabilities=EVERYTHING, upstream=upstream)
        dists.add_plugin("acme", source, version="2.0")
        dists.add_plugin("absent", plugin("absent", probe="'needs a licence, found none'"))
        names = {n: [c.name for c in select_contenders((), CPU, n)] for n in operations.NAMES}
        assert names == {
            "sample": ["acme", "native", "torch-sort"],
            "verify": ["native"],
            "process_logits": ["native"],
        }
        baseline, acme = select_contenders(("torch-sort", "acme", "torch-sort"), CPU)
        assert acme.versions == {"acme-tokendraw": "2.0", "acme-kernels": "3.1"}
        assert baseline.versions == {"torch": torch.__version__}


REFUSED = [
    (UNSEEDING, {}, "it does not serve seeded rows"),
    (f"{EVERYTHING}, max_top_k=49", {"filters": "mixed"}, "it does not serve top_k above 49"),
]


class TestPlugins:
    @pytest.mark.parametrize(("capabilities", "changes", "reason"), REFUSED, ids=range(len(REFUSED)))
    def test_rows_beyond_the_capabilities_are_not_timed(self, dists, capabilities, changes, reason):
        dists.add_plugin("acme", plugin("acme", capabilities=capabilities))
        with pytest.raises(SamplerUnavailableError) as error:
            prepared("acme", replace(CELL, **changes))
        assert str(error.value) == reason

    @pytest.mark.parametrize("filters", ["both", "kinds"])
    @pytest.mark.parametrize("cell", [VERIFIED, COUPLED], ids=["rejection", "coupled"])
    @pytest.mark.fast_first
    def test_the_call_is_the_verification_of_the_requests_of_the_cell(self, cell, filters):
        cell = replace(cell, filters=filters)
        call, buffer = prepared("native", cell)
        metadata = metadata_of(cell, CPU)
        assert metadata.row_index.tolist() == [0] * 5 + [1] * 5 + [2] * 5
        q = {"draft_logits": buffer[15:]} if cell.mode == "rejection" else {}
        drafts = Drafts.from_lists(draft_ids(cell, CPU).view(3, 4).tolist(), **q)
        sampler = tokendraw.load_sampler("native", device="cpu")
        torch.manual_seed(1)
        expected = sampler.verify(buffer[:15], drafts, metadata, mode=cell.mode)
        torch.manual_seed(1)
        found = call.draw(buffer)
        assert torch.equal(found.token_ids, expected.token_ids)
        assert torch.equal(found.num_accepted, expected.num_accepted)
        assert call.graph_safe

    def test_special_rows_are_drawn_by_the_companion(self, dists):
        dists.add_plugin("acme", plugin("acme", capabilities=UNSEEDING))
        (both,) = select_contenders(("acme+native",), CPU)
        assert both.name == "acme+native"
        assert set(both.versions) >= {"acme-tokendraw", "tokendraw-native"}
        cell = replace(CELL, special="seeded", top_k=0, top_p=1.0)
        divided, logits = prepared("acme+native", cell)
        whole, _ = prepared("native", cell)
        tokens, valid, _ = divided.draw(logits)
        assert tokens[0] == whole.draw(logits).token_ids[0]
        assert tokens[1:].tolist() == logits[1:].argmax(-1).tolist()  # as the plugin of the tests draws
        assert (bool(valid.all()), divided.graph_safe, whole.graph_safe) == (True, False, True)

    def test_a_call_edits_the_buffer_in_a_graph_with_the_facts_of_its_requests_or_of_any(self):
        (native,), results = select_contenders(("native",), CPU, "process_logits"), []
        for graph in ("requested", "any"):
            cell = replace(EDITED, edits=BOTH, graph=graph)
            (logits,) = make_inputs(cell, CPU, 1)
            arguments = operations.get("process_logits").arguments(cell, CPU)
            (call,) = native.prepare(cell, arguments, logits)
            assert (call.graph_safe, logits.nbytes, call.draw(logits) is logits) == (True, cell.nbytes, True)
            assert 0.4 < (logits == float("-inf")).float().mean() < 0.6
            results.append((logits, arguments.slots.captured_edits))
        (one, requested), (other, any_edit) = results
        assert torch.equal(one, other)
        assert requested != any_edit


class TestBaselines:
    @pytest.mark.parametrize("filters", [f for f in FILTERS if f != KINDS])
    @pytest.mark.parametrize(("dtype", "step"), [("float32", 0.05), ("bfloat16", 1 / 8)])
    @pytest.mark.fast_first
    def test_tokens_of_the_pipeline_of_sorts_are_in_the_kept_set_of_the_reference(self, filters, dtype, step):
        """Logits without ties: the pipeline does not keep every tie."""
        cell = Cell(10, 300, dtype, filters, "gaussian")
        logits = torch.stack([torch.randperm(300).sub(150).mul(step) for _ in range(10)])
        call, logits = prepared("torch-sort", cell, logits.to(getattr(torch, dtype)))
        drawn = torch.stack([call.draw(logits) for _ in range(400)], 1).tolist()
        for row, params, tokens in zip(logits.float().numpy(), cell.requests, drawn, strict=True):
            kept = set(reference.prepare(row, params).kept.nonzero()[0].tolist())
            assert {int(row.argmax())} <= set(tokens) <= kept


FILTERS_OF_A_ROW = {"top_k": (torch.int32, 50), "top_p": (torch.float32, 0.9), "min_p": (torch.float32, 0.05)}
WAYS = {"none": (2, 1), "top-k": (4, 2), "top-p": (2, 1), "both": (4, 2), "min-p": (1, 0), "mixed": (1, 0)}
"""How many ways there are to draw under the filters, and to verify."""
NAMES = {
    name for ways in (DRAW_WAYS, CHAIN_WAYS) for each in ways.values() for way in each for name in way
} - {"division by T"}


@pytest.fixture
def called(monkeypatch):
    """The calls of FlashInfer's functions by name, with what is named; each returns the first value."""
    calls = []

    def function(name):
        def call(*values, **given):
            calls.append((name, given, len(values[0])))
            return values[0]

        seeds = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in ("seed", "offset")]
        call.__signature__ = inspect.Signature(seeds if "sampling" in name else ())
        return call

    made = {name: function(name) for name in NAMES}
    monkeypatch.setitem(sys.modules, "flashinfer", types.SimpleNamespace(**made))
    monkeypatch.setitem(sys.modules, "flashinfer.sampling", types.SimpleNamespace(**made))
    return calls


@pytest.mark.parametrize(
    ("cell", "filters", "ways"),
    [(CELL, filters, ways) for filters, (ways, _) in WAYS.items()]
    + [(VERIFIED, filters, ways) for filters, (_, ways) in WAYS.items() if ways],
    ids=str,
)
def test_each_way_through_flashinfer_applies_every_filter_once_in_a_graph(called, cell, filters, ways):
    cell = replace(cell, filters=filters)
    bench, (logits,) = operations.get(cell.operation), make_inputs(cell, CPU, 1)
    asked = [
        name
        for name, (_, value) in FILTERS_OF_A_ROW.items()
        if any(getattr(request, name) == value for request in cell.requests)
    ]
    found = bench.baselines()["flashinfer-direct"](cell, bench.arguments(cell, CPU))
    assert len({call.way for call in found}) == len(found) == ways
    for call in found:
        called.clear()
        call.draw(logits)
        assert [name for name, *_ in called] == [
            step for step in call.way.split(", ") if step != "division by T"
        ]
        given = [(key, value, rows) for _, named, rows in called for key, value in named.items()]
        tensors = [each for each in given if each[0] in asked and isinstance(each[1], torch.Tensor)]
        assert sorted(key for key, *_ in tensors) == sorted(asked)
        for key, values, rows in tensors:
            dtype, value = FILTERS_OF_A_ROW[key]
            assert (values.dtype, values.shape) == (dtype, (rows,))
            assert (values - value).abs().min() < 1e-6
        is_fused = "top_k_max" in called[-1][1]
        expected = (
            {"top_k_max": 50, "philox_seed": 1, "philox_offset": 0} if is_fused else {"seed": 1, "offset": 0}
        )
        assert {key: value for key, value, _ in given if key in expected} == expected
        assert call.graph_safe


@pytest.mark.parametrize("filters", [f for f in FILTERS if f != KINDS])
def test_vllms_kernels_filter_scaled_logits_and_draw_with_the_noise_of_each_row(monkeypatch, filters):
    """With functions of vLLM's names and parameters in plain torch; benchmarks/results/h200_peers.md has its own."""
    drawn = []

    def keep(x, k, p, has_topp_only_rows):
        assert has_topp_only_rows or bool((k < x.shape[1]).all())
        for row, values in enumerate(x):
            params = SamplingParams(
                top_k=0 if k is None else int(k[row]), top_p=1 if p is None else float(p[row])
            )
            kept = torch.from_numpy(reference.prepare(values.numpy(), params).kept)
            x[row] = values.where(kept, -torch.inf)
        return x

    def sample(x, slots, temperature, seeds, positions, *, apply_temperature, is_drafting):
        drawn.append(x)
        assert (apply_temperature, is_drafting, len(set(seeds.tolist()))) == (False, False, len(x))
        return x.argmax(-1)

    functions = {
        "worker.gpu.sample.gumbel": {
            "apply_temperature": lambda x, slots, t: x.div_(t[slots, None]),
            "gumbel_sample": sample,
        },
        "worker.gpu.sample.min_p": {
            "apply_min_p": lambda x, slots, m: x.masked_fill_(
                x < x.amax(1, True) + m[slots, None].log(), -torch.inf
            )
        },
        "sample.ops.topk_topp_triton": {"apply_top_k_top_p_triton": keep},
    }
    for name, made in functions.items():
        monkeypatch.setitem(sys.modules, f"vllm.v1.{name}", types.SimpleNamespace(**made))
    cell = Cell(10, 300, "bfloat16", filters, "gaussian")
    logits = torch.stack([torch.randperm(300).sub(150).div(8) for _ in range(10)]).bfloat16()
    (call,) = operations.get("sample").baselines()["vllm-direct"](cell, metadata_of(cell, CPU))
    before = logits.clone()
    assert call.draw(logits).tolist() == logits.argmax(-1).tolist()
    assert torch.equal(logits, before)
    for row, x, params in zip(logits.float().numpy(), drawn[0], cell.requests, strict=True):
        assert x.isfinite().tolist() == reference.prepare(row, params).kept.tolist()
