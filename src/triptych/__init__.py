"""triptych: one attention core, three tasks trained on it, and exact maps of what it attends to.

The top level is lazy (PEP 562): ``import triptych.attention`` needs nothing but torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "load": "triptych.inference.loading",
    "Attend": "triptych.attention",
    "AttentionMask": "triptych.attention",
    "KeyValueCache": "triptych.attention",
    "MultiHeadAttention": "triptych.attention",
    "set_backend": "triptych.attention",
    "capture": "triptych.maps.capture",
    "intervene": "triptych.maps.capture",
    "MapRecord": "triptych.maps.record",
    "UserError": "triptych.errors",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'triptych' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
