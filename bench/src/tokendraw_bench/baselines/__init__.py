"""Contenders that need no plugin: the pipeline of sorts in plain torch, and FlashInfer called directly.

Parameters are tensors by row, as in a batch of different requests. No baseline waits for the device or takes seeds by
row: the noise is that of the launch.
"""
