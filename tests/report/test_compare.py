"""Comparing runs: which ones are meant, what differs, what came out, and what repeats over seeds."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from triptych.errors import UserError
from triptych.report.compare import compare, select, write
from triptych.report.compare_table import gather, spread
from triptych.runs import folder
from triptych.runs.folder import RunFolder

Make = Callable[..., RunFolder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A run folder as training leaves it; ``metrics=None`` for one that was killed while it trained."""

    def made(
        name: str, *, task: str = "charlm", lr: Any = 0.1, seed: int = 0, metrics: dict[str, float] | None = None
    ) -> RunFolder:
        path = tmp_path / "runs" / task / name
        path.mkdir(parents=True)
        run = RunFolder(path)
        config = {
            "seed": seed,
            "runs": str(tmp_path),
            "resume": None,
            "task": {"name": task},
            "data": {"seed": seed},
            "optimizer": {"_target_": "triptych.training.optimizers.muon", "lr": lr, "steps": 5},
            "watch": {"metric": "val/loss", "mode": "min"},
        }
        run.write_config(OmegaConf.create(config))
        over = {"status": "finished", "steps": 20, "fit_seconds": 2.0, "metrics": metrics}
        state = over if metrics is not None else {"status": "running", "steps": 0, "fit_seconds": 0.0, "metrics": {}}
        run.write_summary({"task": task, "seed": seed, "parameters": 7, **state})
        (path / "metrics.csv").write_text(
            "step,seconds,train/loss,val/loss\n10,1.5,3.0,\n10,1.5,,2.5\n20,2.0,,2.75\n30,3"
        )
        (path / ".lock").touch()
        return run

    return made


def options(tmp_path: Path, runs: Any, **given: Any) -> Any:
    base = {"runs": runs, "metric": None, "mode": None, "sort": None, "output": str(tmp_path / "out")}
    return OmegaConf.create(base | given)


def shown(renderable: Any, width: int = 240) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_differs_is_what_the_table_shows(make: Make, tmp_path: Path) -> None:
    runs = [
        make("a", lr=0.1, metrics={"val/loss": 2.0}),
        make("b", lr=0.2, metrics={"val/loss": 1.5, "test/loss": 1.6}),
    ]
    found = write(runs, tmp_path / "out", title="two", metric="val/loss", mode="min")
    assert found.runs.keys == ["optimizer.lr"]  # not the seed, nor where things are
    assert [row.name for row in found.runs.rows] == ["b", "a"]  # best first
    rows = list(csv.DictReader(found.csv.read_text(encoding="utf-8").splitlines()))
    assert [(row["optimizer.lr"], row["val/loss"], row["test/loss"], row["steps"]) for row in rows] == [
        ("0.2", "1.5", "1.6", "20"),
        ("0.1", "2.0", "", "20"),
    ]
    lines = [line.split() for line in shown(found.table()).splitlines() if line.strip()]
    assert lines[0] == ["run", "lr", "val/loss", "test/loss", "steps", "fit,", "s"]
    assert lines[2] == ["b", "0.2", "1.500", "1.600", "20", "2"]
    narrow = shown(found.table(), 40)  # what is compared, and what differs, stays
    assert narrow.split()[:6] == ["run", "lr", "val/loss", "steps", "fit,", "s"]
    assert "1 more columns are in compare.csv" in narrow


