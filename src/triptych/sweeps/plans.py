"""Which trial comes next in a grid, and which cut trial is taken up again in any sweep."""

from typing import Any, Protocol, runtime_checkable

from triptych.sweeps.record import OVER, Record, SweepFolder
from triptych.sweeps.space import Space


@runtime_checkable
class Plan(Protocol):
    """How trials are chosen. Both are called while nobody else can change the record."""

    total: int

    def propose(self, record: Record) -> tuple[int, list[str]] | None:
        """Number and words of a trial that nobody has tried; None when there is no more."""

    def learn(self, record: Record) -> None:
        """Take notice of what became of the trials so far."""


class Grid:
    """Every combination of the space, in order. A trial's number is its place."""

    def __init__(self, space: Space) -> None:
        self.combinations = space.combinations()
        self.total = len(self.combinations)

    def propose(self, record: Record) -> tuple[int, list[str]] | None:
        tried = {trial["number"] for trial in record["trials"]}
        return next(((n, words) for n, words in enumerate(self.combinations) if n not in tried), None)

    def learn(self, record: Record) -> None:
        """A grid is the same whatever comes out."""


def claim(folder: SweepFolder, plan: Plan, worker: str) -> dict[str, Any] | None:
    """A trial for ``worker`` to run: one that was cut, or the next one; None when nothing is left to do.

    A trial whose run had ended before its worker could note so is noted now and not run again.
    """
    with folder.editing() as record:
        for trial in record["trials"]:
            if trial["status"] in OVER or (trial["status"] == "running" and folder.alive(trial["worker"])):
                continue
            run = folder.run(trial)
            if run is not None and run.path.is_dir():
                if not run.lock():
                    continue  # its worker is gone, but the process that trains it lives on
                try:
                    trial.update(ending(run.summary(), record["metric"]))
                finally:
                    run.release()
                if trial["status"] in OVER:
                    continue
            plan.learn(record)
            trial.update(status="running", worker=worker)
            return dict(trial)
        plan.learn(record)
        proposed = plan.propose(record)
        if proposed is None:
            return None
        number, words = proposed
        trial = {"number": number, "overrides": words, "status": "running", "run": None}
        trial.update(value=None, steps=None, why=None, worker=worker)
        record["trials"].append(trial)
        return dict(trial)


def ending(summary: dict[str, Any], metric: str) -> dict[str, Any]:
    """What a run's summary says of how its trial ended; nothing when the run can go on."""
    status, steps = summary.get("status"), summary.get("steps")
    if status == "finished":
        return {"status": status, "value": summary["metrics"].get(metric), "steps": steps, "why": None}
    if status == "pruned":
        return {"status": status, "value": None, "steps": steps, "why": summary.get("notes", {}).get("pruned")}
    if status == "failed":
        return {"status": status, "value": None, "steps": steps, "why": "failed just before the sweep was cut"}
    return {}
