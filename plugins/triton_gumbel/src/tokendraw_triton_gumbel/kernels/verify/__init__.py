"""The verification of drafts."""
