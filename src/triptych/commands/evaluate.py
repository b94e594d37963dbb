"""`make evaluate`: the metrics of a checkpoint again, beside what the run said."""

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from triptych.commands.assembly import analyses
from triptych.environment import silence_lightning
from triptych.errors import UserError
from triptych.inference.loading import load
from triptych.inference.measuring import measure

console = Console(highlight=False, markup=False)


def evaluate(config: DictConfig) -> dict[str, float]:
    """Measure a checkpoint of a run again, on validation and test, and compare with what the run said."""
    silence_lightning()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.data.path is not None:  # the data have moved
        trained.data.path = config.data.path
    trained.data.open()
    console.print(trained.data.describe(), soft_wrap=True)
    summary = trained.folder.summary()
    known = summary.get("data", {}).get("fingerprint")
    if known != trained.data.fingerprint:
        raise UserError(
            f"the data are not those the run was trained on (fingerprint {trained.data.fingerprint[:12]}, then "
            f"{str(known)[:12]}): point path= at the same data"
        )
    measured, notes = measure(trained.config, trained.task, trained.data, analyses(trained.config, trained.folder.path))
    table = Table(title=f"{trained.folder.path.name}, {config.checkpoint}.ckpt")
    for column in ("metric", "now", "in the run", "difference"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name, number in measured.items():
        before = summary.get("metrics", {}).get(name)
        then = ("", "") if before is None else (f"{before:.6f}", f"{number - before:+.1e}")
        table.add_row(name, f"{number:.6f}", *then)
    console.print(table)
    for name, note in notes.items():
        console.print(f"{name}: {note}", soft_wrap=True)
    return measured
