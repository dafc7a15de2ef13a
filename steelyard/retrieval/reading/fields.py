"""Cells into ids, weights and times: typed, checked, and complained about by row."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from polars.exceptions import ComputeError

_LADDERS = {"weight": ("float",), "time": ("integer", "float", "date")}
_ID_LADDER = ("integer", "text")
_TEXTS = ("query", "document")
_HEAD = 1000
_SHOWN = 3
_NUMBER = r"^[+-]?(\d+(\.\d*)?|nan|NaN)$"
_FRACTION = r"^[+-]?\d+\.\d*$"
_DATE = r"^\d{4}-\d\d-\d\d"


def collect_fields(lazy: pl.LazyFrame, typed: bool, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Collect the role columns of one file, streaming, each in the narrowest type that loses nothing.

    Text becomes Int64 ids if every id is an integer written in the usual way, so that "7" and "007" stay two
    ids. Times become integers, else floats, else ISO dates (microseconds since 1970).

    Args:
        lazy: columns named by their roles.
        typed: whether the file itself says that an id is text (Parquet) or it is only text because
            everything is (CSV, JSONL).
        path: the file, for the messages.

    Returns:
        The frame, and notes on what was converted.

    Raises:
        ValueError: ids that are floats; weights or times that are missing, no numbers, infinite or negative.
    """
    schema = lazy.collect_schema()
    forms = {role: _form(role, dtype, typed, path) for role, dtype in schema.items()}
    _collect(lazy.head(_HEAD), forms, path)
    frame = _collect(lazy, forms, path)
    for role, form in forms.items():
        if form == "text" and role not in _TEXTS and not typed:
            _refuse_floats(frame[role], role, path)
    if forms.get("time") == "date":
        frame = frame.with_columns(_dates(frame["time"], path))
    check_numbers(frame, path)
    if forms.get("time") in ("date", "moment"):
        return frame, [f"{path.name}: dates became microseconds since 1970-01-01 UTC."]
    return frame, []


def _form(role: str, dtype: pl.DataType, typed: bool, path: Path) -> str:
    """How to read a column: a step of the ladder for text, the only way there is for typed columns."""
    is_text = dtype in (pl.String, pl.Categorical, pl.Enum)
    if role in _TEXTS:
        wanted, form = "text", "text" if is_text else ""
    elif role in _LADDERS:
        wanted = "numbers" if role == "weight" else "numbers or dates"
        form = _LADDERS[role][0] if is_text else _numeric_form(role, dtype)
    else:
        wanted = "integers or text"
        form = "text" if is_text and typed else _ID_LADDER[0] if is_text or dtype.is_integer() else ""
    if not form:
        mend = "Cast them to integers or to text" if dtype.is_float() else "Cast the column"
        raise ValueError(f"{path}: the {role} column holds {dtype}, {wanted} were expected. {mend} first.")
    return form


def _numeric_form(role: str, dtype: pl.DataType) -> str:
    if role == "time" and dtype in (pl.Datetime, pl.Date):
        return "moment"
    if role == "time" and dtype.is_integer():
        return "integer"
    return "float" if dtype.is_numeric() or dtype == pl.Boolean else ""


def _collect(lazy: pl.LazyFrame, forms: dict[str, str], path: Path) -> pl.DataFrame:
    """Collect with the given forms; one that does not fit all rows gives way to the next, in `forms` too."""
    schema = lazy.collect_schema()
    while True:
        wanted = [expr for role, form in forms.items() for expr in _read(role, form, schema[role])]
        frame = lazy.select(wanted).collect(engine="streaming")
        misfits = [role for role in forms if not frame[f"{role} fits"].all()]
        if not misfits:
            return frame.select(list(forms))
        del frame
        for role in misfits:
            ladder = _LADDERS.get(role, _ID_LADDER)
            step = ladder.index(forms[role]) + 1 if forms[role] in ladder else len(ladder)
            if step == len(ladder):
                raise ValueError(_misfit(lazy, role, forms[role], path))
            forms[role] = ladder[step]


