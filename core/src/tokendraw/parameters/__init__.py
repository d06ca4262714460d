"""Parameters of requests and of batches: checks, tensors, and the host's knowledge of the rows."""
