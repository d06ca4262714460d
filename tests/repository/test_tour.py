"""docs/tour.md runs, draws the committed pictures, and says of them what they show."""

import re

import pytest

import pages
import tour
from pages import ROOT

PAGE = pages.text_of("docs/tour.md")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
ONE_PIXEL = 1.0
"""Of pictures some 350 wide: logits are summed in another order on another CPU."""


def test_the_page_shows_every_picture_with_words_for_it():
    shown = re.findall(r"^!\[(.+)\]\(images/(.+)\)$", PAGE, re.MULTILINE)
    assert sorted(name for _, name in shown) == sorted(path.name for path in (ROOT / "docs/images").iterdir())
    assert all(len(words) > 40 for words, _ in shown)


@pytest.mark.slow
def test_the_code_draws_the_committed_pictures_and_what_the_page_says_of_them_is_so(tmp_path):
    """The page runs once for all pictures and words. A share beyond five deviations: one of 100,000 seeds."""
    names = tour.draw(tmp_path)
    drawn, committed = (
        {path.name: path.read_text(encoding="utf-8") for path in (place / "images").iterdir()}
        for place in (tmp_path, ROOT / "docs")
    )
    assert drawn.keys() == committed.keys()
    assert {name for name in drawn if is_other(drawn[name], committed[name])} == set(), "run `make tour`"

    def kept(**fields):
        rows = names["A_CUP_OF"], names["STRONG_BLACK"]
        return [int((names["distribution"](row, **fields) > 0).sum()) for row in rows]

    assert kept(top_k=4) == [4, 4]
    assert kept(top_p=0.9) == [7, 2]
    assert kept(min_p=0.1) == [8, 2]
    assert names["same"].tolist() == [True, True, True, False]
    for shares, probs, count in (
        (names["shares"], names["probs"], 2000),
        (names["emitted"], names["p"], 4000),
    ):
        errors = (shares - probs).abs() / (probs * (1 - probs) / count).sqrt().clamp(min=1e-9)
        assert errors.max() < 5
    assert abs(names["accepted"] - 0.58) < 0.04


def is_other(drawn, committed):
    """Whether two pictures differ in more than numbers of a pixel."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (drawn, committed)]
    words = [NUMBER.sub("", text) for text in (drawn, committed)]
    return words[0] != words[1] or any(abs(a - b) > ONE_PIXEL for a, b in zip(*numbers, strict=True))
