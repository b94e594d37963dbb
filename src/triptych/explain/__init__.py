"""What a map does and does not show: methods that rank inputs, tests of their rankings, alignments, heads.

In come a trained task and examples; out come findings as data. Nothing is drawn or written here.
"""
