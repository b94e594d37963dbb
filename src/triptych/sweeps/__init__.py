"""Many runs from one command: grids, lists, repeated seeds and searches, resumable at any moment.

In comes a configuration with several values; out come ordinary run folders, and a record that knows them all.
"""
