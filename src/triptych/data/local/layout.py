"""Which files of a folder are data, and to which split each belongs: by whole names, or as a README.md says."""

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]

from triptych.data.local.report import DataReport
from triptych.errors import UserError

SPLIT_NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""What a file or folder may be called, in any case of letters, to be a split -> the split's name."""

FOLDER_NAMES = {**SPLIT_NAMES, "training": "train", "testing": "test"}
"""The same for folders."""

HELD_OUT = {word for word, split in FOLDER_NAMES.items() if split != "train"} | {"eval", "evaluation", "holdout"}
"""Words in names that speak of a split other than train."""

SHARD = re.compile(
    r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<hash>-[0-9a-f]+)?"
)  # train-00000-of-00003.parquet
README_KEYS = {"config_name", "data_files", "data_dir", "default", "description"}  # of a configuration, as we read it


@dataclass(frozen=True)
class File:
    """A file of the data: where it is, what to call it (its path below the folder), and its split."""

    path: Path
    name: str
    split: str

    @property
    def ending(self) -> str:
        """ ".csv", in lower case."""
        return self.path.suffix.lower()


def split_of(name: str, more: Collection[str] = ()) -> str:
    """The split that a file belongs to by its path below the data's folder.

    The outermost folder that is called like a split decides, then the file's whole stem, or what stands before
    ``-NNNNN-of-NNNNN`` in it. Every other file belongs to train.

    more: further names of splits, which files may have.
    """
    *folders, file = PurePosixPath(name).parts
    for folder in folders:
        if folder in more:
            return folder
        if folder.lower() in FOLDER_NAMES:
            return FOLDER_NAMES[folder.lower()]
    stem = PurePosixPath(file).stem
    match = SHARD.fullmatch(stem)
    stem = match["split"] if match else stem
    if stem in more:
        return stem
    return SPLIT_NAMES.get(stem.lower(), "train")


def words_of(name: str) -> set[str]:
    """The words in a name, in lower case, without numbers: those of "My test_1" and of "my-test17" are my and test."""
    return set(re.findall(r"[^\W\d_]+", name.lower()))


def scan(folder: Path, report: DataReport) -> list[str]:
    """Names (paths below ``folder``, with ``/``) of all its files, in order, folders behind links included.

    Hidden files, links that lead nowhere or round and round, what is no file, and README.md are left out, and noted in
    ``report``.
    """
    found = []
    for name in sorted(_walk(folder, report)):
        parts = PurePosixPath(name).parts
        if any(part.startswith(".") or part == "__MACOSX" for part in parts):
            report.leave_out(name, "hidden")
        elif not (folder / name).exists():
            report.leave_out(name, "a link that leads nowhere")
        elif not (folder / name).is_file():
            report.leave_out(name, "no file")
        elif name == "README.md":
            report.leave_out(name, "describes the data")
        else:
            found.append(name)
    return found


def _walk(folder: Path, report: DataReport) -> Iterator[str]:
    """Every file below ``folder``, also those that several links lead to; no link is followed round and round."""
    above: dict[str, tuple[str, ...]] = {str(folder): ()}  # place -> the real folders that it lies in

    def fail(error: OSError) -> None:
        raise UserError(f"data.path: the folder {error.filename} cannot be read ({error.strerror}).")

    for place, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        real, around = os.path.realpath(place), above.pop(place)
        if real in around:
            report.leave_out(Path(place).relative_to(folder).as_posix(), "a link to a folder that it lies in")
            folders.clear()
            continue
        folders.sort()
        above.update((os.path.join(place, name), (*around, real)) for name in folders)
        for file in files:
            name = Path(place, file).relative_to(folder).as_posix()
            try:
                name.encode()
            except UnicodeEncodeError:
                shown = name.encode("utf-8", "replace").decode()
                raise UserError(f"data.path={folder}: the name of {shown} is not UTF-8: rename it.") from None
            yield name


def named_by_readme(
    readme: Path | None, names: list[str], config: str | None, where: str, more: Collection[str] = ()
) -> dict[str, str] | None:
    """File name -> split, as the ``configs`` in the head of a README.md say; None where there are none.

    where: what to call the folder in a sentence. more: as for `split_of`. config: which of several configurations; None
    for the only one, for that marked ``default: true``, or for that called ``default``.

    Raises:
        UserError: there is no such configuration, it cannot be understood, or it names a file that is not there.
    """
    configs = _configs(readme) if readme is not None else []
    if not configs:
        if config is not None:
            raise UserError(
                f"data.config={config}: no README.md of {where} names configurations; leave data.config null."
            )
        return None
    chosen = _choose(configs, config, where)
    where = f"the README.md of {where}: its configuration {chosen.get('config_name', 'default')}"
    unknown = sorted(chosen.keys() - README_KEYS)
    if unknown:
        raise UserError(f"{where} sets {', '.join(unknown)}, which is not read here: convert the files, or remove it.")
    found: dict[str, str] = {}
    below = _below(chosen)
    if chosen.get("data_files") is None and below:  # a folder, read by the rules for folders
        inside = [name for name in names if name.startswith(below)]
        if not inside:
            raise UserError(f"{where} names the folder {below}, and there are no files in it.")
        return {name: split_of(name.removeprefix(below), more) for name in inside}
    for split, patterns in _patterns(chosen, where):
        for pattern in patterns:
            matching = [pattern] if pattern in names else [name for name in names if _matches(name, pattern)]
            if not matching:
                raise UserError(f"{where} names {pattern}, and there is no such file.")
            for name in matching:
                if found.setdefault(name, split) != split:
                    raise UserError(f"{where} has {name} in two splits, {found[name]} and {split}.")
    return _usually_named(found)


