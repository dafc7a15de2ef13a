"""Which column of a table plays which role."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

ROLES = {"ids": ("user", "item", "weight", "time"), "text": ("query", "document", "item")}
NEEDED = {"ids": ("user", "item"), "text": ("query", "document")}

_NAMES = {
    "user": """user user_id userid uid user_idx user_procid reviewer_id reviewerid customer customer_id
        customerid visitor visitor_id visitorid session session_id sessionid query_id qid""",
    "item": """item item_id itemid iid item_idx item_procid product product_id productid asin parent_asin
        movie movie_id movieid book_id isbn business_id track_id song_id article article_id news_id aid
        corpus_id document_id doc_id docid passage_id pid""",
    "weight": "weight rating score stars plays play_count playcount count",
    "time": "timestamp time ts unix_time unixreviewtime event_time created_at datetime date",
    "query": "query question anchor query_text",
    "document": "document doc positive passage answer text document_text",
}
_SHOWN = 20
_TYPED = re.compile(r":(token|float|token_seq|float_seq)$")
_PLACE = re.compile(r"column_[1-9][0-9]*$")


def assign_roles(
    names: Sequence[str], kind: str, columns: Mapping[str, str], where: str, preferred: Mapping[str, str]
) -> dict[str, str]:
    """Find the column of each role: those that were named, and the rest by their usual names.

    Typed headers such as `user_id:token` are known by the part before the colon.

    Args:
        names: the columns there are.
        kind: "ids" or "text".
        columns: role -> column, as far as the person named them; "" leaves a role out.
        where: the file, for the messages.
        preferred: role -> column to take before the usual names, if it is there.

    Returns:
        Role -> column as it stands in the file, in the order of `ROLES[kind]`.

    Raises:
        ValueError: an unknown role, a column that is not there, one column in two roles, or a needed role
            that no column plays.
    """
    found: dict[str, str] = {}
    free = [name for name in names if name not in columns.values()]
    for role in ROLES[kind]:
        if columns.get(role) == "":
            continue
        if role in columns:
            found[role] = _named(columns[role], names, where)
        elif preferred.get(role) in free:
            found[role] = preferred[role]
        elif role in NEEDED[kind] or kind == "ids":
            guess = _guess(role, free)
            if guess is not None:
                found[role] = guess
    missing = [role for role in NEEDED[kind] if role not in found]
    if missing:
        example = ",".join(f"{role}=NAME" for role in missing)
        raise ValueError(
            f"{where}: no column looks like {' or '.join(missing)}. Columns there are: {_listed(names)}. "
            f"Say which it is with columns {example} (a file without a header has column_1, column_2, ...)."
        )
    if len(set(found.values())) < len(found):
        raise ValueError(f"{where}: one column cannot play two roles: {found}.")
    return found


def check_roles(columns: Mapping[str, str], kind: str) -> None:
    """Refuse a role that this kind of data does not have.

    Raises:
        ValueError: names the role and the ones there are.
    """
    if kind not in ROLES:
        raise ValueError(f"Unknown kind {kind!r}; it is 'ids' (users, items) or 'text' (queries, documents).")
    unknown = [role for role in columns if role not in ROLES[kind]]
    if unknown:
        raise ValueError(
            f"Unknown role {unknown[0]!r} in columns; {kind} data has the roles {', '.join(ROLES[kind])}."
        )


def has_header(cells: Sequence[str], kind: str, columns: Mapping[str, str]) -> bool:
    """Whether the first line of a file names the columns.

    Args:
        cells: its cells.
        kind: "ids" or "text".
        columns: role -> column, as far as the person named them.

    Returns:
        False if all cells are numbers, or if places (`column_2`) are named that no cell is called.
    """
    if any(_PLACE.match(name) and name not in cells for name in columns.values()):
        return False
    return kind == "text" or not all(_is_number(cell) for cell in cells)


def roles_by_place(width: int, times: bool) -> dict[str, str]:
    """The usual layout of a table without a header: user, item, then weight or time, then time.

    Args:
        width: number of columns.
        times: whether the third column of three holds times.

    Returns:
        Role -> `column_N`; no more than four columns have a usual meaning.
    """
    third = ["time"] if times and width == 3 else ["weight", "time"]
    return {role: f"column_{place}" for place, role in enumerate(["user", "item", *third][:width], start=1)}


def _named(name: str, names: Sequence[str], where: str) -> str:
    if name in names:
        return name
    by_plain_name = [there for there in names if _plain(there) == _plain(name)]
    if len(by_plain_name) == 1:
        return by_plain_name[0]
    close = difflib.get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(f"{where} has no column {name!r}.{hint} Columns there are: {_listed(names)}.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more


def _guess(role: str, names: Sequence[str]) -> str | None:
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[usual] for usual in _NAMES[role].split() if usual in plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[ \-]+", "_", _TYPED.sub("", name.strip()).lower())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
