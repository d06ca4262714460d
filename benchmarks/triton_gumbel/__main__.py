"""Compares triton-gumbel with the reference on a GPU; each command prints a table in Markdown.

    python benchmarks/triton_gumbel agree               # a million seeded draws against native
    python benchmarks/triton_gumbel chains              # verifications of drafts against native's
    python benchmarks/triton_gumbel step --own          # host time of a step, without its launches

``--output FILE`` writes the table to a file, too. ``--small --device cpu --sampler native`` tries a command in seconds
on a machine without a GPU. Exits with 1 where a promise does not hold, or nothing could be tried.
"""

from commands import main

if __name__ == "__main__":
    main()
