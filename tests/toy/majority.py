"""A fourth task as somebody else would add it: which bit a row of bits has most of. Nothing of ours knows of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.attention import Attend, AttentionMask, MultiHeadAttention
from triptych.data.batches import Batch, Probe, generator_for
from triptych.data.local.report import DataReport
from triptych.data.module import TaskData
from triptych.errors import UserError
from triptych.models.blocks import Block, FeedForward, initialise
from triptych.tasks.base import Task

SPLITS = {"train": 512, "validation": 64, "test": 64}  # and how many rows of bits each has


@dataclass
class BitBatch(Batch):
    """Rows of bits, and the bit that each has most of."""

    bits: Tensor  # B T
    majority: Tensor  # B

    @property
    def seen(self) -> int:
        return len(self.bits)

    @property
    def costs(self) -> Tensor:
        return torch.ones(len(self.bits), dtype=torch.long)

    def take(self, rows: Tensor) -> "BitBatch":
        return BitBatch(self.bits[rows], self.majority[rows])


class Batches:
    """The rows of a split, a batch at a time; every epoch of training in another order."""

    def __init__(self, rows: BitBatch, size: int, seed: int | None) -> None:
        self.rows, self.size, self.seed = rows, size, seed
        self.per_epoch = -(-len(rows.bits) // size)

    def batch(self, epoch: int, k: int) -> BitBatch:
        order = torch.arange(len(self.rows.bits))
        if self.seed is not None:
            order = torch.randperm(len(order), generator=generator_for(self.seed, epoch))
        return self.rows.take(order[k * self.size : (k + 1) * self.size])

    def __len__(self) -> int:
        return self.per_epoch

    def __getitem__(self, k: int) -> BitBatch:
        if not 0 <= k < self.per_epoch:
            raise IndexError(k)
        return self.batch(0, k)


class BitData(TaskData):
    """Rows of ``length`` bits, drawn with a fixed seed."""

    unit = "rows"

    def __init__(self, *, length: int, batch_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.length, self.batch_size = length, batch_size

    def open(self) -> None:
        self.report = DataReport()
        self.rows = {}
        for number, (split, count) in enumerate(SPLITS.items()):
            bits = torch.randint(2, (count, self.length), generator=generator_for(7, number))
            self.rows[split] = BitBatch(bits, (bits.sum(1) * 2 > self.length).long())
        self.training = Batches(self.rows["train"], self.batch_size, self.seed)
        self.fingerprint = f"bits-{self.length}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"length": self.length}

    def contents(self) -> str:
        return f"{SPLITS['train']} rows of {self.length} bits"

    def save(self, folder: Path) -> None:
        (folder / "bits.json").write_text(json.dumps({"length": self.length}), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        self.length = json.loads((folder / "bits.json").read_text(encoding="utf-8"))["length"]
        self.restored = True

    def evaluation(self, split: str) -> Batches:
        return Batches(self.rows[split], self.batch_size, None)

    def probes(self, count: int, length: int) -> list[Probe]:
        return [self.probe(bits) for bits in self.rows["validation"].bits[:count]]

    def probe(self, bits: Tensor) -> Probe:
        text = "".join(str(int(bit)) for bit in bits)
        batch = BitBatch(bits[None], (bits.sum()[None] * 2 > len(bits)).long())
        return Probe(text, batch, {"bits": list(text)})


class BitModel(nn.Module):
    """One transformer block over embedded bits, and a decision from their mean."""

    def __init__(self, *, length: int, width: int, heads: int, attention: Callable[..., Attend]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, width)
        attend = MultiHeadAttention(width=width, heads=heads, kv_heads=None, attend=attention)
        feed_forward = FeedForward(width=width, hidden=2 * width, activation="gelu")
        self.blocks = nn.ModuleList([Block(width=width, attention=attend, feed_forward=feed_forward, dropout=0.0)])
        self.decide = nn.Linear(width, 2)
        initialise(self)

    def forward(self, bits: Tensor) -> Tensor:
        return self.decide(self.blocks[0](self.embedding(bits), AttentionMask()).mean(1))


class MajorityTask(Task):
    """Say which bit a row has most of."""

    name = "majority"
    metrics = ("val/loss",)
    data_class, model_classes = BitData, (BitModel,)

    def logits(self, model: Callable[..., Tensor], batch: BitBatch) -> Tensor:
        return model(batch.bits)

    def loss(self, logits: Tensor, batch: BitBatch) -> tuple[Tensor, int]:
        return F.cross_entropy(logits, batch.majority), len(batch.majority)

    def streams(self, site: str, kind: Literal["self", "cross"]) -> tuple[str, str]:
        return "bits", "bits"

    def inputs(self, data: BitData, given: str) -> list[Probe]:
        if set(given) - {"0", "1"}:
            raise UserError(f"input={given} must be a row of 0 and 1")
        return [data.probe(torch.tensor([int(bit) for bit in given]))]

    def predict(self, data: BitData, given: str) -> Iterator[str]:
        (probe,) = self.inputs(data, given)
        with torch.inference_mode():
            yield str(int(self.logits(self.model, probe.batch).argmax()))


class WeightNorm(pl.Callback):
    """Somebody's callback: logs at each validation a figure that a run may watch, and notes when the run ended."""

    metrics = ("val/weight_norm",)

    def __init__(self, *, folder: Path, power: float) -> None:
        if power <= 0:
            raise UserError(f"callbacks.weight_norm.power={power}; it must be above 0")
        self.folder, self.power = folder, power

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        norms = [parameter.detach().double().norm(self.power) for parameter in pl_module.parameters()]
        pl_module.log("val/weight_norm", torch.stack(norms).sum())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        (self.folder / "ended.txt").write_text(f"{trainer.global_step}\n", encoding="utf-8")
