"""Contenders of ``tokendraw bench``: plugins without companions, and baselines with the reference's kept set."""

import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch

import tokendraw
from fake_dists import EVERYTHING, plugin
from tokendraw import Drafts, SamplerUnavailableError
from tokendraw_bench import make_inputs, metadata_of, operations
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
    def test_by_default_every_available_plugin_takes_part_and_every_baseline_and_each_has_its_versions(
        self, dists
    ):
        dists.add("acme-kernels", "3.1")
        upstream = "tokendraw.plugin.Upstream(distribution='acme-kernels', versions='>=3', tested=('3.1',))"
        source = plugin("acme", capabilities=EVERYTHING, upstream=upstream)
        dists.add_plugin("acme", source, version="2.0")
        dists.add_plugin("absent", plugin("absent", probe="'needs a licence, found none'"))
        names = {n: [c.name for c in select_contenders((), CPU, n)] for n in operations.NAMES}
        assert names == {
            "sample": ["acme", "native", "torch-sort"],
            "verify": ["native"],
            "process_logits": ["native", "torch-dense"],
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


FUSED = "cake_top_k_top_p_sampling_from_probs"
FILTERS_OF_A_ROW = {"top_k": (torch.int32, 50), "top_p": (torch.float32, 0.9), "min_p": (torch.float32, 0.05)}


WAYS = {"none": (2, 1), "top-k": (3, 2), "top-p": (2, 1), "both": (3, 2), "min-p": (1, 0), "mixed": (1, 0)}
"""How many ways there are to draw under the filters, and to verify."""


class FlashInfer:
    """Stand-in for FlashInfer: logs each call, whose filters have to be tensors by row, and returns the first value."""

    def __init__(self, patch, *, seed=("seed", "offset"), fused=True):
        self.calls = []
        package, module = types.ModuleType("flashinfer"), types.ModuleType("flashinfer.sampling")
        patch.setitem(sys.modules, "flashinfer", package)
        patch.setitem(sys.modules, "flashinfer.sampling", module)
        for name in (
            *("top_k_mask_logits", "top_k_renorm_probs", "top_p_renorm_probs"),
            *("sampling_from_logits", "sampling_from_probs", "chain_speculative_sampling"),
            *(f"{name}_sampling_from_probs" for name in ("top_k", "top_p", "top_k_top_p", "min_p")),
        ):
            self._add(module, name, *(seed if "sampling" in name else ()))
        self._add(module, "softmax", "temperature")
        if fused:
            self._add(package, FUSED, "top_k_max", "philox_seed", "philox_offset")

    def _add(self, module, name, *options):
        def function(*values, **given):
            self.calls.append((name, values, given))
            assert set(given) == {*parameters, *options}, name
            for parameter in parameters:
                dtype, value = FILTERS_OF_A_ROW[parameter]
                rows = given[parameter]
                if isinstance(rows, torch.Tensor):
                    assert (rows.dtype, rows.shape) == (dtype, values[0].shape[:1]), name
                    assert (rows - value).abs().min() < 1e-6, name
                else:
                    assert (name, rows) == (FUSED, 1.0)
            if name == "softmax":
                return (values[0].float() / given["temperature"][:, None]).softmax(-1)
            return values[0]

        parameters = [parameter for parameter in FILTERS_OF_A_ROW if parameter in name]
        named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in (*parameters, *options)]
        function.__signature__ = inspect.Signature(named)
        setattr(module, name, function)

    def drawn(self, cell, name="flashinfer-direct"):
        """Yield each way to serve a cell: the call, the names of the functions that it calls, and their arguments."""
        bench, (logits,) = operations.get(cell.operation), make_inputs(cell, CPU, 1)
        for call in bench.baselines()[name](cell, bench.arguments(cell, CPU)):
            self.calls.clear()
            call.draw(logits)
            yield call, [name for name, *_ in self.calls], [*self.calls]


class TestFlashInfer:
    @pytest.mark.parametrize(
        ("cell", "filters", "ways"),
        [(CELL, filters, ways) for filters, (ways, _) in WAYS.items()]
        + [(VERIFIED, filters, ways) for filters, (_, ways) in WAYS.items() if ways],
        ids=str,
    )
    def test_each_way_applies_every_filter_of_the_rows_once_and_draws_in_a_graph(
        self, monkeypatch, cell, filters, ways
    ):
        cell = replace(cell, filters=filters)
        asked = [
            name
            for name, (_, value) in FILTERS_OF_A_ROW.items()
            if any(getattr(r, name) == value for r in cell.requests)
        ]
        found = [*FlashInfer(monkeypatch).drawn(cell)]
        assert len({call.way for call, *_ in found}) == len(found) == ways
        for call, names, calls in found:
            given = [(name, value) for *_, options in calls for name, value in options.items()]
            assert sorted(
                name for name, value in given if name in asked and isinstance(value, torch.Tensor)
            ) == sorted(asked)
            assert [step for step in call.way.split(", ") if step != "division by T"] == names
            assert (call.graph_safe, "sampling" in names[-1]) == (True, True)
            fused = {"top_k_max": 50, "philox_seed": 1, "philox_offset": 0}
            expected = fused if names[-1] == FUSED else {"seed": 1, "offset": 0}
            assert {name: value for name, value in given if name in expected} == expected
