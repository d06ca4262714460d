"""The language model of ``generate``: normalised, equal to Kneser-Ney by definition, able to read and write prose."""

import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokendraw import TokendrawError
from tokendraw.cli.demo.corpus import documentation, prose
from tokendraw.cli.demo.ngram import PARAGRAPH, UNKNOWN, NGramModel

PARAGRAPHS = [
    "The cat sat on the mat.",
    "The cat sat on the sofa, and the dog sat on the cat.",
    "A dog (of no breed) ran: it ran to the built-in mat.",
]
MODEL = NGramModel(PARAGRAPHS)


def probabilities(model, text):
    return model.logits([model.encode(text)])[0].double().exp()


def probability(model, text, word):
    return probabilities(model, text)[model.vocabulary.index(word)].item()


def reference_probability(words, order, history, word):
    """Interpolated Kneser-Ney by definition, with all counts made anew (Chen and Goodman 1998, section 2.8)."""

    def count(ngram):
        """Occurrences at the highest order; at lower orders the number of different words to the left."""
        size = len(ngram)
        spots = [i for i in range(len(words) - size + 1) if tuple(words[i : i + size]) == ngram]
        if size == order:
            return len(spots)
        return len({words[i - 1] for i in spots if i > 0})

    vocabulary = sorted(set(words))

    def ngrams(size):
        return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}

    def p(history, word):
        size = len(history) + 1
        counts = [count(ngram) for ngram in ngrams(size)]
        once, twice = counts.count(1), counts.count(2)
        discount = once / (once + 2 * twice)
        followers = {w: count((*history, w)) for w in vocabulary}
        total = sum(followers.values())
        shorter = p(history[1:], word) if history else 1 / len(vocabulary)
        if total == 0:
            return shorter
        different = sum(c > 0 for c in followers.values())
        return max(followers[word] - discount, 0) / total + discount * different / total * shorter

    return p(history, word)


@given(st.lists(st.integers(UNKNOWN, len(MODEL.vocabulary) - 1), max_size=6))
@pytest.mark.slow
def test_logits_are_log_probabilities_after_any_history(history):
    logits = MODEL.logits([history])
    assert logits.dtype == torch.float32
    assert logits.shape == (1, len(MODEL.vocabulary))
    assert logits.isfinite().all()
    assert logits.double().exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("history", ["the cat", "sat on the", "", "of no breed ) ran"])
def test_probabilities_follow_the_definition(order, history):
    words = [w for line in PARAGRAPHS for w in [PARAGRAPH, *_split(line)]] + [PARAGRAPH]
    model = NGramModel(PARAGRAPHS, order=order)
    before = (PARAGRAPH, *history.split())[-(order - 1) :]
    distribution = probabilities(model, history)
    for index, word in enumerate(model.vocabulary):
        expected = reference_probability(words, order, before, word)
        assert distribution[index].item() == pytest.approx(expected, rel=1e-5), word


def _split(line):
    for mark in ".,:()":
        line = line.replace(mark, f" {mark} ")
    return line.split()


def test_a_longer_history_sharpens_the_guess():
    assert probability(MODEL, "the cat sat on", "the") > 2 * probability(MODEL, "cat on", "the")


def test_a_row_does_not_depend_on_its_neighbours():
    sequences = [MODEL.encode("the cat sat"), MODEL.encode("a dog"), MODEL.encode("")]
    together = MODEL.logits(sequences)
    for row, sequence in zip(together, sequences, strict=True):
        assert torch.equal(row, MODEL.logits([sequence])[0])


def test_only_the_words_after_an_unknown_one_count():
    assert UNKNOWN in MODEL.encode("the zebra sat on")
    assert torch.equal(probabilities(MODEL, "the zebra sat on"), probabilities(MODEL, "zebra sat on"))


def test_a_prompt_of_unknown_words_still_gets_a_distribution():
    assert MODEL.encode("xyzzy plugh") == [MODEL.encode("")[0], UNKNOWN, UNKNOWN]
    assert probabilities(MODEL, "xyzzy plugh").sum().item() == pytest.approx(1, abs=1e-6)


def test_a_word_is_found_in_lower_case_or_capitalised():
    words = MODEL.vocabulary
    assert {"The", "the", "sat", "A"} <= set(words)
    assert not {"Sat", "a"} & set(words)
    encoded = MODEL.encode("The Sat a")
    assert [words[i] for i in encoded[1:]] == ["The", "sat", "A"]


def test_an_empty_prompt_begins_a_paragraph():
    assert [MODEL.vocabulary[i] for i in MODEL.encode("")] == [PARAGRAPH]
    assert probability(MODEL, "", "The") > probability(MODEL, "the", "The")


@pytest.mark.parametrize("text", PARAGRAPHS)
def test_decoding_gives_the_prose_back(text):
    assert MODEL.decode(MODEL.encode(text)[1:]) == text


def test_decoding_token_by_token_gives_the_same_text():
    ids = MODEL.encode(PARAGRAPHS[2] + PARAGRAPH + PARAGRAPHS[0])
    pieces = [MODEL.decode([new], after=old) for old, new in itertools.pairwise(ids)]
    assert "".join(pieces) == PARAGRAPHS[2] + PARAGRAPH + PARAGRAPHS[0]


def test_code_in_prose_is_one_word():
    text = "A call to f(x) or a[i] of sys.path, built-in and don't."
    assert {"f(x)", "a[i]", "sys.path", "built-in", "don't"} <= set(NGramModel([text]).vocabulary)


def test_fitting_to_too_little_text_is_refused():
    with pytest.raises(ValueError, match=r"^'paragraphs' needs at least 4 tokens, found 3\.$"):
        NGramModel(["word"])


def test_prose_is_unwrapped_freed_of_markup_and_kept_once():
    topics = {
        "one": 'The "import" statement\n***********\n\n'
        "The *import* statement is a left-\nhand thing of **two** “words”.\n\n"
        '   import_stmt ::= "import" module as a grammar rule.\n\n'
        "   >>> import sys  # This is a transcript that looks like prose.\n\n"
        "   Indented prose is prose as well, as long as it is a sentence.\n\n"
        "* A list item counts as prose when it is a sentence.\n\n"
        "Too short.\n\n"
        "no capital letter at the beginning of this paragraph here.",
        "two": "   Indented prose is prose as well, as long as\n   it is a sentence.\n\n",
    }
    assert prose(topics) == [
        "The import statement is a left-hand thing of two words.",
        "Indented prose is prose as well, as long as it is a sentence.",
        "A list item counts as prose when it is a sentence.",
    ]


def test_the_documentation_of_this_python_is_a_corpus():
    paragraphs = documentation()
    assert sum(map(len, paragraphs)) > 150_000
    assert not any("\n" in text or "::=" in text or ">>>" in text for text in paragraphs)
    model = NGramModel(paragraphs)
    assert len(model.vocabulary) > 2_000
    assert UNKNOWN not in model.encode("The import statement")


def test_a_python_without_help_pages_is_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(TokendrawError) as caught:
        documentation()
    assert str(caught.value) == (
        "'generate' needs the help pages that ship with CPython, 'pydoc_data.topics', found none. "
        "Install Python's full standard library."
    )
