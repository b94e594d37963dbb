"""The attention core: needs only torch. Start with ``naive.py``, which is the equation."""

from triptych.attention.attend import BACKENDS, Attend, set_backend
from triptych.attention.cache import KeyValueCache, LayerCache
from triptych.attention.masks import EVERYTHING, AttentionMask
from triptych.attention.multihead import MultiHeadAttention
from triptych.attention.rotary import Rotary

__all__ = [
    "BACKENDS",
    "EVERYTHING",
    "Attend",
    "AttentionMask",
    "KeyValueCache",
    "LayerCache",
    "MultiHeadAttention",
    "Rotary",
    "set_backend",
]
