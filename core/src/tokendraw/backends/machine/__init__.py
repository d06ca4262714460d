"""Gathers facts about this machine, from torch if it is loaded and from the drivers otherwise."""
