"""State of requests that an engine keeps on the device for its life: parameters, histories, lists of edits."""
