"""Paths of the metadata tree: `/a/b`, and `/` for the root."""


def check_path(path: str) -> str:
    """Return the path; a malformed one is a mistake of the caller."""
    assert path.startswith("/"), f"not absolute: {path!r}"
    if path != "/":
        parts = path[1:].split("/")
        assert all(part not in ("", ".", "..") and "\0" not in part for part in parts), path
    return path


def parent_of(path: str) -> str:
    assert path != "/", "the root has no parent"
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def ancestors_of(path: str) -> list[str]:
    """Return all records above this one, without the root, from the top down."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
