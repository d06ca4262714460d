"""Gathers facts about this machine, from torch if loaded and from the drivers otherwise."""
