"""The native sampler with a flag of float64 noise that some of its random numbers do not see."""

import torch

from tokendraw_native import sampler, verify
from tokendraw_native.noise import Noise


def drop_float64(monkeypatch, *streams):
    """Let native draw the noise of these streams in float32, whatever it was built for."""

    class Mixed(Noise):
        def gumbel(self, index, stream, dtype):
            asked, dropped = (Noise.gumbel(self, index, stream, each) for each in (dtype, "fp32"))
            is_dropped = torch.isin(torch.as_tensor(stream), torch.tensor(streams))
            return torch.where(is_dropped, dropped.to(asked.dtype), asked)

        def uniform(self, stream, dtype):
            return Noise.uniform(self, stream, "fp32" if stream in streams else dtype)

    for module in (sampler, verify):
        monkeypatch.setattr(module, "Noise", Mixed)
