"""What the data of every task share: a contract, and loaders whose batches are known by their number."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from triptych.data.batches import Probe, TrainingBatches, training_loader


class TaskData(pl.LightningDataModule, ABC):
    """Data of one task. ``open`` reads them; ``restore`` takes from a run folder what using its model needs.

    workers: processes that make batches. start: number of the run's next training batch; set when a run resumes.
    training: the training batches, once opened. fingerprint: of the content, once opened; see ``sources.fingerprint``.
    """

    unit: ClassVar[str]  # what is counted: "characters", "images"
    workers: int
    training: TrainingBatches
    fingerprint: str

    def __init__(self) -> None:
        super().__init__()
        self.start = 0

    @abstractmethod
    def open(self) -> None:
        """Read the data. Raises UserError when there is nothing to read, or not what the settings say."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """What the data decide about the model, as its arguments."""

    @abstractmethod
    def describe(self) -> str:
        """One line: what there is to learn from."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Store in a run folder what using the trained model needs."""

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Take from a run folder what ``save`` stored."""

    @abstractmethod
    def evaluation(self, split: str) -> Any:
        """Batches that see every example of "validation" or "test" once: a sequence."""

    @abstractmethod
    def probes(self, count: int, length: int) -> list[Probe]:
        """``count`` fixed validation examples to take maps of, at most ``length`` positions long where that is free."""

    @property
    def batches_per_epoch(self) -> int:
        """Training batches that see the data once."""
        return self.training.per_epoch

    def train_dataloader(self) -> DataLoader:
        pin_memory = torch.cuda.is_available()
        return training_loader(self.training, start=self.start, workers=self.workers, pin_memory=pin_memory)

    def val_dataloader(self) -> DataLoader:
        return self._in_order("validation")

    def test_dataloader(self) -> DataLoader:
        return self._in_order("test")

    def _in_order(self, split: str) -> DataLoader:
        # With its own generator: a loader draws a number from the global one otherwise, which dropout uses.
        return DataLoader(self.evaluation(split), batch_size=None, generator=torch.Generator().manual_seed(0))
