"""Methods that say which inputs matter: one file each, and the registry that says what each needs.

In come captured weights, gradients and activations; out come scores of inputs.
"""
