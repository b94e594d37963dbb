"""What every task shares: optimizer, scheduler, losses over whole splits, and state that makes resuming exact."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from triptych.data.batches import Probe, generator_for
from triptych.data.module import TaskData
from triptych.distributed import collectives
from triptych.errors import UserError
from triptych.tasks.losses import MeanLoss
from triptych.training import sharding

OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Table(NamedTuple):
    """Counts N N under the same names in rows and columns, and what rows and columns are."""

    names: Sequence[str]
    counts: Tensor
    rows: str
    columns: str


class Task(pl.LightningModule, ABC):
    """A model, its loss and its metrics. Subclasses say what a batch is and how a prediction is scored.

    model: the module that maps are taken from and checkpoints hold.
    optimizer, scheduler: called with the model and the optimizer when training starts.
    compiled: run training through ``torch.compile``; the model itself stays as it is, for maps.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]  # every metric that validation logs and a run may watch
    optional_modules: ClassVar[tuple[str, ...]] = ()  # of ``environment.EXTRAS``, without which nothing is trained
    data_class: ClassVar[type[TaskData]]
    model_classes: ClassVar[tuple[type[nn.Module], ...]]

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory,
        compiled: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer, self.scheduler = optimizer, scheduler
        # In a list, so that its parameters are not registered a second time.
        self._running: list[Callable[..., Tensor]] = [torch.compile(model) if compiled else model]
        self.notes: dict[str, str] = {}  # how metrics came about, where that needs saying
        self.answers: list[dict[str, str]] = []  # to the test split, where they are worth keeping
        self.seen = 0  # characters, tokens or images trained on, repeats counted
        self._counts: list[int] = []  # what each batch of this update predicts, so far
        self._random_state: dict[str, Any] | None = None
        self.split_loss = nn.ModuleDict({split: MeanLoss() for split in ("val", "test")})

    @abstractmethod
    def logits(self, model: Callable[..., Tensor], batch: Any) -> Tensor:
        """What ``model`` says to a batch: this task's model, its compiled copy, or the copy that maps are taken of."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Any) -> tuple[Tensor, int]:
        """Mean loss of a batch, and over how many it is the mean."""

    @abstractmethod
    def streams(self, site: str, kind: Literal["self", "cross"]) -> tuple[str, str]:
        """Which of a probe's labels belong to the queries and to the keys of an attention site."""

    def probes(self, data: Any, count: int, length: int) -> list[Probe]:
        """``count`` fixed examples to take maps of, none longer than ``length`` positions."""
        return data.probes(count, length)

    def inputs(self, data: Any, given: str, *args: Any, **options: Any) -> list[Probe]:
        """A person's input as examples to take maps of. Raises UserError when it is none."""
        raise UserError(f"maps=true: task={self.name} draws no maps of an input")

    def outcome(self, logits: Tensor, probe: Probe) -> str | None:
        """What the model made of a probe, in words, for its maps; None where there is nothing short to say."""
        return None

    def tables(self, data: Any) -> dict[str, Table]:
        """Tables of counts over the split that was evaluated last, by name, for the dashboards."""
        return {}

    def sample(self, data: Any, *args: Any, **options: Any) -> tuple[str, str] | None:
        """Something for a person to judge the model by: what it was given, and what it made of it; None for nothing."""
        return None

    def predict(self, data: Any, given: str, *args: Any, **options: Any) -> Iterator[str]:
        """The model's answer to a person's input, piece by piece. Raises UserError for a task that takes none."""
        raise UserError(f"input=: task={self.name} answers no input of a person")

    def pieces(self, given: str) -> int | None:
        """How many pieces ``predict`` will give, where that is known and worth a progress bar."""
        return None

    def check_sample(self, **options: Any) -> None:
        """Raise UserError for options that ``sample`` would refuse, before training starts."""
        return

    def echo(self, data: Any, given: str) -> str:
        """What stands before the answer when a person's input is answered; nothing unless the answer continues it."""
        return ""

    @property
    def epoch(self) -> float:
        """How often the training data have been seen so far."""
        batches = self.trainer.global_step * self.trainer.accumulate_grad_batches
        return batches / self.trainer.datamodule.batches_per_epoch  # type: ignore[attr-defined]

    @property
    def running(self) -> Callable[..., Tensor]:
        """The model as training runs it: compiled if that was asked for."""
        return self._running[0]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self._counts = []
        self._counts.append(batch.seen_by_all)

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss, _ = self.loss(self.logits(self.running, batch), batch)
        self.seen += batch.seen_by_all
        # Processes average their gradients: so weighted, that is the mean over the whole batch, not a mean of means.
        return loss if batch.share == 1.0 else loss * batch.share

    def backward(self, loss: Tensor, *args: Any, **options: Any) -> None:
        # An update accumulates means over batches of different size: each counts as many times the first as it is
        # larger, and `on_before_optimizer_step` divides by how much that is together.
        weight = self._counts[-1] / self._unit
        super().backward(loss if weight == 1.0 else loss * weight, *args, **options)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # Lightning has divided by the number of batches. A loss scale is undone by now, and clipping is still to come.
        factor = self.trainer.accumulate_grad_batches * self._unit / max(sum(self._counts), 1)
        if factor != 1.0:
            every = [each for group in optimizer.param_groups for each in group["params"]]
            torch._foreach_mul_([each.grad for each in every if each.grad is not None], factor)

    @property
    def _unit(self) -> int:
        return max(self._counts[0], 1)

    def validation_step(self, batch: Any, index: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Any, index: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: Any) -> None:
        logits = self.logits(self.model, batch).double()
        if batch.share == 0.0:
            return  # another process counts it
        loss, count = self.loss(logits, batch)
        self.mean_loss(split).update(loss, count)
        self.evaluated(split, logits, batch)

    def evaluated(self, split: str, logits: Tensor, batch: Any) -> None:
        """Measure more of an evaluation batch than its loss; ``log_split`` logs it."""
        return

    def on_validation_epoch_end(self) -> None:
        self.log_split("val")

    def on_test_epoch_end(self) -> None:
        self.log_split("test")

    def log_split(self, split: str) -> None:
        """Log what was measured over a whole split."""
        self.log(f"{split}/loss", self.mean_loss(split).compute())
        if split == "val":
            # Lightning's own counts are one update behind here, and know no parts of an epoch.
            self.log("step", float(self.trainer.global_step))
            self.log("epoch", self.epoch)
        self.mean_loss(split).reset()

    def mean_loss(self, split: str) -> MeanLoss:
        """Mean loss over what of ``split`` ("val" or "test") was measured since the last reset."""
        return cast(MeanLoss, self.split_loss[split])

    def configure_model(self) -> None:
        """Split the model where ``trainer=fsdp`` asks for it."""
        if (mesh := sharding.mesh_of(self.trainer)) is not None:
            sharding.shard(self.model, mesh)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.model)
        scheduler = self.scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Plain tensors: they load with weights_only.
        checkpoint["seen"] = self.seen
        on_gpu = self.device.type == "cuda"
        mine = {"cpu": torch.get_rng_state(), "cuda": [torch.cuda.get_rng_state(self.device)] if on_gpu else []}
        first, *others = collectives.gather(mine)
        checkpoint["random_state"] = {**first, "others": others}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = checkpoint["seen"]
        first = checkpoint["random_state"]
        states = [first, *first.get("others", [])]
        # With another number of processes each begins a new sequence.
        self._random_state = states[collectives.rank()] if len(states) == collectives.size() else None

    def on_train_start(self) -> None:
        # Last before the first batch: whatever draws between loading and here would shift dropout.
        if self._random_state is not None:
            torch.set_rng_state(self._random_state["cpu"].cpu())
            if self.device.type == "cuda" and len(self._random_state["cuda"]) == 1:
                torch.cuda.set_rng_state(self._random_state["cuda"][0].cpu(), self.device)
            self._random_state = None
        elif collectives.size() > 1:  # Lightning has given all of them the same: their dropout would be the same
            own = generator_for(torch.initial_seed(), collectives.rank(), self.trainer.global_step)
            torch.manual_seed(own.initial_seed())
