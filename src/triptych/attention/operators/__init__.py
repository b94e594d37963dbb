"""Other ways to attend, which share the core's interface and give exact maps: linear, delta rule, hard, positional.

In come queries, keys, values and a mask; out comes the context.
"""
