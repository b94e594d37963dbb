"""Pairs of phrases in two languages, with their true word alignment, from the Unicode CLDR that Babel carries.

In come two locales; out come train, validation and test pairs.
"""
