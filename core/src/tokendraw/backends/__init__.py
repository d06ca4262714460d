"""The steps before a call: describe, discover and choose backends, look at the machine, build and prove the winner."""
