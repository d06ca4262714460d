"""Parameters of requests and of batches: their checks, their tensors, and what the host knows of the rows."""
