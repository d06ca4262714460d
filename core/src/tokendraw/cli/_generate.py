"""``tokendraw generate``: text from a language model that needs no download.

JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` (as ``resolve --json``) and ``texts``, one entry a
setting with ``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn,
without the prompt).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tokendraw._params import SamplingParams
from tokendraw.cli._app import GuardedCommand
from tokendraw.cli._describe import drawn_by, sampler_json
from tokendraw.cli._options import (
    checked_params,
    json_option,
    params_options,
    quiet_option,
    selection_options,
)
from tokendraw.cli._print import on_terminal, print_json, print_side_by_side, progress
from tokendraw.cli._wrap import Wrapper

if TYPE_CHECKING:
    from tokendraw._sampler import Sampler
    from tokendraw.cli._generation import LanguageModel

    Drawn = list[tuple[list[int], str]]
    Write = Callable[[str, Sequence[SamplingParams], int, Callable[[str], None] | None], Drawn]

COMPARED = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.5),
    SamplingParams(temperature=1.5, min_p=0.1),
)
"""What ``--compare`` shows, after the settings of the command line unless they are among these."""


@click.command(cls=GuardedCommand, short_help="Draw text from a small language model.")
@click.argument("prompt")
@params_options
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
@selection_options
@quiet_option
@json_option
def generate(
    prompt: str,
    folder: str | None,
    tokens: int,
    stream: bool | None,
    compare: bool,
    sampler: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    r"""Continue PROMPT with words drawn from an n-gram model of Python's own documentation.

    The model is fitted to the help pages of this Python in about a second. It gives every word of its
    vocabulary a probability, so temperature, top-k, top-p and min-p do here what they do to a large model.
    With --seed the same text comes out in every run; without it, each run differs. With --compare all texts
    share the seed. With --model a Hugging Face model from disk writes, through tokendraw-transformers.

    \b
    tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 7
    tokendraw generate "A class is" --compare
    tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9
    """
    if stream and (as_json or compare):
        raise click.UsageError(
            "'--stream' prints one text as it is drawn. Leave out --json and --compare, or --stream."
        )
    with progress("loading a sampler and the language model"):
        params = checked_params(**fields)

        from tokendraw._capabilities import Need
        from tokendraw._load import load_sampler

        drawer = load_sampler(sampler, device=device, need=Need(filter_orders=(params.filter_order,)))
        write = _ngram(drawer) if folder is None else _on_disk(folder, drawer)
    if not (quiet or as_json):
        click.echo(drawn_by(drawer), err=True)
    settings = _compared(params) if compare else [params]
    if stream or (stream is None and on_terminal() and not (as_json or compare)):
        _stream(prompt, lambda show: write(prompt, settings, tokens, show))
        return
    with progress("drawing"):
        drawn = write(prompt, settings, tokens, None)
    if as_json:
        entries = [
            {"params": asdict(setting), "token_ids": row, "text": text}
            for setting, (row, text) in zip(settings, drawn, strict=True)
        ]
        print_json({"prompt": prompt, **sampler_json(drawer), "texts": entries})
    elif compare:
        print_side_by_side([(_label(s), prompt + text) for s, (_, text) in zip(settings, drawn, strict=True)])
    else:
        click.echo(prompt + drawn[0][1])


def _ngram(drawer: Sampler) -> Write:
    from tokendraw._threads import one_thread
    from tokendraw.cli._generation import draw_tokens

    model = _language_model()

    def write(
        prompt: str, settings: Sequence[SamplingParams], count: int, show: Callable[[str], None] | None
    ) -> Drawn:
        encoded = model.encode(prompt)
        with one_thread():
            steps = draw_tokens(model, drawer, encoded, settings, count)
            if show is not None:
                for piece in _pieces(model, prompt, encoded, (token_id for (token_id,) in steps)):
                    show(piece)
                return []
            rows = [list(row) for row in zip(*steps, strict=True)]
        return [(row, "".join(_pieces(model, prompt, encoded, row))) for row in rows]

    return write


def _on_disk(folder: str, drawer: Sampler) -> Write:
    from tokendraw.cli._model_on_disk import ModelOnDisk

    return ModelOnDisk(folder, drawer).write


def _language_model() -> LanguageModel:
    from tokendraw.cli._corpus import documentation
    from tokendraw.cli._ngram import NGramModel

    return NGramModel(documentation())


def _compared(params: SamplingParams) -> list[SamplingParams]:
    """List the settings to compare, the user's own first unless they are among them."""
    shared = [replace(s, seed=params.seed, filter_order=params.filter_order) for s in COMPARED]
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


def _pieces(model: LanguageModel, prompt: str, encoded: Sequence[int], drawn: Iterable[int]) -> Iterator[str]:
    """Yield the text of each drawn token, as it continues the prompt."""
    previous = encoded[-1]
    spaced = prompt[-1:].isspace()
    for token_id in drawn:
        piece = model.decode([token_id], after=previous)
        yield piece.lstrip(" ") if spaced else piece
        previous, spaced = token_id, False


def _stream(prompt: str, write: Callable[[Callable[[str], None]], object]) -> None:
    wrap = Wrapper(shutil.get_terminal_size().columns) if on_terminal() else str

    def show(piece: str) -> None:
        click.echo(wrap(piece), nl=False)

    show(prompt)
    write(show)
    click.echo()
