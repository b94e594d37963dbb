"""Several processes that train one model: how they start and meet, and what they tell one another.

In comes the entry point of the other processes; out comes this process's place among them.
"""