def test_seeds_of_one_configuration_get_mean_deviation_and_interval(make: Make) -> None:
    """0.1, 0.2, 0.3, 0.4: mean 0.25, 95 % interval 0.0446 to 0.4554, standard deviation 0.1291."""
    runs = [make(f"r{seed}", seed=seed, metrics={"val/loss": 0.1 * (seed + 1)}) for seed in range(4)]
    runs.append(make("r4", seed=3, metrics={"val/loss": 0.4}))  # the same seed again is no second draw
    runs.append(make("r5", seed=4))  # killed: no result yet
    runs.append(make("r6", lr=0.5, metrics={"val/loss": 0.9}))  # one seed: no group
    (group,) = gather(runs, "val/loss", "min").seeds
    interval, deviation = group.spread["val/loss"]
    assert group.seeds == [0, 1, 2, 3]
    assert (interval.n, group.values) == (4, {"optimizer.lr": 0.1})
    assert interval.mean == pytest.approx(0.25)
    assert (interval.low, interval.high) == pytest.approx((0.0446, 0.4554), abs=1e-4)
    assert deviation == pytest.approx(0.1291, abs=1e-4)
    assert spread(group, "val/loss") == "0.2500 ± 0.13 [0.04457, 0.4554]"


def test_a_seed_of_the_data_of_its_own_is_a_difference(make: Make) -> None:
    one, other = make("a", metrics={"val/loss": 1.0}), make("b", metrics={"val/loss": 2.0})
    config = other.config()
    config.data.seed = 5
    other.write_config(config)
    found = gather([one, other], "val/loss", "min")
    assert (found.keys, found.seeds) == (["data.seed"], [])
    assert found.short == {"data.seed": "data.seed"}  # "seed" is another column


def test_a_run_killed_at_any_moment_is_shown_with_its_status(make: Make, tmp_path: Path) -> None:
    make("killed")
    torn, bare = make("torn"), tmp_path / "runs" / "charlm" / "bare"
    alive, done = make("alive"), make("done", metrics={"val/loss": 2.6})
    (torn.path / "summary.json").write_text('{"task": "char')
    (torn.path / "config.yaml").write_text("seed: [1")
    (torn.path / "metrics.csv").write_bytes(b"step,val/loss\n\xff\x00")
    (bare / "checkpoints").mkdir(parents=True)
    (bare / ".lock").touch()
    holder = RunFolder(alive.path)
    assert holder.lock()
    chosen = list(select(str(tmp_path / "runs/charlm/*")).runs.values())
    found = write(chosen, tmp_path / "out", title="", metric="val/loss", mode="min")
    holder.release()
    rows = {row.name: row for row in found.runs.rows}
    statuses = {"killed": "killed", "torn": "killed", "bare": "killed", "alive": "running", "done": "finished"}
    assert {name: row.status for name, row in rows.items()} == statuses
    # its best validation so far, and how far it came; the line that the kill cut short is left out
    assert rows["killed"].results == {"val/loss": 2.5, "parameters": 7, "steps": 20, "fit_seconds": 2.0}
    assert not rows["bare"].results
    assert "metrics.csv could not be read" in " ".join(rows["torn"].notes)
    assert done.lock()  # looking leaves no lock behind
    done.release()


def test_links_found_by_a_pattern_are_skipped_and_named_ones_followed(make: Make, tmp_path: Path) -> None:
    one, two = make("a"), make("b")
    (one.path.parent / "latest").symlink_to("b")
    assert list(select(f"{one.path.parent}/*").runs) == [one.path, two.path]
    assert list(select(str(one.path.parent)).runs) == [one.path, two.path]  # the folder of the runs will do
    assert list(select(f"{one.path} {one.path.parent}/latest").runs) == [one.path, two.path]
    assert list(select([str(one.path), str(two.path), str(two.path)]).runs) == [one.path, two.path]


def test_a_path_with_blanks_needs_no_quotes(make: Make, tmp_path: Path) -> None:
    make("a")
    make("b")
    (tmp_path / "runs").rename(tmp_path / "my runs")
    assert len(select(str(tmp_path / "my runs/charlm")).runs) == 2
    assert len(select(f"'{tmp_path}/my runs/charlm/a' '{tmp_path}/my runs/charlm/b'").runs) == 2


