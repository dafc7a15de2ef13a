"""Cells into ids, weights and times: typed, checked, and complained about by row."""

from __future__ import annotations

from pathlib import Path

import polars as pl

_LADDERS = {"weight": ("float",), "time": ("integer", "float", "date")}
_ID_LADDER = ("integer", "text")
_TEXTS = ("query", "document")
_HEAD = 1000
_SHOWN = 3
_NUMBER = r"^[+-]?(\d+(\.\d*)?|nan|NaN)$"
_FRACTION = r"^[+-]?\d+\.\d*$"
_DATE = r"^\d{4}-\d\d-\d\d"


def collect_fields(lazy: pl.LazyFrame, typed: bool, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Collect the role columns of one file in the streaming engine, each in the narrowest type that loses nothing.

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
        ValueError: ids that are floats; weights or times that are missing, not numbers, not finite or negative.
    """
    schema = lazy.collect_schema()
    forms = {role: _form(role, dtype, typed, path) for role, dtype in schema.items()}
    frame = _collect(lazy.head(_HEAD), forms, path)
    frame = _collect(lazy, forms, path)
    for role, form in forms.items():
        if form == "text" and role not in _TEXTS and not typed:
            _refuse_floats(frame[role], role, path)
    _check_numbers(frame, path)
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
    """Collect with the given forms; a form that does not fit all rows gives way to the next, in `forms` too."""
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
        value = raw.cast(pl.Datetime("us")).cast(pl.Int64) if form == "moment" else raw.cast(target, strict=False)
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
            moment = raw.str.to_datetime(time_unit="us", strict=False, format=None)
            value, fits = moment.dt.epoch("us"), raw.str.contains(_DATE)
        fits = fits.fill_null(False) | raw.is_null() | (raw == "")
    return [value.alias(role), fits.alias(f"{role} fits")]


def _misfit(lazy: pl.LazyFrame, role: str, form: str, path: Path) -> str:
    schema = lazy.collect_schema()
    rows = lazy.with_row_index("row", 1).filter(~_read(role, form, schema[role])[1]).head(1).collect()
    wanted = {"time": "a number or an ISO date", "weight": "a number"}.get(role, "a signed 64-bit integer")
    return f"{path}, row {rows['row'][0]}: {role} is {rows[role][0]!r}, {wanted} was expected."


def _refuse_floats(ids: pl.Series, role: str, path: Path) -> None:
    """Ids such as 3.0 come of a table program that turned integers into floats; to guess is to merge or split."""
    filled = ids.filter(ids.is_not_null() & (ids != ""))
    for part in (filled.head(_HEAD), filled):
        if not part.str.contains(_NUMBER).all():
            return
    fractions = filled.str.contains(_FRACTION)
    if fractions.any():
        raise ValueError(
            f"{path}: the {role} column holds floats such as {filled.filter(fractions)[0]}; ids must be integers or "
            "text. Cast it first: to integers if the fractions are all .0 (a missing value makes some programs "
            "write floats), else to text with a letter in front."
        )


def _check_numbers(frame: pl.DataFrame, path: Path) -> None:
    """Refuse missing, infinite and negative weights and times of rows that name a user and an item."""
    ids = [name for name in frame.columns if name not in _LADDERS]
    for role in (name for name in _LADDERS if name in frame.columns):
        values = frame[role]
        named = pl.Series(values=[True]).new_from_index(0, len(values)) if not ids else None
        del named
        faults = {"missing": values.is_null(), "negative": (values < 0).fill_null(False)}
        if values.dtype.is_float():
            faults["NaN"] = values.is_nan().fill_null(False)
            faults["infinite"] = values.is_infinite().fill_null(False)
        for fault, where in faults.items():
            if not where.any():
                continue
            raise ValueError(_bad_numbers(role, fault, where, path))
