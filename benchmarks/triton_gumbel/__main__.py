"""Proves on one GPU what triton-gumbel promises; each command prints a table in Markdown.

    python benchmarks/triton_gumbel agree               # a million seeded draws against native
    python benchmarks/triton_gumbel invariance          # any batch size, stride, graph and tile configuration
    python benchmarks/triton_gumbel chains              # verifications of drafts against native's
    python benchmarks/triton_gumbel large               # beyond 2^31 and 2^32 logits
    python benchmarks/triton_gumbel worst               # what the worst logits cost
    python benchmarks/triton_gumbel extras              # what mixed rows, logprobs and fp64 noise cost
    python benchmarks/triton_gumbel host                # how long calls keep the host, by their number of rows
    python benchmarks/triton_gumbel step                # what one step costs the host, with its launches and without
    python benchmarks/triton_gumbel logprobs            # what logprobs cost, by mode, with ranks and without
    python benchmarks/triton_gumbel profile-run         # a draw of each kind, to be run under Nsight Compute
    python benchmarks/triton_gumbel profile --counters FILE   # what it counted, as a table
    python benchmarks/triton_gumbel memcheck-run        # odd shapes, to be run under compute-sanitizer

``--output FILE`` writes the table to a file, too. ``--small --device cpu --sampler native`` tries a command in seconds
on a machine without a GPU. Exits with 1 where what was promised does not hold, or nothing could be tried.
"""

from commands import main

if __name__ == "__main__":
    main()
