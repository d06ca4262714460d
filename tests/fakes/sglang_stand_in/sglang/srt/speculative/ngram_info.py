"""Stands in for the drafts that SGLang takes from a corpus of n-grams."""

from sglang.srt.speculative.eagle_info import EagleVerifyInput


class NgramVerifyInput(EagleVerifyInput):
    pass
