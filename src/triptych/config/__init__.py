"""From a configuration to objects, with what does not fit refused in one sentence before any work is done.

In comes a composed configuration; out come data, model, task and trainer.
"""
