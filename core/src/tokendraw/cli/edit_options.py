"""Options of ``tokendraw generate`` that edit logits, or end a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokendraw.cli.options import all_of_options

if TYPE_CHECKING:
    from tokendraw.cli.demo.wishes import Wishes

edit_options = all_of_options(
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="Divide logits above 0 by this, and multiply others, of all words so far, prompt included. 1: off.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        default=0.0,
        help="Take this off for each time that a word was drawn. 0: off.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        default=0.0,
        help="Take this off words that were drawn. 0: off.",
    ),
    click.option(
        "--logit-bias",
        multiple=True,
        metavar="WORD=VALUE",
        help="Add a number to a word's logit. Repeatable.",
    ),
    click.option(
        "--bad-words",
        multiple=True,
        metavar="WORDS",
        help="Never draw these words one after the other. Repeatable.",
    ),
    click.option(
        "--allow",
        metavar="REGEX",
        help="Draw only words that match as a whole: a bit mask, as grammars make them.",
    ),
    click.option(
        "--stop",
        multiple=True,
        metavar="WORD",
        help="End the text behind this word. Repeatable. Default: none ends it.",
    ),
    click.option(
        "--min-tokens",
        type=int,
        default=0,
        help="Hold the words of --stop back until so many are drawn. 0: off.",
    ),
)
_FIELDS = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "bad_words",
    "allow",
    "stop",
    "min_tokens",
)


def taken(fields: dict[str, Any], folder: str | None) -> Callable[[], Wishes]:
    """Take these options out of ``fields``; return what makes :class:`Wishes` of them, which imports torch.

    :param folder: value of ``--model``.
    :raises click.UsageError: they do not fit each other, or the model.
    """
    own = {name: fields.pop(name) for name in _FIELDS}
    source = click.get_current_context().get_parameter_source
    given = [name for name in _FIELDS if source(name) is not ParameterSource.DEFAULT]
    if given and folder is not None:
        option = "--" + given[0].replace("_", "-")
        raise click.UsageError(
            f"'{option}' is for words of the n-gram model, found --model. Leave out one of them."
        )
    if own["min_tokens"] and not own["stop"]:
        raise click.UsageError(
            "'--min-tokens' holds back the words of --stop, found none. Add --stop WORD, or leave it out."
        )

    def wishes() -> Wishes:
        from tokendraw.cli.demo.wishes import Wishes

        return Wishes(**own)

    return wishes
