"""Data sets as typed batches: sources, texts and pictures as numbers, and one data module per task.

In come settings (a hub id, a path, an embedded set); out come batches, each a pure function of seed, epoch and number.
"""
