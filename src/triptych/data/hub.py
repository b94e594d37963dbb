"""The hub: ask it first, with a deadline, then fetch a commit's files; its cache only knowingly, commit by commit.

What was fetched is read as any folder is, by the rules of `triptych.data.local`.
"""

import contextlib
import json
import logging
import queue
import re
import threading
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from triptych.data.local import layout
from triptych.errors import UserError
from triptych.files import write_text

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0  # for the hub's first answer
CONVERTED = "refs/convert/parquet"  # the branch into which the hub itself converts: CONFIGURATION/SPLIT/0000.parquet
README = "README.md"


class _HubDown(Exception):
    """The hub gave no useful answer; the text says why."""


def fetch(source: str, config: str | None, revision: str | None, files: str | None, endings: Collection[str]) -> Path:
    """Fetch the files of a hub data set that are data, as a folder on this machine.

    If the hub cannot be reached, the very same commit from its cache, and say so.

    Args:
        source: ``owner/name``.
        config: which of the configurations that its README.md names.
        revision: branch, tag or commit; None is the main branch.
        files: only these files (a name or a pattern).
        endings: of the files that can be read.

    Raises:
        UserError: there is no such data set, configuration or file, or it cannot be fetched.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise UserError(
            f"data.source={source} must be embedded:NAME or a hub id OWNER/NAME; a file or folder goes to data.path."
        )
    try:
        commit, names = _ask_hub(source, revision)
    except _HubDown as down:
        return _from_cache(source, config, revision, files, endings, str(down))
    if f"{source.split('/')[1]}.py" in names:
        raise UserError(
            f"data.source={source} is a loading script, which is never run: use another hub id, "
            f"data.path=FOLDER with its data, or data.revision={CONVERTED} where it was converted."
        )
    try:
        readme = None
        if README in names and files is None:
            with _without_bars():
                readme = _download(source, revision, commit, [README]) / README
        wanted = _data_files(source, readme, names, config, revision, files, endings)
        folder = _download(source, revision, commit, wanted)
        _remember(source, commit, names)
    except UserError:
        raise
    except Exception as error:
        raise _not_fetched(source, config, revision, error) from error
    return folder


def _download(source: str, revision: str | None, commit: str, names: list[str]) -> Path:
    """The folder of a commit in the hub's cache, with the files ``names`` in it."""
    from huggingface_hub import snapshot_download

    # Names are taken for patterns there.
    patterns = [re.sub(r"([*?\[])", r"[\1]", name) for name in names]
    fetched = snapshot_download(source, repo_type="dataset", revision=revision, allow_patterns=patterns)
    if Path(fetched).name != commit:  # the branch has moved in between
        raise OSError(f"it did not deliver commit {commit[:12]}")
    return Path(fetched)


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _data_files(
    source: str,
    readme: Path | None,
    names: list[str],
    config: str | None,
    revision: str | None,
    files: str | None,
    endings: Collection[str],
) -> list[str]:
    """Which of the names of a repository are data: what ``files`` or the README.md say, else all that can be read."""
    if files is not None:
        return layout.chosen_by(files, names, f"data.source={source}")
    if revision == CONVERTED:
        return _converted(source, names, config)
    splits = layout.named_by_readme(readme, names, config, f"data.source={source}")
    found = (
        [name for name in names if PurePosixPath(name).suffix.lower() in endings] if splits is None else list(splits)
    )
    if not found:
        raise UserError(
            f"data.source={source} has no file of a kind that is read ({', '.join(endings)}): use "
            f"data.revision={CONVERTED} where the hub has converted it, or data.path=FOLDER for a local copy."
        )
    return found


def _converted(source: str, names: list[str], config: str | None) -> list[str]:
    """The files of one configuration of a converted repository."""
    tables = [name for name in names if name.endswith(".parquet") and "/" in name]
    configs = sorted({name.split("/")[0] for name in tables})
    if config is None and len(configs) == 1:
        config = configs[0]
    if config not in configs:
        raise UserError(f"data.config must be one of {', '.join(configs)}, the configurations of {source}.")
    return [name for name in tables if name.startswith(f"{config}/")]


