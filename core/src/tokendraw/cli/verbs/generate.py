"""``tokendraw generate``: text from a language model that needs no download.

JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` (as ``resolve --json``) and ``texts``, one entry a
setting with ``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn,
without the prompt). With ``--speculate`` there is ``verify_resolution`` too, who verifies, and in each entry
``speculation`` with ``mode``, ``drafts`` (the most a step), ``evaluations`` (of the target), ``speedup`` (tokens for
one of them), ``drafted`` (in how many steps there was a 1st draft, a 2nd ...) and ``accepted`` (in how many of them it
was accepted). Where logits are edited there is ``process_resolution``, who edits them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tokendraw.backends.description.capabilities import Need
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.describe import drawn_by, resolution_json, sampler_json, served_by
from tokendraw.cli.edit_options import edit_options, taken
from tokendraw.cli.options import (
    checked_params,
    gumbel_dtype_option,
    json_option,
    load,
    params_options,
    quiet_option,
    selection_options,
    verbose_option,
)
from tokendraw.cli.terminal.tables import on_terminal, print_json, print_side_by_side, progress
from tokendraw.cli.terminal.wrap import Wrapper
from tokendraw.operations.verify.capabilities import VERIFY_MODES, VerifyMode
from tokendraw.parameters.params import SamplingParams

if TYPE_CHECKING:
    from tokendraw.backends.description.capabilities import GumbelDtype
    from tokendraw.cli.demo.speculation import Speculation, Tally

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
@params_options
@edit_options
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
@click.option(
    "--speculate",
    type=click.IntRange(min=1),
    metavar="K",
    help="Let a smaller model draft K tokens a step, verify them, and say on stderr what that saved.",
)
@click.option(
    "--verify-mode",
    type=click.Choice(VERIFY_MODES),
    help="Rejection accepts as many drafts as can be; coupled prints the very text that there is without drafts. "
    "Default: rejection.",
)
@gumbel_dtype_option
@selection_options
@quiet_option
@verbose_option
@json_option
def generate(
    prompt: str,
    folder: str | None,
    tokens: int,
    stream: bool | None,
    compare: bool,
    speculate: int | None,
    verify_mode: VerifyMode | None,
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

    With --speculate a model of word pairs drafts, and the n-gram model judges all drafts of a step in one evaluation.
    The text is drawn from the n-gram model's distribution all the same. What is saved is evaluations of the target,
    and they are what a large model's time goes into; this one answers as fast as the model that drafts for it, so
    that its text takes longer.

    Penalties, biases, bad words and --allow edit the model's logits before a word is drawn, through the operation
    process_logits. Words are those of the model, as it writes them; a comma and a full stop are words too.

    \b
    tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 7
    tokendraw generate "A class is" --compare
    tokendraw generate "The import statement" --seed 7 --speculate 4
    tokendraw generate "A class is" --allow "[a-z.]+" --stop . --min-tokens 8 --repetition-penalty 1.2
    tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9
    """  # noqa: D301 - the escape tells click to leave these lines as they are
    if stream and (as_json or compare):
        raise click.UsageError(
            "'--stream' prints one text as it is drawn. Leave out --json and --compare, or --stream."
        )
    if verify_mode and not speculate:
        raise click.UsageError(
            "'--verify-mode' says how drafts are verified, found none. Add --speculate, or leave it out."
        )
    if speculate and folder is not None:
        raise click.UsageError(
            "'--speculate' drafts for the n-gram model, found --model. Leave out one of them."
        )
    wishes = taken(fields, folder)
    with progress("loading a sampler and the language model"):
        params = checked_params(**fields)

        drawer = load(sampler, device, Need(filter_orders=(params.filter_order,), gumbel_dtype=gumbel_dtype))
        how: Speculation | None = None
        tallies: Sequence[Tally] = ()
        processor: Any = None
        if folder is not None:
            from tokendraw.cli.demo.model_on_disk import ModelOnDisk

            write = ModelOnDisk(folder, drawer).write
        else:
            from tokendraw.cli.demo.built_in_model import BuiltInModel

            model = BuiltInModel(drawer, speculate, verify_mode or "rejection", wishes())
            params = model.wished(params)
            if model.editor:
                processor = model.editor.processor
            write, how, tallies = model.write, model.speculation, model.tallies
    settings = _compared(params) if compare else [params]

    def say_who() -> None:
        """Say who serves, once something was served."""
        if quiet or as_json:
            return
        if how:
            from tokendraw.cli.demo.speculation import verified_by

            click.echo(verified_by(drawer, settings, how.mode), err=True)
        else:
            click.echo(drawn_by(drawer), err=True)
        if processor:
            rows, resolution = processor.stats(), processor.resolution
            click.echo(served_by(drawer, resolution, "edited", "edits", rows), err=True)

    if stream or (stream is None and on_terminal() and not (as_json or compare)):
        _stream(prompt, lambda show: write(prompt, settings, tokens, show), say_who)
    else:
        with progress("drawing"):
            drawn = write(prompt, settings, tokens, None)
        say_who()
        if as_json:
            others = {"verify_resolution": resolution_json(drawer.verify_resolution)} if how else {}
            if processor:
                others["process_resolution"] = resolution_json(processor.resolution)
            entries = _entries(settings, drawn, how, tallies)
            print_json({"prompt": prompt, **sampler_json(drawer), **others, "texts": entries})
        elif compare:
            print_side_by_side(
                [(_label(s), prompt + text) for s, (_, text) in zip(settings, drawn, strict=True)]
            )
        else:
            click.echo(prompt + drawn[0][1])
    if not (quiet or as_json):
        for setting, tally in zip(settings, tallies, strict=False):
            for line in tally.lines():
                click.echo(f"{_label(setting)}: {line}" if compare else line, err=True)


