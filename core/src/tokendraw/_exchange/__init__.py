"""The data that callers and plugins exchange: parameters, metadata, capabilities, outputs."""
