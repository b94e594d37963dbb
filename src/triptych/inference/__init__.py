"""A trained model put to use: loaded from its run's folder, and measured again.

In comes a run's folder; out come a model in eval mode with all that is needed to use it, and figures.
"""
