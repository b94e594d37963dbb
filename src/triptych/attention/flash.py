"""Attention on PyTorch's fused kernels: exact, without ever storing the weights. Never the plain fallback.

Pins ``scaled_dot_product_attention`` to the flash (Dao et al. 2022, arXiv 2205.14135), memory-efficient and cuDNN
kernels. Where none of them can run, it says so instead of computing slowly.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from triptych.attention.masks import AttentionMask
from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError

NO_KERNEL = "No available kernel"  # how torch's own message begins
# Up to so many keys the CPU kernel takes about half the time in float32, casts included; at 320 keys as long.
SHORT = 256
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
FUSED_NUMBERS = frozenset(backend.value for backend in FUSED)


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S D"],
    mask: AttentionMask,
) -> Float[Tensor, "B H T D"]:
    """Context from a fused kernel. Raises UserError when none can run on these tensors."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    if half and query.device.type == "cpu" and key.shape[2] <= SHORT:
        with torch.autocast("cpu", enabled=False):
            return attend(query.float(), key.float(), value.float(), mask).to(query.dtype)
    key, value, options, empty = _lower(query, key, value, mask, gpu=query.device.type != "cpu")
    if torch.compiler.is_compiling() or torch._fused_sdp_choice(query, key, value, **options) not in FUSED_NUMBERS:
        with sdpa_kernel(FUSED):
            try:
                context = F.scaled_dot_product_attention(query, key, value, **options)
            except RuntimeError as error:
                if NO_KERNEL not in str(error):
                    raise
                raise _no_kernel(query) from error
    else:
        # What torch is about to choose is fused already; pinning it would cost more than a decoding step's kernel.
        context = F.scaled_dot_product_attention(query, key, value, **options)
    return context if empty is None else context.masked_fill(empty, 0.0)


def kernel(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S D"],
    mask: AttentionMask,
) -> str:
    """Name of the fused kernel that runs on these tensors, e.g. "flash_attention" or "flash_attention FA3".

    Raises UserError when none can run.
    """
    key, value, options, _ = _lower(query, key, value, mask, gpu=query.device.type != "cpu")
    with sdpa_kernel(FUSED):
        try:
            choice = torch._fused_sdp_choice(query, key, value, **options)
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            raise _no_kernel(query) from error
    if choice not in FUSED_NUMBERS:
        raise _no_kernel(query)
    name = SDPBackend(choice).name.lower()
    active = _active_implementation() if choice == SDPBackend.FLASH_ATTENTION.value else None
    return f"{name} {active}" if active else name


def implementations() -> list[str]:
    """Newer flash kernels that this torch offers for GPUs beside its built-in one, e.g. ["FA3", "FA4"]."""
    offered = getattr(torch.nn.attention, "list_flash_attention_impls", None)
    return sorted(offered()) if offered is not None else []


def use_implementation(name: str) -> None:
    """Make ``name`` the flash kernel of this process (torch keeps one for all). Raises UserError if it cannot."""
    if name not in implementations():
        offered = ", ".join(implementations()) or "none"
        raise UserError(
            f"attention.implementation={name} is not offered by torch {torch.__version__}; it has: {offered}"
        )
    try:
        torch.nn.attention.activate_flash_attention_impl(name)
    except (ImportError, RuntimeError, ModuleNotFoundError) as error:
        raise UserError(
            f"attention.implementation={name} cannot be used here ({error}); leave it null for torch's own flash kernel"
        ) from error


def _active_implementation() -> str | None:
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    return current() if current is not None else None


def _lower(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, *, gpu: bool
) -> tuple[Tensor, Tensor, dict, Tensor | None]:
    """Keys, values and options for the kernel, and the rows (B 1 T 1) whose context must be set to 0 after it."""
    T, S, grouped = query.shape[2], key.shape[2], query.shape[1] != key.shape[1]
    hidden, empty, is_causal = None, None, False
    if mask.hides_by_position(T, S):
        # is_causal aligns the first query with the first key, so it is exact only without an offset. GPU
        # kernels take it only for square shapes.
        is_causal = mask.causal and mask.query_offset == 0 and T == S
        is_causal = is_causal and mask.key_padding is None and (mask.window is None or mask.window >= T)
        if not is_causal:
            hidden = mask.visible(T, S, query.device)
    elif mask.key_padding is not None:
        hidden = mask.key_padding[:, None, None, :]
    if gpu and hidden is not None:
        # A row of -inf is NaN in some GPU kernels: let it see everything, then set its context to 0. The CPU
        # kernel gives 0 itself (a test holds it to that).
        described = hidden
        empty = mask.lowered(("empty", T, S, query.device), lambda: ~described.any(dim=-1, keepdim=True))
        hidden = mask.lowered(("not empty", T, S, query.device), lambda: described | empty)
    half = query.dtype in (torch.float16, torch.bfloat16)
    if gpu and grouped and (hidden is not None or not half):
        # On GPUs only the flash kernel knows grouped heads, and it takes neither a mask nor float32.
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        grouped = False
    return key, value, {"attn_mask": hidden, "is_causal": is_causal, "enable_gqa": grouped}, empty


def _no_kernel(query: Tensor) -> UserError:
    return UserError(
        f"attention=flash: no fused kernel takes {str(query.dtype).removeprefix('torch.')} queries of head size "
        f"{query.shape[-1]} on {query.device.type} (torch's warnings say why); use attention=naive, or another head "
        "size or precision"
    )
