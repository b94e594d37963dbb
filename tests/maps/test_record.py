"""MapRecord: refused shapes, what is masked, the caption, and saving and loading."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych.maps.record import MapRecord, load, save


def record(weights: torch.Tensor, **changes: Any) -> MapRecord:
    heads, queries, keys = weights.shape
    given: dict[str, Any] = {
        "task": "charlm",
        "site": "blocks.2.attention.attend",
        "layer": 2,
        "heads": tuple(range(heads)),
        "kind": "self",
        "causal": True,
        "mask": "causal",
        "score": "scaled dot product",
        "query_labels": tuple("abcdefghijkl"[:queries]),
        "key_labels": tuple("abcdefghijkl"[:keys]),
        "example": "probe 0",
        "step": 40,
        "checkpoint": None,
        "data": "0123456789abcdef",
        "backend": "flash",
        "kernel": "flash_attention",
        "dtype": "float32",
        "capture_error": 2e-7,
    }
    return MapRecord(weights=weights, **given | changes)


def causal_weights(heads: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = torch.randn(heads, length, length).masked_fill(future, -math.inf)
    return scores.softmax(-1), scores


def test_labels_must_match_the_weights() -> None:
    with pytest.raises(ValueError, match="3 query labels"):
        record(torch.ones(1, 2, 2), query_labels=("a", "b", "c"))
    with pytest.raises(ValueError, match="scores"):
        record(torch.ones(1, 2, 2), scores=torch.ones(1, 2, 3))
    with pytest.raises(ValueError, match="visible"):
        record(torch.ones(1, 2, 2), visible=torch.ones(3, 2, dtype=torch.bool))


def test_masked_is_read_from_the_best_evidence() -> None:
    weights, scores = causal_weights(2, 4)
    future = torch.ones(4, 4, dtype=torch.bool).triu(1).expand(2, 4, 4)
    assert torch.equal(record(weights).masked, future)
    assert torch.equal(record(weights, scores=scores).masked, future)
    visible = torch.eye(4, dtype=torch.bool)
    assert torch.equal(record(weights, scores=scores, visible=visible).masked, (~visible).expand(2, 4, 4))
    assert not record(weights, causal=False).masked.any()  # a weight of 0 is no mask


def test_causal_queries_stand_at_the_end_of_the_keys() -> None:
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]])
    assert record(weights).masked.tolist() == [[[False, False, True], [False, False, False]]]


def test_the_causal_flag_never_hides_a_weight() -> None:
    assert not record(torch.full((1, 3, 3), 1 / 3)).masked.any()


def test_caption_answers_which_operation_this_is() -> None:
    weights, _ = causal_weights(3, 4)
    caption = record(weights).caption(head=1)
    for part in (
        "charlm",
        "causal self-attention",
        "layer 2",
        "head 1",
        "after softmax",
        "mask: causal",
        "step 40",
    ):
        assert part in caption
    assert "3 heads" in record(weights).caption()
    assert "cross-attention" in record(weights, kind="cross", causal=False).caption()
    assert "checkpoint best.ckpt" in record(weights, checkpoint="best.ckpt").caption()
    assert "weights, without a softmax" in record(weights, backend="linear").caption()


def test_saved_records_come_back_equal(tmp_path: Path) -> None:
    weights, scores = causal_weights(2, 4)
    labels = ("<b>", "\n", "é", "\u2028")
    first = record(weights, scores=scores, query_labels=labels, key_labels=labels)
    second = record(torch.rand(1, 2, 5), kind="cross", causal=False, visible=torch.ones(2, 5, dtype=torch.bool))
    path = save([first, second], tmp_path / "maps" / "step-00000040.safetensors")
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "step-00000040.json",
        "step-00000040.safetensors",
    ]
    for before, after in zip((first, second), load(path), strict=True):
        for name, content in vars(before).items():
            if isinstance(content, torch.Tensor):
                assert torch.equal(content, getattr(after, name))
            else:
                assert content == getattr(after, name)
