"""Contenders that need no plugin: the pipeline of sorts in plain torch, and FlashInfer called directly.

Their parameters are tensors by row, as in a batch of different requests. None of them waits for the device, and none
takes seeds by row: each draws with the noise of the launch.
"""
