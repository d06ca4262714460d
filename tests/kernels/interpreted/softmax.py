"""Probabilities from the softmax kernel of flashinfer in Triton's interpreter, beside torch's."""

import torch

from special_rows import POISON, gaussians
from tokendraw.probabilities import relative
from tokendraw_flashinfer import softmax

softmax.configuration = lambda rows, width: (512, 1)  # several steps a row, the last of them partial


def errors():
    rows = torch.cat([gaussians(4), torch.stack(list(POISON.values()))])
    padded = torch.full((len(rows), rows.shape[1] + 3), float("nan"))
    wrong, compared = [], 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for temperature in (None, 0.7, 1e-37, 1e37):
            padded[:, :-3] = rows
            logits = padded.to(dtype)[:, :-3]
            t = None if temperature is None else torch.full((len(rows),), temperature)
            y, valid = relative(logits)
            expected = torch.softmax(y.double() / (temperature or 1.0), -1)
            probs, flags = softmax.softmax(logits, t)
            compared += len(rows)
            apart = (probs - expected).abs().amax(-1)
            if not torch.equal(valid, flags):
                wrong.append(f"{dtype} {temperature}: valid {flags.tolist()}, not {valid.tolist()}")
            if not (apart < 1e-5).all():
                wrong.append(f"{dtype} {temperature}: rows {(~(apart < 1e-5)).nonzero().flatten().tolist()}")
    return {"wrong": wrong, "compared": compared}
