"""``tokendraw generate``: text from a language model without any download.

JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` (as ``resolve --json``) and ``texts``, one entry a
setting with ``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn,
without the prompt).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tokendraw.backends.description.capabilities import GumbelDtype, Need
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.describe import drawn_by, sampler_json
from tokendraw.cli.terminal.tables import on_terminal, print_json, print_side_by_side, progress
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import how_to_install
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.params import SamplingParams, stored_values

if TYPE_CHECKING:
    from tokendraw.providers.sampler import Sampler

COMPARED = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.5),
    SamplingParams(temperature=1.5, min_p=0.1),
)
"""Settings that ``--compare`` shows, after those of the command line unless they are among these."""


@click.command(cls=GuardedCommand, short_help="Draw text from a small language model.")
@click.argument("prompt")
@options.params_options
@click.option(
    "--model",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="A folder with a Hugging Face model. Default: the n-gram model.",
)
@click.option(
    "-n", "--tokens", type=click.IntRange(min=1), default=80, show_default=True, help="How many to draw."
)
@click.option(
    "--stream/--no-stream", default=None, help="Print tokens as they are drawn. Default: on a terminal."
)
@click.option("--compare", is_flag=True, help="The same prompt under several settings, side by side.")
@options.filters_option
@options.removed_option("--samplers", "Name the filters, and the order by --filter-order")
@options.removed_option("--show-chain", "tokendraw.kept_ids lists what a row keeps", is_flag=True)
@options.gumbel_dtype_option
@options.selection_options
@options.quiet_option
@options.verbose_option
@options.json_option
def generate(
    prompt: str,
    folder: str | None,
    tokens: int,
    stream: bool | None,
    compare: bool,
    gumbel_dtype: GumbelDtype,
    sampler: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Continue PROMPT with words drawn from an n-gram model of Python's own documentation.

    The model is fitted to the help pages of this Python in about a second. It gives every word of its
    vocabulary a probability, so temperature, top-k, top-p and min-p do here what they do to a large model.
    With --seed the same text comes out in every run; without it, each run differs. With --compare all texts
    share the seed. With --model a Hugging Face model from disk writes, through tokendraw-transformers.

    \b
    tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 42
    tokendraw generate "A class is" --compare
    tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9
    """  # noqa: D301 - the escape tells click to leave these lines as they are
    if stream and (as_json or compare):
        raise click.UsageError(
            "'--stream' prints one text as it is drawn. Leave out --json and --compare, or --stream."
        )
    with progress("loading a sampler and the language model"):
        params = options.checked_params(**fields)
        drawer = options.load(
            sampler, device, Need(filter_orders=(params.filter_order,), gumbel_dtype=gumbel_dtype)
        )
        write = _model(folder, drawer).write
    settings = [params]
    if compare:
        shared = [replace(s, seed=params.seed, filter_order=params.filter_order) for s in COMPARED]
        settings = shared if params in shared else [params, *shared]

    num_pieces = 0

    def show(piece: str) -> None:
        """Print a piece of the text, the first behind the prompt and below the line on the samplers."""
        nonlocal num_pieces
        if num_pieces == 0:
            if not quiet:
                click.echo(drawn_by(drawer), err=True)
            click.echo(prompt, nl=False)
        num_pieces += 1
        click.echo(piece, nl=False)

    if stream or (stream is None and on_terminal() and not (as_json or compare)):
        write(prompt, settings, tokens, show)
        show("\n")
        return
    with progress("drawing"):
        texts = write(prompt, settings, tokens)
    if not (quiet or as_json):
        click.echo(drawn_by(drawer), err=True)
    if as_json:
        entries = [
            {"params": asdict(setting), "token_ids": token_ids, "text": text}
            for setting, (token_ids, text) in zip(settings, texts, strict=True)
        ]
        print_json({"prompt": prompt, **sampler_json(drawer), "texts": entries})
    elif compare:
        print_side_by_side([(_label(s), prompt + text) for s, (_, text) in zip(settings, texts, strict=True)])
    else:
        click.echo(prompt + texts[0][1])


def _model(folder: str | None, drawer: Sampler) -> Any:
    """Load the model on disk, or fit the n-gram model."""
    if folder is None:
        from tokendraw.cli.demo_model import DemoModel

        return DemoModel(drawer)
    try:
        from tokendraw_transformers import ModelOnDisk
    except ModuleNotFoundError as error:
        raise TokendrawError(
            "'--model' needs tokendraw-transformers, found it not installed; run "
            f"{how_to_install('tokendraw-transformers')}."
        ) from error
    return ModelOnDisk(folder, drawer)


def _label(params: SamplingParams) -> str:
    if params.temperature == 0:
        return "greedy"
    values = stored_values(params)
    active = [p.name for p in FILTER_PARAMETERS if values[p.name] != p.neutral]
    filters = [f"{name.replace('_', '-')} {values[name]:.12g}" for name in active]
    filters += [f"{name} {value:g}" for name, value in values["filters"]]
    return ", ".join([f"temperature {params.temperature:g}", *filters])
