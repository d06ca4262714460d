"""``tokendraw generate``: text from a language model without any download.

JSON: ``prompt``, ``sampler``, ``device``, ``resolution`` (as ``resolve --json``) and ``texts``, one entry
with ``params`` (the fields of ``SamplingParams``), ``token_ids`` and ``text`` (what was drawn, without the prompt).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tokendraw._torch.importing import require_torch
from tokendraw.backends.description.capabilities import GumbelDtype, Need
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.negotiation import drawn_by, sampler_json
from tokendraw.cli.terminal import print_json, progress
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import how_to_install
from tokendraw.parameters.params import SamplingParams

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
_WHOLE = "Leave it out: the text is printed when all of it is drawn"
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

    def write(self, prompt: str, params: SamplingParams, count: int) -> tuple[list[int], str]:
        """Continue ``prompt`` by ``count`` words; return their ids and text, without the prompt.

        The position of a draw is the index of the token before it.
        """
        from tokendraw._torch.threads import one_thread
        from tokendraw.parameters.metadata import SamplingMetadata

        device = self._sampler.device
        sequence = [self._ids[PARAGRAPH], *(self._ids.get(word, _UNKNOWN) for word in _TOKEN.findall(prompt))]
        start = len(sequence)
        with one_thread():
            for position in range(start - 1, start - 1 + count):
                metadata = SamplingMetadata.from_params([params], device=device, positions=[position])
                output = self._sampler.sample(self.logits(sequence)[None].to(device), metadata)
                sequence += output.token_ids.tolist()
        text = "".join(self.vocabulary[token_id] for token_id in sequence[start:])
        return sequence[start:], text.lstrip(" ") if prompt[-1:] in ("", " ") else text

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
@options.filters_option
@options.removed_option("--compare", "Run it once for each setting, with the same --seed", is_flag=True)
@options.removed_option("--stream", _WHOLE, is_flag=True)
@options.removed_option("--no-stream", _WHOLE, is_flag=True)
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
    With --seed the same text comes out in every run; without it, each run differs. With --model a Hugging Face
    model from disk writes, through tokendraw-transformers.

    \b
    tokendraw generate "The import statement" --temperature 0.7 --top-k 40 --top-p 0.9 --seed 42
    tokendraw generate "A class is" --model ./Qwen2.5-0.5B --top-p 0.9
    """  # noqa: D301 - the escape tells click to leave these lines as they are
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
    with progress("drawing"):
        token_ids, text = model.write(prompt, params, tokens)
    if as_json:
        entry = {"params": asdict(params), "token_ids": token_ids, "text": text}
        print_json({"prompt": prompt, **sampler_json(drawer), "texts": [entry]})
        return
    if not quiet:
        click.echo(drawn_by(drawer), err=True)
    click.echo(prompt + text)