def _ask_hub(source: str, revision: str | None) -> tuple[str, list[str]]:
    """Which commit the revision is, and the names of its files.

    One request with a deadline of its own: the library's retries take half a minute, and a time limit on a
    connection counts anew for each address of the hub, and not at all while its name is looked up.
    """
    from huggingface_hub import HfApi, constants, errors

    if constants.HF_HUB_OFFLINE:
        raise _HubDown("offline mode is set in the environment")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(HfApi().dataset_info(source, revision=revision, timeout=PROBE_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=PROBE_SECONDS)
    except queue.Empty:
        raise _HubDown(f"no answer within {PROBE_SECONDS:.0f} s") from None
    if isinstance(answer, errors.RevisionNotFoundError):
        raise UserError(
            f"data.revision={revision}: {source} has no such branch, tag or commit; null is its main branch."
        ) from answer
    if isinstance(answer, errors.GatedRepoError):
        raise UserError(_gated(source)) from answer
    if isinstance(answer, errors.RepositoryNotFoundError):
        raise UserError(
            f"data.source={source}: the hub has no such data set, or a private one (HF_TOKEN opens it); "
            "check the name, or use data.path=FOLDER for a local copy."
        ) from answer
    if isinstance(answer, Exception):
        raise _HubDown(reason(answer)) from answer
    return answer.sha, sorted(file.rfilename for file in answer.siblings or [])


def _from_cache(
    source: str, config: str | None, revision: str | None, files: str | None, endings: Collection[str], why: str
) -> Path:
    """The folder of the commit that ``revision`` was when the hub was last asked, if all its data are in the cache."""
    store = _store(source)
    reference = store / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    missing = UserError(
        f"The hub could not be reached ({why}), and data.source={source}{with_settings(config, revision)} is not "
        "in the cache: use data.path=FOLDER for a local copy."
    )
    folder = store / "snapshots" / str(commit)
    try:
        names = json.loads(_names_file(source, str(commit)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise missing from None
    wanted = _data_files(source, folder / README, names, config, revision, files, endings)
    if not all((folder / name).is_file() for name in wanted):
        raise missing
    log.warning("The hub could not be reached (%s): using %s from the cache, commit %s.", why, source, commit)
    return folder


def _store(source: str) -> Path:
    """Where the hub's library keeps what it fetched of a data set."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=source, repo_type="dataset"))


def _names_file(source: str, commit: str) -> Path:
    return _store(source) / f"triptych-names-{commit}.json"


def _remember(source: str, commit: str, names: list[str]) -> None:
    """Keep the names of a commit's files: without the hub, they tell whether all of them are in the cache."""
    file = _names_file(source, commit)
    write_text(file, json.dumps(names))


def _not_fetched(source: str, config: str | None, revision: str | None, error: Exception) -> UserError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return UserError(_gated(source))
    if (
        isinstance(error, OSError)
        and error.filename
        and str(error.filename).startswith((constants.HF_HOME, constants.HF_HUB_CACHE))
    ):
        return UserError(
            f"the hub's cache {constants.HF_HOME} cannot be written ({error.strerror}): set HF_HOME to a folder that "
            "can, or use data.path=FOLDER for a local copy."
        )
    return UserError(
        f"data.source={source}{with_settings(config, revision)} could not be opened: {reason(error)}; "
        "try again, or use data.path=FOLDER for a local copy."
    )


def with_settings(config: str | None, revision: str | None) -> str:
    given = {"data.config": config, "data.revision": revision}
    text = ", ".join(f"{setting}={value}" for setting, value in given.items() if value is not None)
    return f" ({text})" if text else ""


def _gated(source: str) -> str:
    return (
        f"data.source={source} is gated: accept its terms on the hub and set HF_TOKEN, "
        "or use data.path=FOLDER for a local copy."
    )


def reason(error: BaseException) -> str:
    """The first line of the error that started the chain."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
