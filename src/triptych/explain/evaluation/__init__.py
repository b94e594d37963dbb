"""Tests of explanations: deletion and insertion against random orders, interventions, intervals, verdicts.

In come scores of inputs and a model; out come measured differences, and what may be said of them.
"""
