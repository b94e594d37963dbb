"""What single heads do on given inputs, and what leaving them out does.

In come weights of every head; out come statistics, importance and ablations.
"""