def _entries(
    settings: Sequence[SamplingParams],
    drawn: Sequence[tuple[list[int], str]],
    how: Speculation | None,
    tallies: Sequence[Tally],
) -> list[dict[str, Any]]:
    """Return the texts as JSON."""
    entries: list[dict[str, Any]] = [
        {"params": asdict(setting), "token_ids": row, "text": text}
        for setting, (row, text) in zip(settings, drawn, strict=True)
    ]
    if how:
        for entry, tally in zip(entries, tallies, strict=True):
            entry["speculation"] = {"mode": how.mode, "drafts": how.drafts, **tally.as_json()}
    return entries


def _compared(params: SamplingParams) -> list[SamplingParams]:
    """List the settings to compare, the user's own first unless they are among them."""
    shared = [
        replace(params, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, min_p=s.min_p)
        for s in COMPARED
    ]
    return shared if params in shared else [params, *shared]


def _label(params: SamplingParams) -> str:
    if params.temperature == 0:
        return "greedy"
    filters = [
        f"top-k {params.top_k}" if params.top_k > 0 else "",
        f"top-p {params.top_p:g}" if params.top_p < 1 else "",
        f"min-p {params.min_p:g}" if params.min_p > 0 else "",
    ]
    return ", ".join([f"temperature {params.temperature:g}", *filter(None, filters)])


def _stream(
    prompt: str, write: Callable[[Callable[[str], None]], object], before_first: Callable[[], None]
) -> None:
    """Print a text piece by piece.

    :param before_first: called when the first piece was drawn.
    """
    wrap = Wrapper(shutil.get_terminal_size().columns) if on_terminal() else str
    is_first = True

    def begin() -> None:
        nonlocal is_first
        if is_first:
            before_first()
            click.echo(wrap(prompt), nl=False)
        is_first = False

    def show(piece: str) -> None:
        begin()
        click.echo(wrap(piece), nl=False)

    write(show)
    begin()  # where nothing was drawn
    click.echo()
