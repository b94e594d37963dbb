"""Pictures of an explanation: the example, and every method's map of it over its verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from triptych.data.batches import Probe
from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.verdict import Verdict
from triptych.maps.labels import shortened
from triptych.pictures.rankings import ranking_picture
from triptych.pictures.render import Picture


def pictures(explained: dict[str, Any], probes: Sequence[Probe]) -> Iterator[tuple[str, Picture]]:
    """A picture per output whose scores were kept: the example, and every method's map of it over its verdict."""
    titles = {row["name"]: row["title"] for row in explained["methods"]}
    says = {row["title"]: _in_short(row) for row in explained["methods"] if row["name"] != "random"}
    of = {probe.example: probe.picture for probe in probes}
    outputs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in explained["results"]:
        if each["example"] in of:
            outputs.setdefault((each["example"], each["output"]), []).append(each)
    for (example, output), results in outputs.items():
        grid = results[0]["grid"]
        yield (
            example,
            ranking_picture(
                results[0]["units"],
                {titles[each["method"]]: each["scores"] for each in results},
                None if grid is None else (grid[0], grid[1]),
                of[example],
                title=f"{shortened(example)} · output {shortened(output)}",
                says=says,
                caption=f"Each map up to its own largest score. Verdicts over {explained['examples']} examples.",
            ),
        )


def _in_short(row: dict[str, Any]) -> str:
    """The verdict on a method in a few words."""
    deletion, insertion = (Interval.from_json(row[name]) for name in ("deletion", "insertion"))
    return Verdict.of(deletion, insertion, row["control"] and Interval.from_json(row["control"])).short
