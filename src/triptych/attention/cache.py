"""Keys and values of earlier decoding steps, so that a new token costs one query instead of a whole pass."""

import torch

from triptych.attention.shapes import Float, Int, Tensor

SPARE = 16  # positions that a buffer has room for after its rows were selected


class LayerCache:
    """Keys and values of one attention layer, up to ``capacity`` positions, in a buffer made at first use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(
        self, key: Float[Tensor, "B G T D"], value: Float[Tensor, "B G T D"]
    ) -> tuple[Float[Tensor, "B G S D"], Float[Tensor, "B G S D"]]:
        """Append T positions and return all so far (views, S = length). Raises ValueError beyond the capacity."""
        end = self.length + key.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, and {end} were asked for")
        B, G, _, D = key.shape
        if self._key is None or self._value is None or (self.length == 0 and self._key.shape[:2] != (B, G)):
            self._key = torch.empty(B, G, self.capacity, D, dtype=key.dtype, device=key.device)
            self._value = torch.empty_like(self._key)
        elif end > self._key.shape[2]:
            self._key, self._value = (self._moved(each[:, :, : self.length], end) for each in (self._key, self._value))
        self._key[:, :, self.length : end] = key
        self._value[:, :, self.length : end] = value
        self.length = end
        return self.kept()

    def kept(self) -> tuple[Float[Tensor, "B G S D"], Float[Tensor, "B G S D"]]:
        """All keys and values so far. Raises ValueError when there are none."""
        if self._key is None or self._value is None or not self.length:
            raise ValueError("the cache is empty")
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows of the batch, in this order; a row may be repeated."""
        if self.length:
            self._key, self._value = (self._moved(each.index_select(0, rows), self.length) for each in self.kept())

    def _moved(self, filled: Float[Tensor, "B G S D"], needed: int) -> Float[Tensor, "B G c D"]:
        """What is filled, in a new buffer with a little room to spare: selected at every step, a whole one costs."""
        B, G, S, D = filled.shape
        buffer = filled.new_empty(B, G, min(self.capacity, needed + SPARE), D)
        buffer[:, :, :S] = filled
        return buffer


class KeyValueCache:
    """One LayerCache per layer. ``length`` is the number of positions decoded so far."""

    def __init__(self, *, layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    @property
    def length(self) -> int:
        return self.layers[0].length

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows of the batch in every layer, in this order; a row may be repeated."""
        for layer in self.layers:
            layer.select(rows)

    def reset(self) -> None:
        """Forget everything; the buffers are kept."""
        for layer in self.layers:
            layer.length = 0
