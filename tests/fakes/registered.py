"""The operations of the core and those that native serves, as messages list them."""

ONE_OF_THE_OPERATIONS = "sample, verify, plan_paged_kv, pack_sm90_w4 or process_logits"
NATIVE_SERVES = "pack_sm90_w4, plan_paged_kv, process_logits, sample and verify"
SERVED_BY_NATIVE = dict.fromkeys(
    ("sample", "verify", "plan_paged_kv", "pack_sm90_w4", "process_logits"), "native"
)
"""Who serves each operation where nothing else is installed."""
