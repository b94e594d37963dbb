"""An exponential moving average of the weights, which validation, the best checkpoint and the test then use."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from triptych.attention.naive import upcast


class EMACallback(WeightAveraging):
    """Lightning's average of the weights (Polyak and Juditsky 1992), updated at every step.

    decay: of the average per update, between 0 and 1; it spans about ``1 / (1 - decay)`` updates. After n updates it is
    at most ``(1 + n) / (10 + n)``, so that a short run does not keep the weights it began with.

    Checkpoints hold the average as the model and the weights that train beside it, so that a resumed run goes on with
    these. Maps and samples taken while training are of the weights that train.

    The average of bfloat16 weights is kept in float32: what one update adds to it would be rounded away.
    """

    def __init__(self, *, decay: float) -> None:
        def average(averaged: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
            n = int(updates)
            return averaged.lerp(current.to(averaged.dtype), 1 - min(decay, (1 + n) / (10 + n)))

        super().__init__(avg_fn=average)
        self._unrounded: list[tuple[Tensor, Tensor]] = []  # parameters of the average, and what they are

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            for parameter in self._average_model.parameters():
                parameter.data = upcast(parameter.data)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # The model and its average change places for a validation, and the model may have less precision.
        if self._average_model is not None:
            both = zip(self._average_model.parameters(), pl_module.parameters(), strict=True)
            self._unrounded = [(mine, mine.data.clone()) for mine, other in both if mine.dtype != other.dtype]
        super().on_validation_epoch_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        for parameter, kept in self._unrounded:
            parameter.data.copy_(kept)
        self._unrounded = []

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the weights that train in place: the last checkpoint, written after this, needs them."""
