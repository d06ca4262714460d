"""``tokendraw generate``: text from a language model without any download.

JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` (as ``resolve --json``) and ``texts``, one entry a
setting with ``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn,
without the prompt).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tokendraw._torch.importing import require_torch
from tokendraw.backends.description.capabilities import GumbelDtype, Need
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.negotiation import drawn_by, sampler_json
from tokendraw.cli.terminal import console_width, on_terminal, print_in_width, print_json, progress
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import how_to_install
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.params import SamplingParams, stored_values

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.providers.sampler import Sampler


PARAGRAPH = "\n\n"
"""The token between two paragraphs. Every sequence begins with it."""
_UNKNOWN = -1
"""Id of a word outside the vocabulary, which no history holds: only the words after it count."""
_ORDER = 4
"""Number of words in the longest n-gram; all but the last are the history."""
_DISCOUNT = 0.75
_LEAST_TEXT_WIDTH = 32
"""Least width in columns of texts side by side."""
# A token has the space before it. A word keeps what belongs to it: built-in, sys.path, f(x), a[i], don't.
_TOKEN = re.compile(r"\n\n| ?\w+(?:[-'\u2019./]\w+)*(?:\([^\s()]*\)|\[[^\s\[\]]*\])?| ?[^\w\s]")
_SENTENCES = re.compile(r"[A-Z](?!.*(?:::=|>>>|---|===))(?:\S+ ){5,}.*[.:)]")
_MARK_UP = re.compile(r'["“”]|\*+(?=\w)|(?<=\w)\*+')


def documentation() -> list[str]:
    """Return the paragraphs of prose behind ``help()``, each once and on one line, without mark-up.

    :raises TokendrawError: this Python was installed without its help pages.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TokendrawError(
            "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
            "Install Python's full standard library."
        ) from error
    blocks = re.split(r"\n\s*\n", PARAGRAPH.join(topics.values()))
    lines = (_MARK_UP.sub("", " ".join(block.split())) for block in blocks)
    return list(dict.fromkeys(line for line in lines if _SENTENCES.fullmatch(line)))


