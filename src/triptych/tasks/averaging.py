"""An exponential moving average of the weights, which validation, the best checkpoint and the test then use."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor


class Averaged(WeightAveraging):
    """Lightning's average of the weights (Polyak and Juditsky 1992), updated at every step.

    decay: of the average per update, between 0 and 1; it spans about ``1 / (1 - decay)`` updates. After n updates it is
    at most ``(1 + n) / (10 + n)``, so that a short run does not keep the weights it began with.

    Checkpoints hold the average as the model and the weights that train beside it, so that a resumed run goes on with
    these. Maps and samples taken while training are of the weights that train.
    """

    def __init__(self, *, decay: float) -> None:
        def average(averaged: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
            n = int(updates)
            return averaged.lerp(current, 1 - min(decay, (1 + n) / (10 + n)))

        super().__init__(avg_fn=average)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the weights that train in place: the last checkpoint, written after this, needs them."""
