"""`make report`: the page of a run again."""

from omegaconf import DictConfig
from rich.console import Console

from triptych.report import run_page
from triptych.runs import folder

console = Console(highlight=False, markup=False)


def rebuild_report(config: DictConfig) -> None:
    """Write a run's ``report.html`` again, from its folder alone."""
    console.print(str(run_page.write(folder.existing(config.run or "", "run").path)))