class DemoModel:
    """Continues prompts with words of the documentation, drawn by a sampler.

    The next word follows interpolated absolute discounting (Ney, Essen and Kneser 1994). For a history h and the
    history h' without its first word::

        p(w | h) = max(c(h w) - D, 0) / c(h)  +  D * N(h) / c(h) * p(w | h')

    c counts n-grams, N(h) is the number of different words after h, D = 0.75. The recursion ends in the uniform
    distribution, so every word of the vocabulary has a finite logit after any history.
    """

    def __init__(self, sampler: Sampler) -> None:
        words = _TOKEN.findall(PARAGRAPH.join(["", *documentation(), ""]))
        self._sampler = sampler
        self.vocabulary = sorted(set(words))
        self._ids = {word: index for index, word in enumerate(self.vocabulary)}
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        ids = [self._ids[word] for word in words]
        for end, word in enumerate(ids):
            for start in range(max(0, end - _ORDER + 1), end + 1):
                self._counts[tuple(ids[start:end])][word] += 1

    def write(
        self,
        prompt: str,
        settings: Sequence[SamplingParams],
        count: int,
        show: Callable[[str], None] = lambda piece: None,
    ) -> list[tuple[list[int], str]]:
        """Continue ``prompt`` under each of ``settings`` in one batch; return token ids and text, without the prompt.

        The position of a draw is the index of the token before it. Rows with the same seed draw with the same noise,
        so their texts differ only where their settings make them.

        :param show: called with each piece of the first text as it is drawn.
        """
        import torch

        from tokendraw._torch.threads import one_thread
        from tokendraw.parameters.metadata import SamplingMetadata

        encoded = [self._ids[PARAGRAPH], *(self._ids.get(word, _UNKNOWN) for word in _TOKEN.findall(prompt))]
        sequences = [list(encoded) for _ in settings]
        texts = [""] * len(settings)
        with one_thread():
            for position in range(len(encoded) - 1, len(encoded) - 1 + count):
                metadata = SamplingMetadata.from_params(
                    settings, device=self._sampler.device, positions=[position] * len(settings)
                )
                logits = torch.stack([self.logits(sequence) for sequence in sequences])
                output = self._sampler.sample(logits.to(self._sampler.device), metadata)
                for row, token_id in enumerate(output.token_ids.tolist()):
                    piece = self.vocabulary[token_id]
                    if prompt[-1:] in ("", " ") and not texts[row]:
                        piece = piece.lstrip(" ")
                    sequences[row].append(token_id)
                    texts[row] += piece
                    if row == 0:
                        show(piece)
        return [(ids[len(encoded) :], text) for ids, text in zip(sequences, texts, strict=True)]

    def logits(self, sequence: Sequence[int]) -> Tensor:
        """Return the natural log-probabilities of the next token, [V] float32 on the CPU."""
        import torch

        row = torch.full((len(self.vocabulary),), 1 / len(self.vocabulary), dtype=torch.float64, device="cpu")
        for length in range(min(_ORDER, len(sequence) + 1)):
            followers = self._counts.get(tuple(sequence[len(sequence) - length :]))
            if followers is None:
                break  # a longer history holds this one, so no text has it either
            total = followers.total()
            row *= _DISCOUNT * len(followers) / total
            row[list(followers)] += (
                torch.tensor([*followers.values()], dtype=torch.int64, device="cpu").double() - _DISCOUNT
            ) / total
        return row.log_().float()


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
    params = SamplingParams(**fields).check()
    with progress("loading a sampler and the language model"):
        require_torch("Drawing")
        drawer = options.load(
            sampler, device, Need(filter_orders=(params.filter_order,), gumbel_dtype=gumbel_dtype)
        )
        if folder is None:
            model: Any = DemoModel(drawer)
        else:
            try:
                from tokendraw_transformers import ModelOnDisk
            except ModuleNotFoundError as error:
                raise TokendrawError(
                    "'--model' needs tokendraw-transformers, found it not installed; run "
                    f"{how_to_install('tokendraw-transformers')}."
                ) from error
            model = ModelOnDisk(folder, drawer)
    settings = [params]
    if compare:
        shared = [replace(s, seed=params.seed, filter_order=params.filter_order) for s in COMPARED]
        settings = shared if params in shared else [params, *shared]

    shown: list[str] = []

    def show(piece: str) -> None:
        """Print a piece of the text, the first behind the prompt and below the line on the samplers."""
        if not shown:
            if not quiet:
                click.echo(drawn_by(drawer), err=True)
            click.echo(prompt, nl=False)
        shown.append(piece)
        click.echo(piece, nl=False)

    if stream or (stream is None and on_terminal() and not (as_json or compare)):
        model.write(prompt, settings, tokens, show)
        show("\n")
        return
    with progress("drawing"):
        texts = model.write(prompt, settings, tokens)
    if not (quiet or as_json):
        click.echo(drawn_by(drawer), err=True)
    if as_json:
        entries = [
            {"params": asdict(setting), "token_ids": token_ids, "text": text}
            for setting, (token_ids, text) in zip(settings, texts, strict=True)
        ]
        print_json({"prompt": prompt, **sampler_json(drawer), "texts": entries})
    elif compare:
        _print_side_by_side(
            [(_label(s), prompt + text) for s, (_, text) in zip(settings, texts, strict=True)]
        )
    else:
        click.echo(prompt + texts[0][1])


def _label(params: SamplingParams) -> str:
    if params.temperature == 0:
        return "greedy"
    values = stored_values(params)
    active = [p.name for p in FILTER_PARAMETERS if values[p.name] != p.neutral]
    filters = [f"{name.replace('_', '-')} {values[name]:.12g}" for name in active]
    filters += [f"{name} {value:g}" for name, value in values["filters"]]
    return ", ".join([f"temperature {params.temperature:g}", *filters])


def _print_side_by_side(texts: Sequence[tuple[str, str]]) -> None:
    """Print titled texts in columns, as many side by side as fit, and the rest below."""
    from rich.table import Column, Table
    from rich.text import Text

    width = console_width()
    num_columns = max(1, min(len(texts), width // _LEAST_TEXT_WIDTH))
    columns = [Column(ratio=1, overflow="fold") for _ in range(num_columns)]
    table = Table.grid(*columns, padding=(0, 3, 0, 0), expand=True)
    for start in range(0, len(texts), num_columns):
        titles, bodies = zip(*texts[start : start + num_columns], strict=True)
        table.add_row(*(Text(title, "bold") for title in titles))
        table.add_row(*(Text(f"{text}\n") for text in bodies))
    print_in_width(table, width)
