"""Stability: rankings that agree, disagree and say nothing; runs that can be compared and runs that cannot."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych.errors import UserError
from triptych.explain.evaluation.stability import agreements, over_examples, over_runs


def test_each_ranking_is_compared_with_the_others_only() -> None:
    """Of three, the last is the others turned round: -1. The first with the mean of (1 2 3) and (3 2 1): constant."""
    found = agreements([[1, 2, 3], [1, 2, 3], [3, 2, 1]])
    assert math.isnan(found[0])
    assert found[2] == pytest.approx(-1.0)
    # Ranks 1 2 3 against 1 3 2: 1 - 6 (0 + 1 + 1) / (3 * 8) = .5
    assert agreements([[1, 2, 3], [1, 3, 2]]) == pytest.approx([0.5, 0.5])


def test_examples_that_agree_and_examples_that_do_not() -> None:
    same = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).repeat(6, 1) * torch.arange(1, 7)[:, None]
    found = over_examples(same)
    assert (found.mean, found.low, found.high, found.n) == (1.0, 1.0, 1.0, 6)
    noise = over_examples(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)))
    assert noise.low < 0 < noise.high
    assert noise.n == 60


def test_one_example_agrees_with_nothing_and_a_constant_one_is_left_out() -> None:
    alone = over_examples(torch.tensor([[1.0, 2.0]]))
    assert alone.n == 0
    assert math.isnan(alone.mean)
    assert alone.to_json()["mean"] is None
    assert over_examples(torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 0.0]])).n == 2


def saved(folder: Path, scores: list[list[float | None]], statistic: str = "sink") -> Path:
    """A run with a table of ``scores``, layer by layer; an earlier moment says something else."""
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"site": f"blocks.{layer}.attend", "layer": layer, "kind": "self", "head": head, statistic: score}
        for layer, heads in enumerate(scores)
        for head, score in enumerate(heads)
    ]
    earlier = [row | {statistic: 0.5} for row in rows]
    moments = [{"step": 0, "name": "start", "rows": earlier}, {"step": 9, "name": "trained", "rows": rows}]
    (folder / "heads.json").write_text(json.dumps({"moments": moments}), encoding="utf-8")
    return folder


def test_heads_that_changed_places_leave_their_layer_alike(tmp_path: Path) -> None:
    """Three layers of two heads: the same in two runs, but the heads of each layer are swapped in the second."""
    first = saved(tmp_path / "a", [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    second = saved(tmp_path / "b", [[0.2, 0.1], [0.4, 0.3], [0.6, 0.5]])
    found = over_runs([first, second])["sink"]
    assert found["layers"].mean == pytest.approx(1.0)
    # Six ranks, each off by one: 1 - 6 * 6 / (6 * 35)
    assert found["heads"].mean == pytest.approx(1 - 36 / 210)
    assert found["heads"].n == 2


def test_a_figure_that_a_head_lacks_is_left_out(tmp_path: Path) -> None:
    runs = [saved(tmp_path / name, [[0.1, None], [0.3, 0.4]]) for name in "ab"]
    assert over_runs(runs)["sink"]["heads"].mean == pytest.approx(1.0)


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    first = saved(tmp_path / "a", [[0.1, 0.2]])
    with pytest.raises(UserError, match="two runs or more"):
        over_runs([first])
    with pytest.raises(UserError, match="other layers or heads"):
        over_runs([first, saved(tmp_path / "b", [[0.1, 0.2, 0.3]])])
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="older version"):
        over_runs([first, tmp_path / "old"])
    (tmp_path / "old" / "heads.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="older version"):
        over_runs([first, tmp_path / "old"])
