"""What the data of every task share: a contract, and loaders whose batches are known by their number."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from triptych.data import sources
from triptych.data.batches import Parts, Probe, TrainingBatches, training_loader
from triptych.data.local.report import DataReport
from triptych.errors import UserError

if TYPE_CHECKING:
    from datasets import DatasetDict


class TaskData(pl.LightningDataModule, ABC):
    """Data of one task. ``open`` reads them; ``restore`` takes from a run folder what using its model needs.

    source, path, config, revision, files, columns, splits: see ``sources.open``. seed: decides the order of training.
    workers: processes that make batches. start: number of the run's next training batch; set when a run resumes.
    rank, processes: which of how many processes this is; each is given its part of every batch.
    training: the training batches, once opened.
    report: what was read and what was left out, once opened.
    restored: whether ``restore`` has set how data are read: then ``open`` learns no vocabulary or scale anew.
    fingerprint: of the content, once opened; see ``sources.fingerprint``.
    """

    unit: ClassVar[str]  # what is counted: "characters", "images"
    batch_size: int  # examples, where every batch has as many
    training: TrainingBatches
    report: DataReport
    fingerprint: str

    def __init__(
        self,
        *,
        source: str,
        path: str | None,
        config: str | None,
        revision: str | None,
        files: str | None,
        columns: Mapping[str, str],
        splits: Mapping[str, str | float],
        seed: int,
        workers: int,
    ) -> None:
        super().__init__()
        if workers < 0:
            raise UserError(f"data.workers={workers}; it must be at least 0")
        self.source, self.path, self.config, self.revision = source, path, config, revision
        self.files, self.columns, self.splits = files, columns, splits
        self.seed, self.workers = seed, workers
        self.start = 0
        self.restored = False
        self.rank, self.processes = 0, 1

    def _read(
        self, *, document: bool, stratify: str | None = None, layout: str | None = None, cast: bool = False
    ) -> "DatasetDict":
        """What the settings name, as train, validation and test, and its fingerprint; see ``sources.open``."""
        self.report = DataReport()
        dataset = sources.open(
            source=self.source,
            path=self.path,
            config=self.config,
            revision=self.revision,
            files=self.files,
            columns=self.columns,
            splits=self.splits,
            document=document,
            seed=self.seed,
            stratify=stratify,
            layout=layout,
            cast=cast,
            report=self.report,
        )
        self.fingerprint = sources.fingerprint(dataset)
        return dataset

    @abstractmethod
    def open(self) -> None:
        """Read the data. Raises UserError when there is nothing to read, or not what the settings say."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """What the data decide about the model, as its arguments."""

    @abstractmethod
    def contents(self) -> str:
        """What there is to learn from, in a few words."""

    def describe(self) -> str:
        """One line: where the data come from, what was read and left out of it, and what there is to learn from."""
        return "; ".join([f"{self.path or self.source}: {self.contents()}", *self.report.lines()])

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Store in a run folder what using the trained model needs."""

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Take from a run folder what ``save`` stored, and set ``restored``."""

    def reads_as(self, folder: Path) -> bool:
        """Whether ``save`` would store now what a run folder has: the run reads the same data in the same way."""
        with tempfile.TemporaryDirectory() as place:
            self.save(Path(place))
            files = list(Path(place).iterdir())
            return all((folder / file.name).read_bytes() == file.read_bytes() for file in files)

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

    def positions_per_batch(self, context: int) -> int:
        """How many positions a training batch has, for a model with ``context`` of them per example."""
        return self.batch_size * context

    def train_dataloader(self) -> DataLoader:
        pin_memory = torch.cuda.is_available()
        return training_loader(
            self.training,
            start=self.start,
            workers=self.workers,
            pin_memory=pin_memory,
            rank=self.rank,
            processes=self.processes,
        )

    def val_dataloader(self) -> DataLoader:
        return self._in_order("validation")

    def test_dataloader(self) -> DataLoader:
        return self._in_order("test")

    def _in_order(self, split: str) -> DataLoader:
        # With its own generator: a loader draws a number from the global one otherwise, which dropout uses.
        generator = torch.Generator().manual_seed(0)
        batches = Parts(self.evaluation(split), self.rank, self.processes)
        return DataLoader(batches, batch_size=None, num_workers=self.workers, generator=generator)
