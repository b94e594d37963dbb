"""What ``auto`` decides: from sizes and the machine alone, so that the same run decides the same."""

import pytest
import torch

from triptych import hardware

CPU = torch.device("cpu")


def test_precision_on_a_cpu_depends_on_width_and_what_the_cpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_has_bf16", lambda: True)
    assert hardware.precision(hardware.BF16_WIDTH, CPU) == "bf16-mixed"
    assert hardware.precision(hardware.BF16_WIDTH - 1, CPU) == "32-true"
    monkeypatch.setattr(hardware, "_cpu_has_bf16", lambda: False)
    assert hardware.precision(4096, CPU) == "32-true"


def test_compilation_has_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.shutil, "which", lambda name: "/usr/bin/g++")
    assert not hardware.compile_pays(800_000, 2000 * 12 * 64, CPU)
    assert hardware.compile_pays(100_000_000, 10**9, CPU)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)  # the compiler needs one on a CPU
    assert not hardware.compile_pays(100_000_000, 10**9, CPU)
    assert not hardware.compile_pays(100_000_000, 10**9, torch.device("mps"))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("bf16-mixed", torch.bfloat16),
        ("16-mixed", torch.float16),
        ("64-true", torch.float64),
        ("bf16-true", torch.bfloat16),
    ],
)
def test_the_dtype_attention_runs_in(precision: str, dtype: torch.dtype) -> None:
    assert hardware.default_dtype(precision) is dtype


def test_parameters_have_another_dtype_only_where_all_have() -> None:
    found = {name: hardware.parameter_dtype(name) for name in ("32-true", "bf16-mixed", "16-mixed", "auto")}
    assert set(found.values()) == {torch.float32}
    assert hardware.parameter_dtype("bf16-true") is torch.bfloat16
    assert hardware.parameter_dtype("64-true") is torch.float64


def test_short_names_of_precisions() -> None:
    names = {name: hardware.full_name(name) for name in (32, "64", "bf16", 16, "32-true", "auto", "half")}
    assert list(names.values()) == ["32-true", "64-true", "bf16-mixed", "16-mixed", "32-true", "auto", "half"]
