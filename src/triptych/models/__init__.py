"""The models, blocks around the attention core, and how they write: sampling and beam search.

In come tensors and sizes that the data decide; out come logits.
"""