def test_a_sweep_is_its_trials_and_keeps_the_comparison(make: Make, tmp_path: Path) -> None:
    run = make("a", metrics={"val/loss": 1.0})
    sweep = tmp_path / "runs" / "sweeps" / "s1"
    sweep.mkdir(parents=True)
    (sweep / ".lock").touch()
    trials = [
        {"number": 0, "overrides": ["optimizer.lr=0.1"], "status": "finished", "run": "../../charlm/a"},
        {"number": 1, "overrides": ["optimizer.lr=<b>9"], "status": "failed", "run": None, "why": "the loss is NaN"},
    ]
    contents = {"id": "s1", "metric": "val/loss", "mode": "min", "trials": trials, "importance": {"optimizer.lr": 0.75}}
    (sweep / "sweep.json").write_text(json.dumps(contents | {"best": "make train task=charlm"}))
    found = compare(options(tmp_path, str(sweep), output=None))
    assert (found.page, [row.run.path for row in found.runs.rows]) == (sweep / "compare.html", [run.path])
    page = found.page.read_text(encoding="utf-8")
    for part in ("Sweep s1", "the loss is NaN", "optimizer.lr=&lt;b&gt;9", "75%", "make train task=charlm"):
        assert part in page
    # a folder of sweeps holds no runs of its own
    with pytest.raises(UserError, match="matches no run folder"):
        select(str(sweep.parent))


def test_sorting_by_any_column(make: Make) -> None:
    runs = [
        make(name, lr=lr, metrics={"val/loss": loss})
        for name, lr, loss in (("a", 0.2, 3.0), ("b", "auto", math.nan), ("c", 0.1, 1.0), ("d", None, 2.0))
    ]
    names = lambda sort: "".join(row.name for row in gather(runs, "val/loss", "min", sort).rows)  # noqa: E731
    assert names(None) == names("val/loss") == "cdab"  # what is no number comes last
    assert names("-val/loss") == "adcb"
    assert names("lr") == names("optimizer.lr") == "cabd"  # numbers, words, nothing
    assert names("-run") == "dcba"
    assert "".join(row.name for row in gather(runs, "val/loss", "max").rows) == "adcb"
    with pytest.raises(UserError, match=r"sort=val/los is no column of the table; there are: val/loss"):
        names("val/los")


def test_what_cannot_be_compared_is_one_sentence(make: Make, tmp_path: Path) -> None:
    make("a", metrics={"val/loss": 1.0})
    runs = tmp_path / "runs"

    def refused(text: Any, match: str, **given: Any) -> None:
        with pytest.raises(UserError, match=match) as caught:
            compare(options(tmp_path, text, **given))
        assert "\n" not in str(caught.value)

    refused(f"{runs}/charlm/*", r"is a single run: compare at least two; its own page is .*a/report\.html")
    make("b", metrics={"val/loss": 2.0})
    make("v", task="vit", metrics={"val/loss": 2.0})
    refused(f"{runs}/*", r"different tasks, charlm \(such as .*/a\) and vit \(such as .*/v\)")
    refused(None, "runs= is not set")
    refused(f"{runs}/nothing*", "matches no run folder")
    refused(f"{runs}/nothing", "does not exist")
    refused(f"{runs}/'charlm", "a quotation mark is left open")
    refused(
        f"{runs}/charlm",
        "metric=val/los was measured in none of these runs; they have val/loss",
        metric="val/los",
        mode="min",
    )
    refused(f"{runs}/charlm", "needs mode=min or mode=max", metric="test/loss")
    refused(f"{runs}/charlm", "neither min nor max", mode="least")
    (tmp_path / "file").touch()
    refused(f"{runs}/charlm", "is a file", output=str(tmp_path / "file"))
    assert not (tmp_path / "out").exists()


def test_flat_keys_of_a_configuration() -> None:
    config = OmegaConf.create({"a": {"b": 1, "c": [1, 2], "d": {}}, "e": "${a.b}"})
    assert folder.flat(config) == {"a.b": 1, "a.c": [1, 2], "a.d": {}, "e": 1}
