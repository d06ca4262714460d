"""The operation ``verify``: speculative decoding."""
