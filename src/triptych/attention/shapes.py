"""Shape annotations. The letters: B batch, H heads, G key/value heads, T queries, S keys, D head size, C model width.

With jaxtyping installed these are its types, which the tests check on every call; without it they read as plain
tensors, so that the attention core needs nothing but torch.
"""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item: tuple[type, str]) -> type:
                return item[0]

        Bool = Float = Int = _Unchecked

__all__ = ["Bool", "Float", "Int", "Tensor"]
