"""The commands in this process."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from steelyard.cli import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def steelyard(*words: str, cwd: Path) -> Done:
    """The command in this process: starting another costs seconds of imports."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["steelyard", *words]
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())
