"""The shapes in the signatures are really checked while tests run: without the hook they would be comments."""

import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

from triptych.attention import EVERYTHING, naive


def test_a_wrong_shape_is_caught() -> None:
    query, key = torch.zeros(1, 2, 3, 4), torch.zeros(2, 2, 3, 4)  # batches 1 and 2
    with pytest.raises(TypeCheckError, match="B G S D"):
        naive.scores(query, key, EVERYTHING)


def test_production_pays_nothing() -> None:
    """Outside the tests nothing wraps a function, and no checker is imported."""
    code = (
        "import sys, triptych.attention.naive as n; print(hasattr(n.scores, '__wrapped__'), 'beartype' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
