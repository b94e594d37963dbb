"""The order of the rooms: each imports only rooms above it, and whoever looks for a thing knows in which room it is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "triptych"

# From the ground up. A room imports itself and rooms above it, nothing else, and there are no exceptions.
GROUND = ("errors", "hardware", "environment", "files")  # modules at the package's root
ROOMS = (
    "attention",
    "distributed",
    "data",
    "models",
    "training",
    "tasks",
    "maps",
    "explain",
    "runs",
    "config",
    "inference",
    "pictures",
    "loggers",
    "report",
    "callbacks",
    "sweeps",
    "commands",
)
ORDER = (*GROUND, *ROOMS)
# Parts that promise to need little: what they may import from outside, besides the standard library.
NEEDS_ONLY = {"errors": set(), "attention": {"torch", "jaxtyping"}, "models": {"torch"}}

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def module(path: Path) -> str:
    """Dotted name inside the package: "attention.naive", "run"."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path) for path in FILES}


def imported(path: Path) -> list[str]:
    """Full names of everything a file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where an arrow leads"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def inside(path: Path) -> list[str]:
    """The package's own modules that a file imports."""
    found = []
    for name in imported(path):
        if name.split(".")[0] == "triptych":
            rest = name.removeprefix("triptych").lstrip(".")
            while rest and rest not in MODULES:
                rest = rest.rpartition(".")[0]
            found.append(rest)
    return found


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_arrow_runs_back_up(path: Path) -> None:
    room = module(path).split(".")[0]
    assert room in ORDER, f"say in ORDER where {room} stands"
    below = {name for name in inside(path) if ORDER.index(name.split(".")[0]) > ORDER.index(room)}
    assert not below, f"{module(path)} imports {', '.join(sorted(below))}, which lies below it"


def test_every_room_says_what_it_is_for() -> None:
    """In the docstring of its __init__, which someone who looks around reads first."""
    for room in ROOMS:
        said = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text(encoding="utf-8")))
        assert said, f"{room}/__init__.py says nothing"
        assert len(said.split()) > 15, f"{room}/__init__.py: what is it for, what comes in, what goes out?"


@pytest.mark.parametrize("path", [path for path in FILES if module(path).split(".")[0] in NEEDS_ONLY], ids=module)
def test_what_promises_to_need_little_needs_little(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names - {"triptych"}
    assert outside <= NEEDS_ONLY[module(path).split(".")[0]]


def test_the_package_itself_imports_nothing() -> None:
    """It is lazy: ``import triptych.attention`` must not bring the rest along."""
    assert not inside(SOURCE / "__init__.py")


def test_no_import_goes_in_a_circle() -> None:
    arrows = {module(path): {name for name in inside(path) if name != module(path)} for path in FILES}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(arrows.get(name, ())):
                # A package's __init__ that lists its own modules is no circle.
                if name.startswith(f"{other}."):
                    continue
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(arrows):
        walk(name, ())


ALONE = """
import sys

BLOCKED = set(sys.argv[1].split())

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)

sys.meta_path.insert(0, Block())
import torch
import triptych.attention as attention

x = torch.randn(1, 4, 3, 8)
mask = attention.AttentionMask(causal=True)
naive, flash = (attention.Attend(backend=name)(x, x[:, :2], x[:, :2], mask) for name in ("naive", "flash"))
assert torch.allclose(naive, flash, atol=1e-6)
print(*sorted({name.split(".")[0] for name in sys.modules} & BLOCKED), "works")
"""


def test_attention_works_with_nothing_but_torch() -> None:
    """Installed here are many packages; the process finds none of those that the rest of triptych needs."""
    blocked = (
        "jaxtyping beartype pytorch_lightning lightning lightning_fabric torchmetrics hydra omegaconf datasets "
        "huggingface_hub tokenizers safetensors tensorboard matplotlib plotly rich wandb PIL torchvision"
    )
    done = subprocess.run([sys.executable, "-c", ALONE, blocked], capture_output=True, text=True)
    assert done.stdout.strip() == "works", done.stderr[-2000:]
