"""The attention core, which needs only torch. Start with ``naive.py``: it is the equation.

In come queries, keys, values and a mask; out comes the context. Weights are never returned: `triptych.maps` takes them.
"""

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
