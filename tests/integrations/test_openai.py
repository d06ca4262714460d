"""Log-probabilities in OpenAI's format: its field names, characters that several tokens share, JSON."""

import json

import pytest
import torch

pytest.importorskip("tokendraw_transformers", reason="needs tokendraw-transformers")

import tokenizers
from transformers import PreTrainedTokenizerFast

from tokendraw import InvalidParameterError
from tokendraw_transformers import chat_logprobs, completion_logprobs
from transformers_models import byte_tokenizer, draw, model_of, prompts


def bytes_of(text):
    """Token ids of the byte tokenizer, an id for each byte."""
    return byte_tokenizer()(text)["input_ids"]


def sentence_piece():
    """A tokenizer as SentencePiece writes them: words with their space, and bytes to fall back to."""
    pieces = ["<unk>", "</s>", "▁Hello", "▁there", "ly", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = tokenizers.models.BPE(
        {piece: token for token, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = tokenizers.Tokenizer(model)
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def two_ways_to_write_a():
    """Make a tokenizer with a token for A, and its byte."""
    pieces = ["<unk>", "A", "<0x41>", "</s>", "B"]
    model = tokenizers.models.BPE({piece: token for token, piece in enumerate(pieces)}, [], unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), unk_token="<unk>")


E_ACUTE_1, E_ACUTE_2 = 195, 169  # the bytes of é
STEPS = [
    [(bytes_of("a")[0], -0.5, 1), (bytes_of("a")[0], -0.5, 1), (bytes_of("b")[0], -1.5, 2)],
    [(bytes_of("é")[0], -3.0, 7), (bytes_of(" ")[0], -0.25, 1), (bytes_of("é")[1], float("-inf"), 2)],
    [(bytes_of("é")[1], -0.125, 1), (bytes_of("é")[1], -0.125, 1), (bytes_of("c")[0], -2.0, 2)],
    [(bytes_of("z")[0], -0.75, 1), (bytes_of("z")[0], -0.75, 1), (bytes_of("c")[0], -2.0, 2)],
]


def test_a_completion_has_four_lists():
    result = completion_logprobs(STEPS, byte_tokenizer())
    assert result == {
        "tokens": ["a", r"bytes:\xc3", r"bytes:\xa9", "z"],
        "token_logprobs": [-0.5, -3.0, -0.125, -0.75],
        "top_logprobs": [
            {"a": -0.5, "b": -1.5},
            {" ": -0.25, r"bytes:\xa9": -9999.0, r"bytes:\xc3": -3.0},
            {r"bytes:\xa9": -0.125, "c": -2.0},
            {"z": -0.75, "c": -2.0},
        ],
        "text_offset": [0, 1, 1, 2],  # of "aéz"
    }
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert completion_logprobs(STEPS, byte_tokenizer(), text_offset=10)["text_offset"] == [10, 11, 11, 12]


@pytest.mark.parametrize(
    ("step", "top_logprobs"),
    [
        ([(4, -0.2), (4, -0.2), (1, -2.2), (2, -4.2)], {"B": -0.2, "A": -2.2}),
        ([(4, -0.2), (4, -0.2), (2, -4.2), (1, -2.2)], {"B": -0.2, "A": -2.2}),
        ([(2, -4.2), (4, -0.2), (1, -2.2)], {"B": -0.2, "A": -2.2}),
        ([(1, -2.2), (4, -0.2), (2, -4.2)], {"B": -0.2, "A": -2.2}),
        ([(2, -float("inf")), (1, -12000.0)], {"A": -9999.0}),
        ([(2, -4.2)], {"A": -4.2}),
    ],
)
def test_the_likeliest_of_tokens_with_one_text_is_in_the_dict_of_a_completion(step, top_logprobs):
    tokenizer = two_ways_to_write_a()
    steps = [[(token, logprob, None) for token, logprob in step]]
    result = completion_logprobs(steps, tokenizer)
    assert result["top_logprobs"] == [top_logprobs]
    assert result["token_logprobs"] == [max(step[0][1], -9999.0)]  # of the drawn one, whatever its text
    best = chat_logprobs(steps, tokenizer)["content"][0]["top_logprobs"]
    assert [entry["logprob"] for entry in best] == [max(logprob, -9999.0) for _, logprob in step[1:]]


def test_an_id_that_was_given_and_is_one_of_the_best_stands_once_in_a_chat():
    step = [(5, -3.0, 7), (8, -0.1, 1), (5, -3.0, 2), (9, -6.0, None), (8, -0.1, None)]
    (entry,) = chat_logprobs([step], byte_tokenizer())["content"]
    assert [best["logprob"] for best in entry["top_logprobs"]] == [-0.1, -3.0, -6.0]


def test_a_chat_has_an_entry_a_token_with_its_bytes():
    result = chat_logprobs(STEPS[:2], byte_tokenizer())
    assert result == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "b", "logprob": -1.5, "bytes": [98]},
                ],
            },
            {
                "token": r"\xc3",
                "logprob": -3.0,
                "bytes": [E_ACUTE_1],
                "top_logprobs": [
                    {"token": " ", "logprob": -0.25, "bytes": [32]},
                    {"token": r"\xa9", "logprob": -9999.0, "bytes": [E_ACUTE_2]},
                ],
            },
        ],
        "refusal": None,
    }
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("text", ["Grüße, 世界", "🙂 ok", "tab\tand\nline"])
def test_the_bytes_of_the_tokens_are_those_of_the_text(text):
    steps = [[(token, -1.0, 1)] for token in bytes_of(text)]
    content = chat_logprobs(steps, byte_tokenizer())["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == text
    offsets = completion_logprobs(steps, byte_tokenizer())["text_offset"]
    before = [text.encode()[:place].decode(errors="ignore") for place in range(len(steps))]
    assert offsets == [len(part) for part in before]


def test_pieces_keep_their_spaces_and_bytes_to_fall_back_to_are_bytes():
    tokenizer = sentence_piece()
    ids = [2, 3, 4, 5 + E_ACUTE_1, 5 + E_ACUTE_2, 1]
    steps = [[(token, -1.0, None)] for token in ids]
    content = chat_logprobs(steps, tokenizer)["content"]
    assert [entry["token"] for entry in content] == ["Hello", " there", "ly", r"\xc3", r"\xa9", "</s>"]
    behind = completion_logprobs(steps, tokenizer, behind=4)
    assert behind["tokens"] == [" Hello", " there", "ly", r"bytes:\xc3", r"bytes:\xa9", "</s>"]
    assert behind["text_offset"] == [0, 6, 12, 14, 14, 15]


@pytest.fixture(scope="module")
def out():
    return draw(
        model_of("llama"),
        prompts(3),
        seeds=[1, 2, 3],
        logprobs=2,
        return_dict_in_generate=True,
        eos_token_id=list(range(1, 150)),
    )


def test_the_rows_of_an_output_fit_the_formats(out):
    for index in range(3):
        row = out.row(index)
        drawn = [token for token in out.sequences[index, 5:].tolist() if token]  # 0 fills up a row that ended
        assert [step[0][0] for step in row] == drawn
        for place, step in enumerate(row):
            (_, logprob, rank), *best = step
            assert (logprob, rank) == (out.logprobs[index, place].item(), out.ranks[index, place].item())
            assert [entry[0] for entry in best] == out.top_token_ids[index, place].tolist()
            assert [entry[1] for entry in best] == out.top_logprobs[index, place].tolist()
            assert [entry[2] for entry in best] == [1, 2]
        content = chat_logprobs(row, byte_tokenizer())["content"]
        assert len(content) == len(completion_logprobs(row, byte_tokenizer())["tokens"]) == len(drawn)
    assert len({len(out.row(index)) for index in range(3)}) > 1


def test_an_output_without_logprobs_has_no_rows():
    plain = draw(model_of("llama"), prompts(1), seeds=[1], return_dict_in_generate=True)
    with pytest.raises(InvalidParameterError) as error:
        plain.row(0)
    assert str(error.value) == "'row' needs logprobs, found none. Pass logprobs= to model.generate."


def test_only_the_drawn_token_has_no_best():
    only = draw(model_of("llama"), prompts(1), seeds=[1], logprobs=0, return_dict_in_generate=True)
    row = only.row(0)
    torch.testing.assert_close(torch.tensor([step[0][1] for step in row]), only.logprobs[0])
    result = chat_logprobs(row, byte_tokenizer())["content"]
    assert [entry["top_logprobs"] for entry in result] == [[]] * len(row)