def _usually_named(splits: dict[str, str]) -> dict[str, str]:
    """The same with our names for splits that are called dev, val or the like, where that is clear."""
    given = set(splits.values())
    usual = {split: FOLDER_NAMES.get(split.lower(), split) for split in given}
    clear = {split for split in given if list(usual.values()).count(usual[split]) == 1}
    return {name: usual[split] if split in clear else split for name, split in splits.items()}


def _configs(readme: Path) -> list[dict[str, Any]]:
    try:
        text = readme.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{readme} cannot be read ({error}): save it as UTF-8, or remove it.") from error
    head = re.match(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|$)", text.replace("\r\n", "\n"), re.DOTALL)
    if head is None:
        return []
    try:
        contents = yaml.safe_load(head[1])
    except yaml.YAMLError as error:
        raise UserError(f"{readme}: its head is no YAML ({' '.join(str(error).split())[:120]}).") from error
    configs = contents.get("configs") if isinstance(contents, dict) else None
    if configs is None:
        return []
    if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
        raise UserError(f"{readme}: configs must be a list of configurations with config_name and data_files.")
    return configs


def _choose(configs: list[dict[str, Any]], config: str | None, where: str) -> dict[str, Any]:
    names = [str(one.get("config_name", "default")) for one in configs]
    if config is not None:
        if config not in names:
            raise UserError(
                f"data.config={config}: the README.md of {where} has the configurations {', '.join(names)}."
            )
        return configs[names.index(config)]
    marked = [one for one in configs if one.get("default")]
    if marked:
        return marked[0]
    if len(configs) == 1:
        return configs[0]
    if "default" in names:
        return configs[names.index("default")]
    raise UserError(f"data.config must be one of {', '.join(names)}, the configurations in the README.md of {where}.")


def _below(config: dict[str, Any]) -> str:
    """The folder that a configuration is about, with / at its end; empty for all."""
    below = config.get("data_dir")
    return f"{below.strip('/').removeprefix('./')}/" if isinstance(below, str) and below.strip("/.") else ""


def _patterns(config: dict[str, Any], where: str) -> list[tuple[str, list[str]]]:
    """Split and patterns, from any of the forms that ``data_files`` has on the hub."""
    files, prefix = config.get("data_files"), _below(config)
    if isinstance(files, str):
        files = [files]
    if isinstance(files, dict):
        files = [{"split": split, "path": path} for split, path in files.items()]
    if not isinstance(files, list) or not files:
        raise UserError(f"{where} has no data_files that can be read.")
    if all(isinstance(one, str) for one in files):
        return [("train", [prefix + one.removeprefix("./") for one in files])]
    found = []
    for one in files:
        paths = one.get("path") if isinstance(one, dict) else None
        paths = [paths] if isinstance(paths, str) else paths
        if not isinstance(paths, list) or "split" not in one:
            raise UserError(f"{where} must give each entry of data_files a split and a path.")
        found.append((str(one["split"]), [prefix + str(path).removeprefix("./") for path in paths]))
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a path below the folder is meant by a pattern: ``*`` within a name, ``**`` across folders."""
    return _parts_match(PurePosixPath(name).parts, PurePosixPath(pattern).parts)


def _parts_match(name: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(name)
        return any(_parts_match(name[at:], pattern[1:]) for at in range(len(name) + 1))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and _parts_match(name[1:], pattern[1:])


def missing_shards(names: Collection[str]) -> dict[str, list[str]]:
    """First file of a series such as train-00000-of-00003.parquet -> the names of it that are not among ``names``."""
    series: dict[tuple[str, str, str, str], set[int]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if match := SHARD.fullmatch(path.stem):
            key = (str(path.parent / match["split"]), match["count"], path.suffix, "" if match["hash"] is None else "*")
            series.setdefault(key, set()).add(int(match["number"]))
    found = {}
    for (start, count, ending, rest), numbers in series.items():
        missing = sorted(set(range(int(count))) - numbers)
        if missing and max(numbers) < int(count):
            name = f"{start}-{{:05d}}-of-{count}{rest}{ending}"
            found[name.format(min(numbers))] = [name.format(number) for number in missing]
    return found


def chosen_by(pattern: str, names: list[str], where: str) -> list[str]:
    """The names that ``data.files`` means. Raises UserError, naming ``where``, if there is none."""
    found = [
        name for name in names if pattern in (name, PurePosixPath(name).name)
    ]  # before it is a pattern: "a [1].csv"
    if not found:
        found = [name for name in names if _matches(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)]
    if not found:
        there = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        raise UserError(f"data.files={pattern}: {where} has no such file; there are: {there or 'none'}.")
    return found
