"""Prints reports on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tokendraw.commands import PIPE_WIDTH

if TYPE_CHECKING:
    from tokendraw_bench.report.lines import BenchReport


def print_head(sentences: Sequence[str]) -> None:
    """Print what a run ran on, and how."""
    for sentence in sentences:
        click.echo(textwrap.fill(sentence, PIPE_WIDTH))
    click.echo()


def print_table(report: BenchReport) -> None:
    """Print the table of a report and its notes."""
    from tokendraw_bench.report.table import as_text

    for row in as_text(report):
        click.echo(row)
    click.echo()
    for note in report.notes:
        click.echo(textwrap.fill(note, PIPE_WIDTH))
