"""Exact attention maps of a model that runs on a fast kernel: capture, records, pictures, and the callback."""
