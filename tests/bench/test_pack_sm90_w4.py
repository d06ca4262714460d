"""``tokendraw bench --op pack_sm90_w4``: cells, input bytes, calls, and a run of the command."""

import pytest
import torch

import tokendraw
import tokendraw_native
from command_line import call
from tokendraw.plugin import Sm90W4Capabilities
from tokendraw_bench import make_inputs, operations
from tokendraw_bench.contenders import find_unsupported_part, select_contenders
from tokendraw_bench.operations.pack_sm90_w4 import PackCell

CPU = torch.device("cpu")
BENCH = operations.get("pack_sm90_w4")
KINDS = [
    (format_, layout, direction)
    for format_ in ("fp4", "int4", "fp4_fp8", "scales")
    for layout in ("v1", "v2")
    for direction in ("pack", "unpack")
    if (format_, layout) != ("fp4_fp8", "v1")
]


def cell_of(format_, layout, direction):
    return PackCell(2, 64, 256, format_, layout, direction)


class TestCells:
    def test_the_design_grid_has_the_weights_of_gpt_oss_in_every_form(self):
        shapes = {
            "v1": {"fp4": 2880, "int4": 2880, "scales": 2944},
            "v2": {"fp4": 2944, "int4": 2944, "fp4_fp8": 2944, "scales": 2944},
        }
        assert set(BENCH.grid("design")) == {
            PackCell(32, 5760, shapes[layout][format_], format_, layout, direction)
            for format_, layout, direction in KINDS
        }

    def test_the_quick_grid_takes_seconds_on_a_laptop(self):
        assert [str(cell) for cell in BENCH.grid("quick")] == [
            "2 x 256 x 256 fp4, pack v1",
            "2 x 256 x 256 fp4, unpack v1",
            "2 x 256 x 256 fp4, pack v2",
            "2 x 256 x 256 fp4, unpack v2",
            "2 x 256 x 256 scales, pack v1",
            "2 x 256 x 256 scales, unpack v1",
            "2 x 256 x 256 scales, pack v2",
            "2 x 256 x 256 scales, unpack v2",
        ]

    @pytest.mark.parametrize("preset", BENCH.presets)
    def test_no_cell_of_a_preset_is_refused(self, preset):
        """The call of a cell is checked on tensors without memory."""
        meta, record = torch.device("meta"), tokendraw.operations.find_operation("pack_sm90_w4")
        for cell in BENCH.grid(preset):
            named = {} if cell.format == "scales" else {"format": cell.format}
            given = torch.empty(cell.shape, dtype=torch.uint8, device=meta)
            record.calls()[cell.method](given, layout=cell.layout, **named).check(meta, record.need())


class TestInputs:
    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_bytes_have_the_shape_of_the_call_and_are_the_same_in_every_run(self, kind):
        cell = cell_of(*kind)
        first, second = make_inputs(cell, CPU, 2)
        assert (tuple(first.shape), first.dtype, first.nbytes) == (cell.shape, torch.uint8, cell.nbytes)
        assert first.max() > 240
        assert not torch.equal(first, second)
        assert all(map(torch.equal, (first, second), make_inputs(cell, CPU, 2)))

    def test_the_copy_is_of_the_bytes_of_the_turn(self):
        first, second = make_inputs(cell_of("fp4", "v1", "pack"), CPU, 2)
        ((_, copy),) = BENCH.floor.passes(first).items()
        assert torch.equal(copy.draw(second), second)


class TestCall:
    @pytest.mark.parametrize("kind", KINDS, ids=str)
    @pytest.mark.fast_first
    def test_a_call_packs_or_unpacks(self, kind):
        cell = cell_of(*kind)
        (given,) = make_inputs(cell, CPU, 1)
        (native,) = select_contenders(("native",), CPU, "pack_sm90_w4")
        (one,) = native.prepare(cell, BENCH.arguments(cell, CPU), given)
        packer = tokendraw.load("pack_sm90_w4", "native", device="cpu")
        format_, layout, direction = kind
        what, named = ("scales", {}) if format_ == "scales" else ("weights", {"format": format_})
        back = {"pack": "unpack", "unpack": "pack"}[direction]
        found = one.draw(given)
        assert not torch.equal(found.flatten(), given.flatten())
        assert torch.equal(getattr(packer, f"{back}_{what}")(found, layout=layout, **named), given)
        capabilities = tokendraw_native.plugin.tokendraw_describe().operations["pack_sm90_w4"]
        assert one.graph_safe == capabilities.graph_safe

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            (("fp4", "v1", "pack"), None),
            (("fp4", "v2", "pack"), "the layout v2"),
            (("int4", "v1", "pack"), "the format int4"),
            (("fp4", "v1", "unpack"), "unpacking"),
            (("scales", "v1", "pack"), None),
            (("scales", "v2", "pack"), "the layout v2"),
            (("scales", "v1", "unpack"), "unpacking"),
        ],
        ids=str,
    )
    def test_a_call_beyond_the_capabilities_is_not_timed(self, kind, reason):
        capabilities = Sm90W4Capabilities(formats=("fp4",), layouts=("v1",))
        cell = cell_of(*kind)
        (given,) = make_inputs(cell, CPU, 1)
        assert find_unsupported_part(BENCH, capabilities, cell, None, given) == reason


def bench(*arguments):
    return call("bench", "--op", "pack_sm90_w4", "--device", "cpu", "--sampler", "native", *arguments)


TINY = ("--experts", 1, "--rows", 64, "--columns", 128)


class TestCommand:
    def test_a_run_has_a_row_a_cell(self, fixed):
        result = bench(*TINY, "--format", "fp4", "--format", "scales")
        assert (result.stderr, result.exit_code) == ("", 0)
        assert result.stdout.splitlines()[1:] == [
            "Medians of 15, in turns; a clock that stands. In brackets the ratio to the copy; ± half the distance",
            "of the quartiles, where it is over 5 %.",
            "",
            "experts  rows  columns  format  layout  direction  bytes  copy us      native us",
            "      1    64      128  fp4     v1      pack       4,096      4.0  100.0 (25.0x)",
            "      1    64      128  fp4     v1      unpack     4,096      4.0  100.0 (25.0x)",
            "      1    64      128  scales  v1      pack         256      4.0  100.0 (25.0x)",
            "      1    64      128  scales  v1      unpack       256      4.0  100.0 (25.0x)",
            "      1    64      128  fp4     v2      pack       4,096      4.0  100.0 (25.0x)",
            "      1    64      128  fp4     v2      unpack     4,096      4.0  100.0 (25.0x)",
            "      1    64      128  scales  v2      pack         256      4.0  100.0 (25.0x)",
            "      1    64      128  scales  v2      unpack       256      4.0  100.0 (25.0x)",
            "",
            "The copy is of the bytes that go in, by torch.Tensor.copy_.",
        ]

    def test_an_unknown_combination_shows_a_dash_and_the_reason(self):
        result = bench(*TINY, "--format", "fp4_fp8", "--layout", "v1", "--direction", "pack", "--repeats", 3)
        assert result.exit_code == 1
        assert result.stdout.splitlines()[-2:] == [
            "native: InvalidParameterError: 'format' needs fp4 or int4 in the layout v1, found 'fp4_fp8'. Use the",
            "layout v2 (1 of 1 cells).",
        ]
