"""Folders of jobs: what a job did not write is never taken for its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.files import check_job_folder

OURS = {"done.json", "plan.json", "parts", "table.parquet", "vectors"}


def check(folder: Path, resume: bool = False, overwrite: bool = False) -> set[str]:
    return check_job_folder(
        folder,
        OURS,
        summary="done.json",
        plan="plan.json",
        resume=resume,
        overwrite=overwrite,
        before="vectors",
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_names_alone_do_not_make_somebodys_files_the_jobs(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "vectors").mkdir()
    assert check(tmp_path, overwrite=overwrite) == {"parts", "vectors"}
    (tmp_path / "parts" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="holds parts, which no such job wrote"):
        check(tmp_path, overwrite=overwrite)
    (tmp_path / "plan.json").touch()
    assert "parts" in check(tmp_path, overwrite=overwrite)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        check(tmp_path, overwrite=overwrite)


def test_a_file_in_its_place_and_both_wishes_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        check(tmp_path / "file")
    with pytest.raises(ValueError, match="not both"):
        check(tmp_path, resume=True, overwrite=True)
    assert check(tmp_path / "new") == set()
