"""One file per command: short lists of calls to the rooms above, and the command line itself (`cli`).

In comes a configuration as a person gave it; out come what the command makes, and what the terminal shows.
"""
