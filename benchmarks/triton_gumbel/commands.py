"""The command line, with a command for each table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agree
import chains
import click
import step
import torch
from click.core import ParameterSource
from setting import Findings, Setting

from tokendraw import SamplerUnavailableError
from tokendraw.plugin import GUMBEL_DTYPES

_OPTIONS = (
    click.option(
        "--sampler",
        default="triton-gumbel",
        show_default=True,
        metavar="NAME",
        help="The sampler.",
    ),
    click.option(
        "--reference",
        default="native",
        show_default=True,
        metavar="NAME",
        help="The sampler to compare with.",
    ),
    click.option("--device", default="cuda", show_default=True, metavar="DEVICE"),
    click.option(
        "--small", is_flag=True, help="Seconds on a CPU: shows that the command works, and no more."
    ),
    click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE"),
)


@click.group()
def main() -> None:
    """Compare triton-gumbel with the reference on a GPU; each command prints a table in Markdown."""


def _command(name: str, run: Callable[..., Findings], *extra: Callable[[Any], Any]) -> None:
    @click.pass_context
    def command(
        ctx: click.Context,
        sampler: str,
        reference: str,
        device: str,
        small: bool,
        output: Path | None,
        **options: Any,
    ) -> None:
        target = torch.device(device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        setting = Setting(sampler=sampler, reference=reference, device=target, small=small)
        with torch.no_grad():
            try:
                findings = run(setting, **options)
            except SamplerUnavailableError as error:
                findings = Findings(text=str(error), holds=False)
        text = f"`{_given(ctx)}`\n\n{setting.head}\n\n{findings.text}\n"
        click.echo(text)
        if output is not None:
            output.write_text(text, encoding="utf-8")
        if not findings.holds:
            ctx.exit(1)

    described: Any = command
    text = sys.modules[run.__module__].__doc__ or ""
    described.__doc__ = text.replace("\n\n    ", "\n\n\b\n    ")  # click leaves such a line as it is
    for option in (*reversed(_OPTIONS), *extra):
        described = option(described)
    main.command(name)(described)


def _given(ctx: click.Context) -> str:
    """Write the command line of this run."""
    words = ["python", "benchmarks/triton_gumbel", str(ctx.info_name)]
    for option in ctx.command.params:
        name = str(option.name)
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = ctx.params[name]
            for each in value if isinstance(value, tuple) else (value,):
                words += [option.opts[0], *([] if each is True else [str(each)])]
    return shlex.join(words)


_command("agree", agree.run, click.option("--draws", type=int, default=1_000_000, show_default=True))
_command(
    "chains",
    chains.run,
    click.option("--requests", type=click.IntRange(min=1), default=100_000, show_default=True),
    click.option(
        "--noise",
        type=click.Choice(GUMBEL_DTYPES),
        multiple=True,
        help="Dtype of the noise; may be given again. Default: both. Most of the time goes to compiling kernels for "
        "each.",
    ),
)
_command(
    "step",
    step.run,
    click.option("--own", is_flag=True, help="Compile and launch no kernel: takes seconds, on a CPU too."),
)
