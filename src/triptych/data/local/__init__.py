"""Files on this machine, read by a few explicit rules: what is in them is what is trained on.

In comes a path; out come tables of train, validation and test, and a report of what was read and what was left out.
`layout` says which files are data and which split each belongs to, `tables` and `texts` read them cell by cell,
`pictures` finds the classes of picture folders. Nothing is guessed from contents, and nothing is cached.
"""
