"""Hard attention: each query takes the one value whose key meets it best."""

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.attention import naive
from triptych.attention.masks import AttentionMask
from triptych.attention.operators.base import AttentionOperator
from triptych.attention.shapes import Float


class HardAttend(AttentionOperator):
    """One weight is 1, at the largest scaled dot product; the gradient passes as if it were softmax.

    The straight-through estimator (Bengio et al. 2013, arXiv 1308.3432), in place of sampling (Xu et al. 2015,
    arXiv 1502.03044, section 4.1). Of equal scores the first wins.
    """

    name = "hard"
    description = "the largest scaled dot product takes all"

    def weights_and_scores(
        self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"], mask: AttentionMask
    ) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T S"]]:
        """One-hot rows, and the scores that they come from."""
        score = naive.scores(query, key, mask)
        soft = naive.softmax(score)
        visible = (score > -torch.inf).any(-1, keepdim=True)
        chosen = F.one_hot(score.argmax(-1), score.shape[-1]).to(soft.dtype) * visible
        return chosen + soft - soft.detach(), score

    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        return naive.weighted_sum(self.weights_and_scores(query, key, mask)[0], value)
