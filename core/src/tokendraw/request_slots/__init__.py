"""Request state kept on the device for an engine's life: parameters, histories, lists of edits."""
