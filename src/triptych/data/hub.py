"""The hub: ask it first, with a deadline, then read through `datasets`; the cache only knowingly, commit by commit."""

import logging
import os
import queue
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import UserError

if TYPE_CHECKING:
    from datasets import DatasetDict

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0  # for the hub's first answer


class _HubDown(Exception):
    """The hub gave no useful answer; the text says why."""


def open_hub(source: str, config: str | None, revision: str | None, wanted: str | None) -> "DatasetDict":
    """Read a hub data set; if the hub cannot be reached, the very same commit from the cache, and say so."""
    import datasets

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise UserError(
            f"data.source={source} must be embedded:NAME or a hub id OWNER/NAME; a file or folder goes to data.path."
        )
    try:
        commit, files = _ask_hub(source, revision)
    except _HubDown as down:
        return _from_cache(source, config, revision, wanted, str(down))
    if f"{source.split('/')[1]}.py" in files:
        raise UserError(
            f"data.source={source} is a loading script, which is never run: use another hub id, "
            "data.path=FOLDER with its data, or data.revision=refs/convert/parquet where it was converted."
        )
    # A folder of that name in the working directory would win over the bare id.
    name = f"hf://datasets/{source}" if os.path.exists(source) else source
    try:
        options: dict[str, Any] = (
            {"revision": revision} if wanted is None else {"revision": revision, "data_files": wanted}
        )
        builder = datasets.load_dataset_builder(name, config, **options)
        if hasattr(builder.config, "sample_by"):  # plain text: whole files, not one row per line
            builder = datasets.load_dataset_builder(name, config, **options, sample_by="document")
        # After a failed request the library takes any commit that it has in its cache.
        if builder.hash != commit:
            raise _HubDown(f"it did not deliver commit {commit[:12]}")
        builder.download_and_prepare()
        found = builder.as_dataset()
    except Exception as error:
        if isinstance(error, datasets.exceptions.DatasetNotFoundError) and "gated" in str(error):
            raise UserError(_gated(source)) from error
        raise UserError(
            f"data.source={source}{with_settings(config, revision)} could not be opened: {reason(error)}; "
            "try again, or use data.path=FOLDER for a local copy."
        ) from error
    if not any(len(rows) for rows in found.values()):
        raise UserError(f"data.source={source}{with_settings(config, revision)} is empty: it holds no rows.")
    return found


def _ask_hub(source: str, revision: str | None) -> tuple[str, set[str]]:
    """Which commit the revision is, and the names of its files.

    One request with a deadline of its own: the library's retries take half a minute, and a time limit on a
    connection counts anew for each address of the hub, and not at all while its name is looked up.
    """
    import datasets
    from huggingface_hub import HfApi, errors

    if datasets.config.HF_HUB_OFFLINE:
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
    return answer.sha, {file.rfilename for file in answer.siblings or []}


def _from_cache(source: str, config: str | None, revision: str | None, wanted: str | None, why: str) -> "DatasetDict":
    """The commit that ``revision`` was when the hub was last asked, as `datasets` prepared it then."""
    import datasets
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    reference = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=source, repo_type="dataset"), "refs")
    reference /= revision or "main"
    commit = reference.read_text().strip() if reference.is_file() else revision
    owner, name = source.split("/")
    prepared = Path(datasets.config.HF_DATASETS_CACHE, f"{owner}___{camelcase_to_snakecase(name)}")
    copies = {  # name of the configuration -> its folder CONFIG/VERSION/COMMIT
        folder.parts[-3].removesuffix("-sample_by=document"): folder
        for folder in sorted(prepared.glob("*/*/*"))
        if folder.name == commit and (folder / "dataset_info.json").is_file()
    }
    # Chosen files are a configuration of their own there, named by a hash.
    hashed = re.compile(r".*-[0-9a-f]{16}")
    copies = {
        known: folder for known, folder in copies.items() if bool(hashed.fullmatch(known)) == (wanted is not None)
    }
    if config is not None and wanted is None:
        copies = {known: folder for known, folder in copies.items() if known == config}
    if not copies:
        raise UserError(
            f"The hub could not be reached ({why}), and data.source={source}{with_settings(config, revision)} is not "
            "in the cache: use data.path=FOLDER for a local copy."
        )
    if len(copies) > 1:
        raise UserError(
            f"The hub could not be reached ({why}), and the cache holds several configurations of {source}: "
            f"data.config must be one of {', '.join(copies)}."
        )
    (folder,) = copies.values()
    log.warning("The hub could not be reached (%s): using %s from the cache, commit %s.", why, source, commit)
    found = Cache(
        repo_id=source,
        dataset_name=name,
        config_name=folder.parts[-3],
        version=folder.parts[-2],
        hash=folder.name,
    )
    return found.as_dataset()


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
