"""The identity of this bookie: the cookie in all its directories and in the metadata store.

A bookie that starts on a wiped, exchanged or foreign directory would answer "no such entry" for
entries that it has acknowledged.  So it starts only if the cookies agree:

    directories      metadata store    meaning
    all, the same    the same          this bookie
    none, no data    none              a new bookie: written to the directories, then to the store
    some, no data    none              a new bookie whose first start was cut short
    not all, the     the same          with `repair`: this bookie, which has lost records, if those
    others empty                       without a cookie hold nothing and the paths are the same
    anything else                      refused, and nothing is changed

A bookie that may have lost records starts in doubt (`storage.limbo`), and its missing cookies
are written when the doubt is durable.  Until then its empty directories are *claimed*: the same
text is in `CLAIM`, so that a start that was cut short can be repeated.  A bookie is also in doubt
if its directories are older than its last loss, for example an image that was put back: the id of
the transaction of that loss is in `BIRTH` and in the metadata's record of the cookie.

The text is Apache BookKeeper's: a line with the layout version, then `CookieFormat` as protobuf
text.  In a directory it is the file `VERSION`; in the metadata store the record `cookies/<id>`.

A directory that has a cookie, and no file at all where its log was, counts as one without a cookie:
its log and index were removed, and the cookie was not.  A directory that never stored anything has
the file `NEW` there; the first start that finds a log removes that file.

The directories are compared as a list of paths; the only directory of a bookie may be moved.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.cookies import Cookie, create_cookie, read_cookie
from daybook.bookie.registry.paths import LedgerPaths, check_bookie_id
from daybook.bookie.storage.directory_runner import log_directory
from daybook.bookie.storage.disk import UNFINISHED, Disk
from daybook.bookie.storage.markers import NEVER_LOST, read_generation
from daybook.wire.metadata.store import MetadataStore, RecordExistsError

COOKIE_FILE = "VERSION"
CLAIM_FILE = "CLAIM"
NEW_FILE = "NEW"
_REMEDY = (
    "If its data are lost for good: `daybook bookies replace-disk` copies them from others first;"
    " `daybook bookie repair-cookie` lets it start, and copy what it lacks while it serves"
)


class StartError(Exception):
    """The bookie cannot start like this.  The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this bookie, and what must be written to make it known."""

    bookie_id: str
    cookie: Cookie
    directories: Sequence[str]
    new: bool
    lacking: Sequence[str]  # directories whose cookies are to be written
    in_doubt: bool
    disk: Disk
    metadata: MetadataStore
    paths: LedgerPaths

    async def claim(self) -> None:
        """Claim the directories without cookies, before a doubt is written to them."""
        for directory in self.lacking:
            await self.disk.make_directory(directory)
            await self.disk.write_file(f"{directory}/{CLAIM_FILE}", self.cookie.encode())

    async def stamp(self) -> None:
        """Write the missing cookies; repeatable.  Doubt is durable, the directories are locked."""
        for directory in self.lacking:
            # `NEW` comes first: a cookie without any file beside it is that of a lost log.
            await self.disk.write_file(_new_path(directory), self.cookie.encode())
            await self.disk.write_file(f"{directory}/{COOKIE_FILE}", self.cookie.encode())
        if self.new:
            # The store comes after the directories: a start that is cut short here is repeated.
            try:
                await create_cookie(self.metadata, self.paths, self.cookie)
            except RecordExistsError:
                raise StartError(f"another bookie has just taken the id {self.bookie_id}") from None
        for directory in self.directories:
            with suppress(FileNotFoundError):
                await self.disk.remove(f"{directory}/{CLAIM_FILE}")
            if {*await _log_files(self.disk, directory)} > {NEW_FILE}:
                await self.disk.remove(_new_path(directory))


async def examine(
    disk: Disk,
    directories: Sequence[str],
    metadata: MetadataStore,
    paths: LedgerPaths,
    *,
    instance_id: str,
    wanted_id: str,
    default_id: str,
    repair: bool = False,
) -> Identity:
    """Compare the cookies and change nothing.  Raise StartError if they do not agree.

    `wanted_id` is the id that the settings ask for, if any; a new bookie without one is called
    `default_id`.
    """
    found = {
        directory: _decoded(text, directory)
        for directory in directories
        if (text := await _read_local(disk, directory)) is not None
    }
    local = _agreed(found)
    if local is not None:
        _compare(local, directories, instance_id, wanted_id)
    bookie_id = local.bookie_id if local is not None else wanted_id or default_id
    try:
        known = await read_cookie(metadata, paths, check_bookie_id(bookie_id))
    except MalformedRecordError as error:
        raise StartError(f"{paths.cookie(bookie_id)}: {error}") from error
    if known is None:
        cookie = Cookie(bookie_id, tuple(directories), tuple(directories), instance_id)
        for directory in directories:
            if await _has_data(disk, directory, cookie):
                raise StartError(
                    f"{directory} holds data, but the cluster does not know bookie {bookie_id}:"
                    " the directory of another cluster, or of a bookie that was removed"
                )
        return Identity(
            bookie_id, cookie, directories, True, directories, False, disk, metadata, paths
        )
    emptied = [each for each in found if not await _log_files(disk, each)]
    missing = [each for each in directories if each not in found or each in emptied]
    if missing and repair:
        await _check_repair(disk, known.cookie, local, directories, missing, instance_id)
        return Identity(
            bookie_id, known.cookie, directories, False, missing, True, disk, metadata, paths
        )
    _check_missing(bookie_id, directories, found, emptied)
    if known.cookie != local:
        raise StartError(
            f"the cookie in {_names(directories)} is not the one that the cluster has for bookie"
            f" {bookie_id}: the directories are those of an earlier bookie of that name"
        )
    birth = await read_generation(disk, directories)
    expected = known.modified_txid if known.version else NEVER_LOST
    in_doubt = birth != expected
    return Identity(
        bookie_id, known.cookie, directories, False, (), in_doubt, disk, metadata, paths
    )


def _check_missing(
    bookie_id: str,
    directories: Sequence[str],
    found: Mapping[str, Cookie],
    emptied: Sequence[str],
) -> None:
    """Raise StartError unless every directory has a cookie, and the log that belongs to it."""
    if not found:
        raise StartError(
            f"bookie {bookie_id} is known to the cluster, but {_names(directories)} hold nothing of"
            f" it: another directory, or its data are lost.  {_REMEDY}"
        )
    if emptied:
        raise StartError(
            f"{_names(emptied)} has a {COOKIE_FILE}, and nothing of the log that was there."
            f"  {_REMEDY}"
        )
    missing = [each for each in directories if each not in found]
    if missing:
        raise StartError(
            f"{_names(missing)} has no {COOKIE_FILE}, and {_names(list(found))} has: a disk that"
            " was exchanged or is not mounted, or a directory that did not belong here before."
            f"  {_REMEDY}"
        )


async def _check_repair(
    disk: Disk,
    known: Cookie,
    local: Cookie | None,
    directories: Sequence[str],
    missing: Sequence[str],
    instance_id: str,
) -> None:
    """Raise StartError unless the directories without cookies are empty ones of this bookie."""
    if local is not None and local != known:
        raise StartError("the directories that have a cookie are those of another bookie")
    _compare(known, directories, instance_id, known.bookie_id)
    for directory in missing:
        if await _has_data(disk, directory, known):
            raise StartError(
                f"{directory} has no {COOKIE_FILE} and holds data: nobody knows whose they are;"
                " put the file back, or empty the directory"
            )


def _agreed(found: Mapping[str, Cookie]) -> Cookie | None:
    """Return the cookie that all these directories have, or None if `found` is empty."""
    cookies = list(found.values())
    if any(cookie != cookies[0] for cookie in cookies):
        raise StartError(f"{_names(list(found))} do not belong to the same bookie")
    return cookies[0] if cookies else None


def _compare(local: Cookie, directories: Sequence[str], instance_id: str, wanted_id: str) -> None:
    where = _names(directories)
    if local.instance_id != instance_id:
        raise StartError(
            f"{where} belongs to another cluster: its instance id is {local.instance_id}, here it"
            f" is {instance_id}"
        )
    if wanted_id and wanted_id != local.bookie_id:
        raise StartError(f"{where} belongs to bookie {local.bookie_id}, not to {wanted_id}")
    before = tuple(local.ledger_directories)
    if tuple(directories) != before and (len(directories), len(before)) != (1, 1):
        raise StartError(
            f"bookie {local.bookie_id} has the directories {_names(before)},"
            f" and was started with {where}"
        )


async def _read_local(disk: Disk, directory: str, name: str = COOKIE_FILE) -> bytes | None:
    with suppress(FileNotFoundError):
        return await disk.read_file(f"{directory}/{name}")
    return None


async def _has_data(disk: Disk, directory: str, ours: Cookie) -> bool:
    """Return True if there are data, unless a start of this bookie that was cut short left them."""
    if await _read_local(disk, directory, CLAIM_FILE) == ours.encode():
        return False
    return bool({*await _log_files(disk, directory)} - {NEW_FILE})


async def _log_files(disk: Disk, directory: str) -> list[str]:
    """Return the names of the files; a `NEW` that is not finished proves nothing."""
    with suppress(FileNotFoundError):
        names = await disk.list_directory(log_directory(directory))
        return [name for name in names if name != f"{NEW_FILE}{UNFINISHED}"]
    return []


def _new_path(directory: str) -> str:
    return f"{log_directory(directory)}/{NEW_FILE}"


def _decoded(text: bytes, directory: str) -> Cookie:
    try:
        return Cookie.decode(text)
    except MalformedRecordError as error:
        raise StartError(f"{directory}/{COOKIE_FILE}: {error}") from error


def _names(directories: Sequence[str]) -> str:
    return ", ".join(directories)