def _read(role: str, form: str, dtype: pl.DataType) -> list[pl.Expr]:
    """The value of a column in a form, and whether the form fits (an empty cell fits every form)."""
    raw = pl.col(role)
    if dtype in (pl.Categorical, pl.Enum):
        raw = raw.cast(pl.String)
    if dtype not in (pl.String, pl.Categorical, pl.Enum):
        target = {"integer": pl.Int64, "float": pl.Float64, "moment": pl.Int64}[form]
        value = (raw.cast(pl.Datetime("us")) if form == "moment" else raw).cast(target, strict=False)
        fits = value.is_not_null() | raw.is_null()
    elif form == "text":
        value, fits = raw, pl.lit(True)
    else:
        if form == "integer":
            value = raw.cast(pl.Int64, strict=False)
            fits = value.cast(pl.String) == raw
        elif form == "float":
            value = raw.cast(pl.Float64, strict=False)
            fits = value.is_not_null()
        else:
            value, fits = raw, raw.str.contains(_DATE)
        fits = fits.fill_null(False) | raw.is_null() | (raw == "")
    return [value.alias(role), fits.alias(f"{role} fits")]


def _misfit(lazy: pl.LazyFrame, role: str, form: str, path: Path) -> str:
    schema = lazy.collect_schema()
    rows = lazy.with_row_index("row", 1).filter(~_read(role, form, schema[role])[1]).head(1).collect()
    wanted = {"time": "a number or an ISO date", "weight": "a number"}.get(role, "a signed 64-bit integer")
    return f"{path}, row {rows['row'][0]}: {role} is {rows[role][0]!r}, {wanted} was expected."


def _dates(texts: pl.Series, path: Path) -> pl.Series:
    """ISO dates as microseconds since 1970, all in the form of the first."""
    try:
        moments = texts.str.to_datetime(time_unit="us", strict=False)
    except ComputeError:
        moments = pl.Series("time", [None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    unread = (moments.is_null() & texts.is_not_null() & (texts != "")).arg_true()
    if len(unread):
        raise ValueError(
            f"{path}, row {unread[0] + 1}: the time {texts[unread[0]]!r} is no date, or not in the form of "
            "the others. Write all in one form, such as 2020-01-31T23:59:59, or as seconds since 1970."
        )
    return moments.dt.epoch("us")


def _refuse_floats(ids: pl.Series, role: str, path: Path) -> None:
    """Refuse ids such as 3.0, which come of programs that turn integers into floats."""
    filled = ids.filter(ids.is_not_null() & (ids != ""))
    for part in (filled.head(_HEAD), filled):
        if not part.str.contains(_NUMBER).all():
            return
    fractions = filled.str.contains(_FRACTION)
    if fractions.any():
        raise ValueError(
            f"{path}: the {role} column holds floats such as {filled.filter(fractions)[0]}; ids must be "
            "integers or text. Cast it first: to integers if all fractions are .0 (a missing value makes "
            "some programs write floats), else to text with a letter in front."
        )


def check_numbers(frame: pl.DataFrame, path: Path) -> None:
    """Refuse weights and times that are missing, NaN, infinite or negative, in rows that name both sides.

    Args:
        frame: one column a role.
        path: the file, for the message.

    Raises:
        ValueError: says how many rows, which first, and what mends it.
    """
    ids = [pl.col(name) for name in frame.columns if name not in _LADDERS]
    for role in (name for name in _LADDERS if name in frame.columns):
        value = pl.col(role)
        faults = {"missing": value.is_null(), "negative": value < 0}
        if frame.schema[role].is_float():
            faults |= {"NaN": value.is_nan(), "infinite": value.is_infinite()}
        for fault, where in faults.items():
            if not frame.select(where.any()).item():
                continue
            named = pl.all_horizontal(*((column.cast(pl.String) != "").fill_null(False) for column in ids))
            rows = frame.select((where & named).fill_null(False).arg_true() + 1).to_series()
            if len(rows):
                raise ValueError(_complaint(role, fault, rows, path))


def _complaint(role: str, fault: str, rows: pl.Series, path: Path) -> str:
    shown = ", ".join(str(row) for row in rows.head(_SHOWN)) + (", ..." if len(rows) > _SHOWN else "")
    mend = f"Mend or remove these rows, or read without the column ({role}= with no name)."
    if fault == "negative" and role == "time":
        mend = (
            "Times count from 1970 or any other start, and -1 often stands for a missing one. "
            "Remove these rows, or shift the column so that it starts at 0."
        )
    noun = "row" if len(rows) == 1 else "rows"
    return f"{path}: the {role} is {fault} in {len(rows):,} {noun} (counted from 1: {shown}). {mend}"
