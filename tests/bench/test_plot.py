"""The picture of ``tokendraw bench``: a panel for each kind of cell, with the read drawn in."""

import subprocess
import sys

import pytest

from tokendraw import InvalidParameterError
from tokendraw_bench.cells import Cell
from tokendraw_bench.report import plot as _plot
from tokendraw_bench.report.lines import BenchReport, CellResult
from tokendraw_bench.timing.timer import Failure, Timing

NEEDS = "matplotlib is not installed; pip install 'tokendraw-bench[plot]'"


def timing(us):
    return Timing(us=us, q1_us=us, q3_us=us, host_us=None, how="wall clock")


def report(shapes=((64, 32_000), (1, 32_000), (8, 32_000)), families=("flat",)):
    lines = [
        CellResult(
            cell=Cell(batch, vocab_size, "float32", filters, family),
            figures={"nucleus": 28_000.0},
            buffers=2,
            floor=timing(10.0 * batch),
            floor_by="torch.sum",
            entries={
                "acme": Failure(reason="it does not serve seeded rows")
                if batch == 8
                else timing(11.0 * batch),
                "torch-sort": timing(300.0 * batch),
            },
        )
        for batch, vocab_size in shapes
        for family in families
        for filters in ("none", "both")
    ]
    return BenchReport(
        command="tokendraw bench",
        device="cpu",
        host="cpu of a laptop",
        method="wall clock",
        repeats=15,
        threads=2,
        versions={},
        contenders=("acme", "torch-sort"),
        lines=tuple(lines),
        seconds=1.0,
    )


@pytest.mark.slow
def test_without_matplotlib_one_sentence_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from tokendraw.cli import main; main(['bench', '--plot', 'times.svg', '--device', 'cpu'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert (result.stdout, result.stderr, result.returncode) == (
        "",
        "'--plot' needs matplotlib, found it not installed; run `pip install './bench[plot]'` in tokendraw's "
        "checkout.\n",
        1,
    )


@pytest.mark.slow
def test_a_file_of_no_known_format_is_refused_before_anything_is_timed(tmp_path):
    pytest.importorskip("matplotlib", reason=NEEDS)
    with pytest.raises(InvalidParameterError) as error:
        _plot.check(tmp_path / "times.xls")
    words, _, found = str(error.value).partition(", found ")
    assert words.startswith("'--plot' needs a file that ends in .")
    assert {".pdf", ".png", ".svg"} <= set(words.replace(",", "").split())
    assert found == f"'{tmp_path / 'times.xls'}'."


@pytest.mark.parametrize("suffix", ["png", "svg", "PDF"])
@pytest.mark.fast_first
def test_the_picture_is_written_in_the_format_of_its_name(tmp_path, suffix):
    pytest.importorskip("matplotlib", reason=NEEDS)
    path = tmp_path / f"times.{suffix}"
    _plot.check(path)
    _plot.draw(report(), path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "PDF": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_the_panels_hold_the_read_and_every_contender_by_batch():
    pytest.importorskip("matplotlib", reason=NEEDS)
    figure = _plot.figure_of(report())
    assert [axes.get_title() for axes in figure.axes] == [
        "V = 32000, float32\nnone, flat",
        "V = 32000, float32\nboth, flat",
    ]
    for axes in figure.axes:
        drawn = {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}
        assert list(drawn) == ["read of the logits", "acme", "torch-sort"]
        assert drawn["read of the logits"] == {1: 10.0, 8: 80.0, 64: 640.0}
        assert drawn["acme"][64] == 704.0
        assert drawn["acme"][8] != drawn["acme"][8], "a gap where there is no time"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["read of the logits", "acme", "torch-sort"]


def test_shapes_whose_batches_differ_share_panels_and_families_stand_next_to_each_other():
    pytest.importorskip("matplotlib", reason=NEEDS)
    figure = _plot.figure_of(report(shapes=((64, 128_256), (256, 151_936)), families=("peaked-7", "flat")))
    assert [axes.get_title() for axes in figure.axes] == [
        "float32\nnone, peaked-7",
        "float32\nnone, flat",
        "float32\nboth, peaked-7",
        "float32\nboth, flat",
    ]
    assert [axes.get_subplotspec().colspan.start for axes in figure.axes] == [0, 1, 0, 1]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.get_xticklabels()] == ["64\nx 128k", "256\nx 152k"]


def test_vocabularies_of_one_batch_have_panels_of_their_own():
    pytest.importorskip("matplotlib", reason=NEEDS)
    figure = _plot.figure_of(report(shapes=((64, 32_000), (64, 128_256))))
    assert [axes.get_title().partition(",")[0] for axes in figure.axes] == ["V = 32000"] * 2 + [
        "V = 128256"
    ] * 2
