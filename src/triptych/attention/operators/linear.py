"""Linear attention: similarities of feature maps instead of exponentials, so that a running sum replaces the map."""

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.attention import naive
from triptych.attention.masks import AttentionMask
from triptych.attention.operators.base import AttentionOperator
from triptych.attention.shapes import Float

CHUNK = 64  # positions that are compared directly; what lies before them comes as one D x D matrix


class LinearAttend(AttentionOperator):
    """Weights ``phi(query) . phi(key)``, each row brought to sum to 1, with phi = elu + 1.

    Katharopoulos et al. 2020, arXiv 2006.16236, equations 4 to 12; a fast weight programmer that only adds
    (Schmidhuber 1992). The cost grows with the length, not its square, without a mask and under a causal one.
    """

    name = "linear"
    description = "elu(query) + 1 times elu(key) + 1, divided by the row's sum"

    def weights_and_scores(
        self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"], mask: AttentionMask
    ) -> tuple[Float[Tensor, "B H T S"], None]:
        """The map that the running sum stands for. There are no scores before a softmax."""
        query, key = _features(query, key)
        met = (query @ key.mT).masked_fill(~mask.visible(query.shape[2], key.shape[2], query.device), 0.0)
        return _shares(met, met.sum(-1, keepdim=True)), None

    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        T, S = query.shape[2], key.shape[2]
        running = mask.causal and mask.query_offset == 0 and T == S and mask.window is None
        if mask.hides_by_position(T, S) and not running:
            return naive.weighted_sum(self.weights_and_scores(query, key, mask)[0], value)
        query, key = _features(query, key)
        if mask.key_padding is not None:
            key = key.masked_fill(~mask.key_padding[:, None, :, None], 0.0)
        # One column more, of ones: it sums the similarities that each row is divided by.
        value = F.pad(naive.repeat_kv(naive.upcast(value), query.shape[1]), (0, 1), value=1.0)
        summed = _running(query, key, value) if running else query @ (key.mT @ value)
        return _shares(summed[..., :-1], summed[..., -1:])


def _running(
    query: Float[Tensor, "B H T D"], key: Float[Tensor, "B H T D"], value: Float[Tensor, "B H T E"]
) -> Float[Tensor, "B H T E"]:
    """``sum_{j <= i} (query_i . key_j) value_j``, chunk by chunk."""
    written = query.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    contexts = []
    for q, k, v in zip(query.split(CHUNK, 2), key.split(CHUNK, 2), value.split(CHUNK, 2), strict=True):
        contexts.append(q @ written + (q @ k.mT).tril() @ v)
        written = written + k.mT @ v
    return torch.cat(contexts, 2)


def _features(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    query, key = F.elu(naive.upcast(query)) + 1, F.elu(naive.upcast(key)) + 1
    return query, naive.repeat_kv(key, query.shape[1])


def _shares(summed: Tensor, total: Tensor) -> Tensor:
    """0, with finite gradients, where nothing was visible."""
    nothing = total == 0
    return (summed / total.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)
