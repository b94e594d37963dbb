"""A run's folder: how it is made, locked, written, read back and resumed.

In come records and numbers; out come files that are whole or not there, and what they say to whoever reads them.
"""
