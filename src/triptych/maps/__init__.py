"""Exact attention maps: taken from a model while it runs, or replaced in it, and kept with where they come from.

In come a model and examples; out come records (numbers and provenance). Nothing is drawn here.
"""
