"""Writing so that nothing is lost: a temporary name, then a rename; and reading with clear errors."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of an existing folder until the block ends; a killed process lets go by itself.

    Raises:
        FileExistsError: another run is at work there.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no locks on folders
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            yield  # a file system without locks, as some network ones are
            return
        raise FileExistsError(
            f"Another run is writing to {folder}; wait for it, or give another --out."
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written, before the work and not after it.

    Raises:
        OSError: in words.
    """
    probe = folder / f".{os.getpid()}.part"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            error.errno, f"nothing can be written in {folder} ({error.strerror}); give another --out"
        ) from None


def check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Refuse to resume a job that was another one.

    Args:
        path: where the job wrote down what it is.
        plan: what is asked for now.

    Raises:
        ValueError: they differ, or the file is damaged; says in what.
    """
    before = read_json(path)
    if not isinstance(before, dict):
        raise ValueError(f"{path} is damaged: give --overwrite to start anew.")
    now = json.loads(json.dumps(plan))
    differing = [name for name in now if before.get(name) != now[name]]
    if differing:
        raise ValueError(
            f"The unfinished job in {path.parent} differs in its {', '.join(differing)}; give the same again, or "
            "--overwrite."
        )


def check_job_folder(
    folder: Path, ours: set[str], *, summary: str, plan: str, resume: bool, overwrite: bool, before: str = ""
) -> set[str]:
    """Refuse a folder that holds what a job did not write.

    Names alone do not make a file the job's: without a summary or a plan beside them they are somebody's own, but
    for an empty folder, which a job may leave when it is killed at its start, and for `before`.

    Args:
        folder: of the output.
        ours: names that the job writes, those of summary and plan among them.
        summary: written last.
        plan: written first.
        resume: whether the job goes on.
        overwrite: whether it replaces what is there.
        before: a name that is written before the plan.

    Returns:
        Names in the folder.

    Raises:
        FileExistsError: a file in the folder's place, or something that the job did not write.
        ValueError: both `resume` and `overwrite`.
    """
    if resume and overwrite:
        raise ValueError("Give --resume to go on or --overwrite to start anew, not both.")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give --out a folder.")
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = sorted(name for name in found - ours if not name.startswith("."))
    if not found & {summary, plan}:
        foreign += sorted(name for name in found & ours - {before} if not _empty_folder(folder / name))
    if foreign:
        raise FileExistsError(f"{folder} holds {foreign[0]}, which no such job wrote; give another --out.")
    return found


def _empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, and rename it to `path` once the block ends without error.

    A reader sees the old file or the new one, never half of one. On an error the temporary file is
    removed and the old file stays.

    Raises:
        OSError: with the mend in words, where the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # some writers make files that only their owner can read
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, (OSError, SafetensorError)) and _out_of_space(error):
            raise OSError(
                errno.ENOSPC,
                f"no room to write {path.name} in {path.parent}; free some space and run again "
                "(what was there before is unharmed)",
            ) from error
        raise


def half_written(path: Path) -> str | None:
    """The name of the file that `replacing` was killed in the middle of, or None where `path` is no such file."""
    found = re.fullmatch(r"\.(.+)\.\d+\.part", path.name)
    return found[1] if found and path.is_file() and not path.is_symlink() else None


def _out_of_space(error: BaseException) -> bool:
    full = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in full
    return any(f"os error {code}" in str(error) for code in full)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, keys in the order given.

    Raises:
        ValueError: the content holds NaN or infinity, which JSON has not.
    """
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not JSON, holds NaN or infinity, or is nested too deeply to be ours.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing: is {path.parent} a folder that steelyard wrote?"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); the file is damaged or not steelyard's."
        ) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors as safetensors, atomically."""
    with replacing(path) as temporary:
        save_file(
            {name: t.detach().contiguous() for name, t in tensors.items()}, temporary, dict(metadata or {})
        )


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: the tensors and the metadata. Nothing in such a file is executed.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, or not safetensors.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: is {path.parent} a folder that steelyard wrote?")
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call, unused-ignore]
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as safetensors ({error}); the file is damaged or foreign."
        ) from None
