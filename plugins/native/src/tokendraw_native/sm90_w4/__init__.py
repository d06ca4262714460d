"""Packs 4-bit weights and their scales for FlashInfer's SM90 mixed-input GEMM."""
