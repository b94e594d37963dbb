"""Tables of counts, such as a confusion matrix: as pictures for every dashboard, and as numbers for the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pytorch_lightning.trainer.states import TrainerFn

from triptych.files import write_text
from triptych.loggers import publish
from triptych.pictures import fonts
from triptych.pictures.render import Picture, write_png, written
from triptych.tasks.base import Table, Task

_MOST = 25  # rows up to which every cell has its number, and every name is written


class TablesCallback(pl.Callback):
    """Draws and stores the tables that the task measured, after every validation.

    folder: the run's, which gets ``SPLIT-NAME.png`` and ``SPLIT-NAME.json``, the newest.
    """

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Task)
        data = trainer.datamodule  # type: ignore[attr-defined]
        self._publish(pl_module, data, trainer.loggers, "val", trainer.global_step)

    def measure(self, task: Task, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """No figures: the task's own metrics are those of its tables."""
        return {}, {}

    def conclude(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Draw what was measured over the test split, which comes last."""
        self._publish(task, data, loggers, "test", step)

    def pictures(self, task: Task, probe: Any, step: int) -> dict[str, Picture]:
        """None: a table is of a whole split."""
        return {}

    def _publish(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], split: str, step: int) -> None:
        """Draw what was measured over ``split`` last."""
        for name, table in task.tables(data).items():
            picture = draw(table, f"{name}, {split}, step {step:,}")
            write_png(picture, self.folder / f"{split}-{name}.png")
            write_counts(table, self.folder / f"{split}-{name}.json", name=name, split=split, step=step)
            publish.picture(loggers, f"{split}/{name}", picture, step, caption=f"{name}, {split}, step {step}")


def write_counts(table: Table, path: Path, *, name: str, split: str, step: int) -> None:
    """Store a table for ``run_folder.read_tables``: the file is there whole, or the one before it."""
    content = {
        "name": name,
        "split": split,
        "step": step,
        "rows": table.rows,
        "columns": table.columns,
        "names": list(table.names),
        "counts": table.counts.long().tolist(),
    }
    write_text(path, json.dumps(content) + "\n")  # ASCII: a name may hold anything


def draw(table: Table, title: str) -> Picture:
    """A table as a picture (uint8, height width 3): colours are shares of each row, numbers are counts."""
    counts = table.counts.double().cpu().numpy()
    size = len(counts)
    inches = min(max(3.6, 0.42 * size + 1.6), 11.0)
    figure = Figure(figsize=(inches + 0.6, inches), dpi=100, layout="constrained")
    agg = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel=table.columns, ylabel=table.rows)
    axes.set_title(title, fontsize=10)
    if size <= _MOST:
        names = [written(name) for name in table.names]
        upright = max(map(fonts.width, names)) <= 2
        font = fonts.properties(names, 10)
        axes.set_xticks(range(size), names, rotation=0 if upright else 90, parse_math=False, fontproperties=font)
        axes.set_yticks(range(size), names, parse_math=False, fontproperties=font)
        for row in range(size):
            for column in range(size):
                if counts[row, column]:
                    ink = "white" if shares[row, column] > 0.55 else "#1c2430"
                    text = f"{counts[row, column]:,.0f}"
                    axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
    figure.colorbar(shown, ax=axes, label=f"share of the {table.rows} class", shrink=0.8)
    agg.draw()
    return np.asarray(agg.buffer_rgba())[..., :3].copy()
