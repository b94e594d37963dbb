"""Static pictures of records and findings, for files, dashboards and terminals.

In come records, scores and words; out come arrays of pixels.
"""
