"""Writes log-probabilities in the format of OpenAI's API.

Field names are those of the package ``openai``: ``CompletionChoice.logprobs`` and ``ChoiceLogprobs``.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Entries: TypeAlias = Sequence[tuple[int, float, int | None]]
"""(token id, logprob, rank) of a drawn token, then of the best of its step, as ``LogprobsTensors.row`` lists them."""

MIN_LOGPROB = -9999.0
"""OpenAI's value for tokens that are very unlikely; JSON has no infinity."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def completion_logprobs(
    steps: Sequence[Entries], tokenizer: Any, *, behind: int | None = None, text_offset: int = 0
) -> dict[str, Any]:
    r"""Write ``choices[i].logprobs`` of a completion.

    :param steps: of one request, for each token that it drew.
    :param tokenizer: of transformers.
    :param behind: last token id of the prompt: some tokenizers leave out the space of a text's first token.
    :param text_offset: characters of the text before the first token: those of the prompt, if it is echoed.
    :returns: ``tokens``, ``token_logprobs`` and ``text_offset``, an entry a token, and ``top_logprobs``, a dict from
        tokens to logprobs for each, the drawn token in it; of tokens with one text it has the likeliest. A token of
        incomplete characters is written as its bytes, as in ``bytes:\\xe2\\x82``.
    """
    pieces = _Pieces(tokenizer)
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")
    logprobs: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for entries in steps:
        step_pieces = [pieces.of(token_id, behind) for token_id, *_ in entries]
        texts = [piece.format(prefix="bytes:") for piece in step_pieces]
        values = [_finite(logprob) for _, logprob, *_ in entries]
        logprobs["tokens"].append(texts[0])
        logprobs["token_logprobs"].append(values[0])
        likeliest: dict[str, float] = {}
        for name, value in zip([*texts[1:], texts[0]], [*values[1:], values[0]], strict=True):
            likeliest[name] = max(likeliest.get(name, value), value)
        logprobs["top_logprobs"].append(likeliest)
        logprobs["text_offset"].append(text_offset)
        text_offset += len(text.decode(step_pieces[0].utf8))
        behind = entries[0][0]
    return logprobs


def chat_logprobs(steps: Sequence[Entries], tokenizer: Any, *, behind: int | None = None) -> dict[str, Any]:
    r"""Write ``choices[i].logprobs`` of a chat completion.

    :param steps: of one request, for each token that it drew.
    :param tokenizer: of transformers.
    :param behind: as in :func:`completion_logprobs`.
    :returns: ``content``, a list with ``token``, ``logprob``, ``bytes`` and ``top_logprobs`` of each token, where
        ``top_logprobs`` are those of the best, with the same three; and ``refusal``, None. A token of incomplete
        characters is written as its bytes, as in ``\\xe2\\x82``.
    """
    pieces = _Pieces(tokenizer)
    content = []
    for entries in steps:
        # An id that the request gave may be one of the best, too.
        listed = [entries[0], *{entry[0]: entry for entry in entries[1:]}.values()]
        drawn, *best = [
            {"token": piece.format(), "logprob": _finite(logprob), "bytes": list(piece.utf8)}
            for token_id, logprob, *_ in listed
            for piece in [pieces.of(token_id, behind)]
        ]
        content.append({**drawn, "top_logprobs": best})
        behind = entries[0][0]
    return {"content": content, "refusal": None}


def _finite(logprob: float) -> float:
    return max(float(logprob), MIN_LOGPROB)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The text, or the bytes, of a token in a text."""

    utf8: bytes

    def format(self, prefix: str = "") -> str:
        """Return the token as text, or its bytes if they are incomplete characters."""
        try:
            return self.utf8.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in self.utf8)


class _Pieces:
    """Finds the bytes of a tokenizer's tokens, which may be parts of characters.

    Tokenizers of bytes (GPT-2's and its heirs) write each byte as a letter, those with a fall back to bytes
    (SentencePiece's) as ``<0x0A>``. Any other token is what it adds to the text of the token before it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = b"" if backend is None or backend.decoder is None else backend.decoder.__getstate__()
        self._writes_bytes = b'"ByteLevel"' in decoder

    def of(self, token_id: int, previous: int | None) -> _Piece:
        """Look up the bytes of a token after the token ``previous``."""
        written = self._tokenizer.convert_ids_to_tokens(int(token_id))
        if token_id not in self._special:
            if byte := _BYTE_PIECE.fullmatch(written):
                return _Piece(bytes([int(byte[1], 16)]))
            if self._writes_bytes and set(written) <= _byte_of_letter().keys():
                return _Piece(bytes(_byte_of_letter()[letter] for letter in written))
        context = [] if previous is None else [previous]
        text = self._tokenizer.decode([*context, token_id], clean_up_tokenization_spaces=False)
        context_text = self._tokenizer.decode(context, clean_up_tokenization_spaces=False) if context else ""
        return _Piece(text.removeprefix(context_text).encode())


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """Return GPT-2's letters for bytes: printable bytes as they are, the rest as code points from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
