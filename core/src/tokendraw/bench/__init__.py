"""What ``tokendraw bench`` is made of: samplers timed against each other, and against a read of the same logits.

The operation ``verify`` goes the same way: a buffer holds the logits of the target and of the drafts, so that whatever
times a call on a buffer, or reads one, need not know of it.

::

    _cells       what is timed: shapes, dtypes, filters and families of logits; imports no torch, for the command line
    _logits      the rows of a family, and how many of their tokens a nucleus holds
    _contenders  who is timed: the installed samplers, and by name the baselines
    _baselines   what needs no plugin: the pipeline of sorts in plain torch; _flashinfer: FlashInfer called directly
    _verify      a verification as a call on one buffer
    _parameters  what rows ask for, as the baselines take it
    _floor       the read-only pass that ratios refer to
    _timing      medians and quartiles, by wall clock; _cuda_timing: by CUDA graphs
    _run         every cell, in turn
    _report      what was found; _table, _plot: as text and as a picture

Nothing here is public but the command.
"""
