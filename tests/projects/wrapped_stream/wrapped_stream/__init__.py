"""Scales a tensor on the current stream."""
