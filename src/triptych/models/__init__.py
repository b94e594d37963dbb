"""Tensors in, tensors out: blocks around the attention core, and the models made of them."""
