"""The operations of the core and those that native serves, as messages list them."""

ONE_OF_THE_OPERATIONS = "sample, verify, plan_paged_kv or pack_sm90_w4"
NATIVE_SERVES = "plan_paged_kv, sample and verify"
SERVED_BY_NATIVE = {"sample": "native", "verify": "native", "plan_paged_kv": "native"}
"""Who serves each operation where nothing else is installed."""
