"""Which source word a target word's attention points at, and how well that agrees with a known alignment.

In come cross-attention weights and words; out come links, error rates and statistics.
"""
