"""Proves a sampler by a draw of known tokens."""

from __future__ import annotations

import torch

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.calls import proof_rows
from tokendraw.calls.output_checks import wrong_output
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.sample.backend import SamplerBackend
from tokendraw.parameters.metadata import SamplingMetadata


def prove(backend: SamplerBackend, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Draw from two rows: all mass on a middle token, and half of it on the first and last token each.

    :raises PluginError: the output is not what it has to be.
    """
    logits = proof_rows.zeros(2, capabilities, device, need)
    vocab_size = logits.shape[1]
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = proof_rows.PEAK
    pristine = logits.clone()
    params = [proof_rows.params(capabilities, need)] * 2  # equal, so that a scalar filter can serve both
    output = backend.sample(logits, SamplingMetadata.from_params(params, device=device))

    proof_rows.require(wrong_output(output, logits, None))
    for row, (token, allowed) in enumerate(zip(output.token_ids.tolist(), expected, strict=True)):
        if token not in allowed:
            raise PluginError(
                f"the proof draw needs token {' or '.join(map(str, sorted(allowed)))} in row {row} "
                f"of {vocab_size} logits, found {token}"
            )
    if capabilities.valid_flag and not all(output.valid.tolist()):
        raise PluginError(f"the proof draw needs two valid rows, found valid {output.valid.tolist()}")
    if not torch.equal(logits, pristine):
        raise PluginError("the proof draw needs its logits unmodified, found them changed")
