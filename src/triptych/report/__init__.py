"""Pages that open offline: of a run, of an explanation, of several runs side by side.

In comes a folder; out comes one HTML file. `assets/` holds its templates, styles and scripts.
"""
