"""Sweeps: grids, several seeds, and searches that may be cut at any moment and go on."""
