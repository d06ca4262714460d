"""Stands in for the parameters of a request as SGLang's front end leaves them."""

from dataclasses import dataclass

TOP_K_ALL = 1 << 30


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    sampling_seed: int | None = None
    custom_params: dict | None = None

    def verify(self, vocab_size):
        raise NotImplementedError

    def normalize(self, tokenizer):
        if self.temperature < 1e-6:
            self.temperature, self.top_k = 1.0, 1
        if self.top_k == -1:
            self.top_k = TOP_K_ALL
