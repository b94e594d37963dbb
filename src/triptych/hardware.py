"""What the machine found can do, and the defaults that follow from it."""

import shutil

import torch

# Where these come from: README, "Precision and compilation".
BF16_WIDTH = 256  # narrower models lose more to casts than they gain, on a CPU
COMPILE_SECONDS = 300.0  # an estimated run this long earns back the compiler's warm-up


def accelerator() -> torch.device:
    """The device training would use."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def precision(width: int, device: torch.device) -> str:
    """Lightning's precision for ``trainer.precision=auto``: bfloat16 mixed where it is faster, else float32."""
    if device.type == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    if device.type == "cpu" and width >= BF16_WIDTH and _cpu_has_bf16():
        return "bf16-mixed"
    return "32-true"


def compile_pays(parameters: int, positions: int, device: torch.device) -> bool:
    """Whether ``compile=auto`` compiles: the run is long enough, and the machine has what it takes.

    parameters: of the model. positions: characters, tokens or patches in the whole run.
    """
    if device.type == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
        return False
    if device.type == "mps":
        return False
    # 6 floating point operations per parameter and position (Kaplan et al., arXiv 2001.08361, section 2.1).
    return 6.0 * parameters * positions / _operations_per_second(device) > COMPILE_SECONDS


def full_name(precision: str | int) -> str:
    """One of Lightning's precisions by its full name: "32-true" for 32."""
    short = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
    return short.get(str(precision), str(precision))


def parameter_dtype(precision: str) -> torch.dtype:
    """The dtype of a model's parameters under one of Lightning's precisions."""
    return {"bf16-true": torch.bfloat16, "64-true": torch.float64}.get(precision, torch.float32)


def default_dtype(precision: str) -> torch.dtype:
    """The dtype in which attention runs under one of Lightning's precisions."""
    if precision.startswith("bf16"):
        return torch.bfloat16
    if precision.startswith("16"):
        return torch.float16
    return torch.float64 if precision.startswith("64") else torch.float32


def _cpu_has_bf16() -> bool:
    supported = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "")()
    return "AVX512" in supported and getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)()


def _operations_per_second(device: torch.device) -> float:
    """A rough rate of small models in training, not the peak; a constant, so that resuming decides the same."""
    return 2e13 if device.type == "cuda" else 4e10 * torch.get_num_threads()
