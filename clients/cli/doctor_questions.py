"""The questions of `daybook doctor` to a cluster, all at once and with limits.

    the admin REST   brokers, readiness, versions, statistics of loaded topics, sinks, namespaces
    ZooKeeper        registrations, orders, marks of auto-recovery, since when sinks wait
    bookies          GetBookieInfo on their ports, /healthz on their HTTP ports

All questions read.  Only with `all_topics` do brokers load topics for them.  Each question fills
its part of `ClusterAnswers`; what fails, or takes too long, stays `Unknown`.  If only one of the
two addresses is given, the other one comes from the cluster itself.

With an admin URL of https, brokers are asked over https alone.  Without one, a broker is asked over
https if it has no other port.  Bookies are shown what `BookieAccess` says; one that lets nobody in
without it, and is shown nothing, is known to serve, and no more.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import trio

from daybook.bookie.errors import LedgerError, RegistryError
from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.security import BookieAccess, BookieSecurity, open_bookie_security
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.instance import read_binding, root_instance_id
from daybook.bookie.registry.layout import check_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import (
    BookieInfo,
    bookie_info,
    readonly_bookies,
    writable_bookies,
)
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.status_records import StatusRecords
from daybook.clients.cli.bookie_question import ask_info
from daybook.clients.cli.broker_client import in_options
from daybook.clients.cli.doctor_answers import (
    NO_ZOOKEEPER_REMEDY,
    Activity,
    Answer,
    BookieAnswers,
    BrokerAnswers,
    ClusterAnswers,
    Guard,
    Namespace,
    RecoveryAnswers,
    Sink,
    Stats,
    Unknown,
    needs_age,
)
from daybook.clients.cli.options import LEDGERS_ROOT
from daybook.clients.cli.progress import Advance
from daybook.clients.cli.zookeeper_access import remedy_for, zookeeper_access
from daybook.clients.python.admin import Admin, parse_admin_url
from daybook.clients.python.credentials import Basic, Token
from daybook.clients.python.errors import (
    AdminError,
    AdminInDoubtError,
    BrokerError,
    NotFoundError,
    TlsError,
)
from daybook.clients.python.tls import TlsOptions, is_encrypted
from daybook.wire.clock import SystemClock
from daybook.wire.errors import WireError
from daybook.wire.logging import silent_log
from daybook.wire.metadata.store import MetadataError, MetadataStore, NoContactError
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.probe import NoAnswerError, NotAskedError
from daybook.wire.topics import TopicName, url_encode

_GUARDS, _BROKERS, _SINKS = "/daybook/guards", "/loadbalance/brokers", "/daybook/sinks"
_REST_SINKS = "/admin/v2/daybook/sinks"
_QUICK_S = 4.0  # for a question that a healthy server answers in milliseconds, a slow one in 2 s
_PATIENT_S = 60.0  # for a question whose answer is large
_END_S = 1.5  # the part of the time limit that is left for ending the session
_SESSION_TIMEOUT_S = 10.0
_AT_ONCE = 8
_NOT_FOUND = 404
_NO_HTTPS_REMEDY = (
    "Name the https ports of all brokers in --admin-url, or let this command ask ZooKeeper for"
    " them: --zookeeper, and --zookeeper-tls with its files if it is locked."
)
_BAD_REQUEST, _DENIED = 400, (401, 403)
ASK_AS_SUPER_USER = "Run it with the token of a super user: --token-file FILE."
_WITH_TLS = "begin the URL with https://"
_WITH_TLS_REMEDY = (
    "Begin --admin-url with https://; --tls-trusted FILE names the authority of the brokers."
)
_TLS_REMEDY = (
    "--tls-trusted FILE names the authority of the brokers, --tls-certificate and --tls-key the"
    " certificate of this command; `daybook certificates show FILE` shows when one expires."
)
_NOBODY_REMEDY = (
    "Correct --admin-url, or start the brokers (`daybook local status` shows the parts of a"
    " standalone cluster)."
)
_NOBODY_LISTENS = "nobody listens at "
_OTHER_RELEASE = "this broker is of another release, and does not tell"
_NO_HTTPS = Unknown(
    "its port with TLS is not known, because ZooKeeper was not asked or the broker has none",
    asked=False,
)
_MARKS_MAX = 1_000  # the marks that are read; more are only counted
_QUORUM = re.compile(r"(write|ack)\W+(\d+)")
_ERRORS = (BrokerError, MetadataError, LedgerError, RegistryError, WireError, ValueError, OSError)
_MALFORMED = (KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Security:
    """The TLS and the credentials that brokers are shown."""

    tls: TlsOptions | None = None
    token: Token | None = None
    basic: Basic | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """The HTTP addresses, HOST:PORT, that a registered broker announces; empty: it has none."""

    http: str
    https: str


class Questions:
    """One instance per run of the command.  `answers` grows while `ask` runs."""

    def __init__(
        self,
        answers: ClusterAnswers,
        admin_url: str | None,
        zookeeper: str | None,
        root: str | None,
        security: Security | None = None,
        bookie_access: BookieAccess | None = None,
    ) -> None:
        """Raise ValueError if `admin_url` is no URL of brokers."""
        self._security = security or Security()
        self._bookie_access = bookie_access or BookieAccess()
        self._https = admin_url is not None and is_encrypted(admin_url)
        self.answers = answers
        self._admin_url = admin_url
        named = [] if admin_url is None else parse_admin_url(admin_url)
        answers.named = [f"{host}:{port}" for host, port in named]
        answers.remedies[_NO_HTTPS.why] = _NO_HTTPS_REMEDY
        self._zookeeper = zookeeper
        self._root = root
        self._access = zookeeper_access(zookeeper or admin_url or "")
        self._members: dict[str, Member] = {}  # the brokers in the metadata store
        self._store_why = "its address is not known, because no broker told it"
        self._nobody = "no broker answers"
        self._rest_asked = trio.Event()  # the brokers have told who is registered
        self._store_asked = trio.Event()  # the metadata store has told it
        self._since: dict[str, int] = {}  # when the record of each sink was written
        self._stored = trio.Event()  # `_since` is complete, or will never be

    async def ask(self, timeout_s: float, advance: Advance) -> None:
        """Ask everything, and return when all is answered or the time is up."""
        with trio.move_on_after(max(timeout_s / 2, timeout_s - _END_S)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_store)
                nursery.start_soon(self._ask_brokers, advance)

    # -- brokers

    def _url_of(self, name: str) -> str | None:
        """Return the admin URL of one broker; None if its port with TLS is not known."""
        member = self._members.get(name)
        if member is not None:
            if self._https or not member.http:
                return f"https://{member.https}" if member.https else None
            return f"http://{member.http}"
        if self._https:
            return f"https://{name}" if name in self.answers.named else None
        return f"http://{name}"

    def _admin(self, url: str, timeout_s: float) -> Admin:
        tls = self._security.tls if is_encrypted(url) else None
        token, basic = self._security.token, self._security.basic
        return Admin(url, tls=tls, token=token, basic=basic, timeout_s=timeout_s)

    async def _answer(self, ask: Callable[[], Awaitable[Any]], *, may_be_gone: bool = False) -> Any:  # noqa: ANN401  JSON, mostly
        return await _answer(ask, may_be_gone=may_be_gone, remedies=self.answers.remedies)

    def _admin_of(self, name: str, timeout_s: float = _PATIENT_S) -> Admin | None:
        url = self._url_of(name)
        return None if url is None else self._admin(url, timeout_s)

    def _admin_of_all(self, names: Iterable[str], timeout_s: float = _PATIENT_S) -> Admin | None:
        """Return a client that asks one of these brokers, those with the scheme of the first."""
        urls = [url for name in names if (url := self._url_of(name)) is not None]
        if not urls:
            return None
        scheme = urls[0].partition("://")[0]
        hosts = [url.partition("://")[2] for url in urls if url.startswith(f"{scheme}://")]
        return self._admin(f"{scheme}://{','.join(hosts)}", timeout_s)

    def _know_named(self) -> None:
        """Give brokers that the admin URL names by their ports with TLS the names of all others."""
        answers = self.answers
        by_address = {each.https: name for name, each in self._members.items()}
        for name in answers.named:
            known = by_address.get(name, name) if self._https else name
            if known != name and name in answers.brokers:
                answers.brokers[known] = answers.brokers.pop(name)
        if self._https:
            answers.named = [by_address.get(name, name) for name in answers.named]

    async def _ask_brokers(self, advance: Advance) -> None:
        try:
            await self._ask_registered()
        finally:
            self._rest_asked.set()
        await self._store_asked.wait()
        self._know_named()
        answers = self.answers
        if isinstance(answers.registered, Unknown) and self._members:
            answers.registered = sorted(self._members)
        registered = [] if isinstance(answers.registered, Unknown) else answers.registered
        advance(0, 1, "brokers")
        await self._ask_ready(registered)
        there = {name: said for name, said in sorted(answers.brokers.items()) if said.answers}
        admin = self._admin_of_all(there)
        if admin is None:
            nobody = Unknown(self._nobody)
            answers.sinks = answers.namespaces = answers.quorums = nobody
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_quorums, admin)
            nursery.start_soon(self._ask_sinks, admin)
            nursery.start_soon(self._ask_namespaces, admin)
            async with trio.open_nursery() as brokers:
                for name, said in there.items():
                    brokers.start_soon(self._ask_broker, name, said)
            await self._ask_ages(advance)
        if answers.all_topics:
            await self._ask_unloaded(admin, advance)

    async def _ask_registered(self) -> None:
        """Ask the brokers that the user named who is registered, and where ZooKeeper is."""
        if self._admin_url is None:
            return
        there = await self._ask_ready(self.answers.named)
        if not there:
            self._note_nobody()
            return
        admin = self._admin_of_all(there, _QUICK_S * len(there))
        assert admin is not None, "the admin URL names them"
        self.answers.registered = await self._answer(admin.brokers)
        if self._zookeeper is not None and self._root is not None:
            return
        path = "/admin/v2/brokers/internal-configuration"
        config = await self._answer(lambda: admin.call("GET", path))
        if isinstance(config, Unknown):
            self._store_why = f"no broker told its address: {config.why}"
        elif isinstance(config, dict):
            told = cast("dict[str, str | None]", config)
            self._zookeeper = self._zookeeper or told.get("zookeeperServers") or None
            self._root = self._root or told.get("ledgersRootPath") or None

    def _note_nobody(self) -> None:
        """Note that no broker of the admin URL answers, and what the first one said instead."""
        readys = [each.ready for each in self.answers.brokers.values()]
        why = next((each.why for each in readys if isinstance(each, Unknown)), "")
        self._nobody = f"no broker at the admin URL answers: {why}"
        self._store_why = self._nobody
        self.answers.registered = Unknown(self._nobody)
        self.answers.remedies.setdefault(why, _NOBODY_REMEDY)

    async def _ask_ready(self, names: Iterable[str]) -> list[str]:
        """Ask brokers whether they are ready; return those that answer at all."""
        brokers = self.answers.brokers
        names = [name for name in names if name not in brokers]

        async def ask(name: str) -> None:
            admin = self._admin_of(name, _QUICK_S)
            ready: Answer[str] = _NO_HTTPS
            if admin is not None:
                brokers[name].url = self._url_of(name) or ""
                remedies = self.answers.remedies
                paths = ("/readyz", "/admin/v2/brokers/health")
                ready = await _readiness(admin, *paths, remedies=remedies)
            said = brokers[name]
            said.ready = ready
            if isinstance(ready, Unknown):
                said.version = said.loaded = said.token_files = said.activity = ready

        async with trio.open_nursery() as nursery:
            for name in names:
                brokers[name] = BrokerAnswers()
                nursery.start_soon(ask, name)
        return [name for name in names if brokers[name].answers]

    async def _ask_broker(self, name: str, said: BrokerAnswers) -> None:
        quick, patient = self._admin_of(name, _QUICK_S), self._admin_of(name)
        if quick is None or patient is None:
            said.version = said.loaded = said.quarantine = said.token_files = _NO_HTTPS
            said.activity = _NO_HTTPS
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_version, quick, said)
            nursery.start_soon(self._ask_quarantine, quick, said)
            nursery.start_soon(self._ask_token_files, quick, said)
            nursery.start_soon(self._ask_activity, quick, said)
            nursery.start_soon(self._ask_loaded, patient, said)

    async def _ask_version(self, admin: Admin, said: BrokerAnswers) -> None:
        version = await self._answer(lambda: admin.call("GET", "/admin/v2/brokers/version"))
        said.version = version if isinstance(version, Unknown) else str(version).strip()

    async def _ask_quarantine(self, admin: Admin, said: BrokerAnswers) -> None:
        async def ask() -> dict[str, str]:
            found = await admin.call("GET", "/admin/v2/daybook/quarantine")
            return {str(bookie): str(why) for bookie, why in found.items()}

        said.quarantine = await self._answer(ask)

    async def _ask_token_files(self, admin: Admin, said: BrokerAnswers) -> None:
        async def ask() -> dict[str, str]:
            try:
                found = await admin.call("GET", "/admin/v2/daybook/token-files")
            except NotFoundError:
                raise ValueError(_OTHER_RELEASE) from None
            return {str(file): str(why) for file, why in found.items()}

        said.token_files = await self._answer(ask)

    async def _ask_activity(self, admin: Admin, said: BrokerAnswers) -> None:
        async def ask() -> Activity:
            try:
                return _activity(await admin.call("GET", "/admin/v2/daybook/activity"))
            except NotFoundError:
                raise ValueError(_OTHER_RELEASE) from None

        said.activity = await self._answer(ask)

    async def _ask_loaded(self, admin: Admin, said: BrokerAnswers) -> None:
        """One request returns the statistics of all loaded topics, and loads none."""

        async def ask() -> dict[str, Stats]:
            found = await admin.call("GET", "/admin/v2/broker-stats/topics")
            return {
                topic: stats
                for bundles in found.values()
                for domains in bundles.values()
                for topics in domains.values()
                for topic, stats in topics.items()
            }

        said.loaded = await self._answer(ask)

    async def _ask_quorums(self, admin: Admin) -> None:
        async def ask() -> tuple[int, int] | None:
            settings = await admin.call("GET", "/admin/v2/brokers/configuration/runtime")
            found = {name: int(count) for name, count in _QUORUM.findall(str(settings["quorums"]))}
            return (found["write"], found["ack"]) if len(found) == 2 else None

        self.answers.quorums = await self._answer(ask)

    async def _ask_sinks(self, admin: Admin) -> None:
        async def ask() -> list[Sink]:
            return [_sink(each) for each in await admin.call("GET", _REST_SINKS)]

        found = self.answers.sinks = await self._answer(ask)
        if not isinstance(found, Unknown):
            await self._stored.wait()
            since = self._since
            self.answers.sinks = [replace(s, since_ms=since.get(url_encode(s.name))) for s in found]

    # -- topics

    async def _ask_ages(self, advance: Advance) -> None:
        """Ask since when subscriptions without consumers are behind, where nobody has asked yet."""
        where: dict[str, Admin] = {}
        for name, said in sorted(self.answers.brokers.items()):
            admin = self._admin_of(name)
            if admin is not None and not isinstance(said.loaded, Unknown):
                where |= {topic: admin for topic, stats in said.loaded.items() if needs_age(stats)}
        await self._ask_stats(where, "backlogs", advance)

    async def _ask_unloaded(self, admin: Admin, advance: Advance) -> None:
        namespaces, known = self.answers.namespaces, self.answers.topics
        if isinstance(namespaces, Unknown):
            return
        found = [each for each in namespaces.values() if not isinstance(each, Unknown)]
        topics = sorted(topic for each in found for topic in each.topics if topic not in known)
        await self._ask_stats(dict.fromkeys(topics, admin), "topics that are not loaded", advance)

    async def _ask_stats(self, where: Mapping[str, Admin], what: str, advance: Advance) -> None:
        """Ask for the statistics of topics; `where` names the broker of each that has it loaded.

        Listed topics have no partitions, or are partitions, so one request is enough for each.
        """
        asked, done = self.answers.asked, 0
        for topic in where:
            asked[topic] = Unknown("the time was up before it was looked at")

        async def ask(topic: str) -> None:
            nonlocal done
            name = TopicName.parse(topic)
            path = f"/admin/v2/{name.domain}/{name.namespace}/{name.encoded}/stats"
            try:
                asked[topic] = await self._answer(
                    lambda: where[topic].call("GET", path), may_be_gone=True
                )
            except NotFoundError:
                del asked[topic]  # deleted since it was listed, or a partition that nobody has used
            done += 1
            advance(done, len(where), f"{what}: {done:,} of {len(where):,}")

        await self._each(where, ask)

    async def _ask_namespaces(self, admin: Admin) -> None:
        async def list_all() -> list[str]:
            return [n for tenant in await admin.tenants() for n in await admin.namespaces(tenant)]

        names = await self._answer(list_all)
        if isinstance(names, Unknown):
            self.answers.namespaces = names
            return
        found: dict[str, Answer[Namespace]] = {
            name: Unknown("the time was up before it was looked at") for name in names
        }
        self.answers.namespaces = found

        async def ask(name: str) -> None:
            try:
                found[name] = await self._answer(partial(_namespace, admin, name), may_be_gone=True)
            except NotFoundError:
                del found[name]  # deleted since it was listed

        await self._each(names, ask)

    async def _each(self, names: Iterable[str], ask: Callable[[str], Awaitable[None]]) -> None:
        """Ask about each name, few at a time, so that other requests of the brokers find room."""
        left = iter(names)

        async def work() -> None:
            for name in left:
                await ask(name)

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(work)

    # -- the metadata store

    async def _ask_store(self) -> None:
        try:
            if self._zookeeper is None or self._root is None:
                await self._rest_asked.wait()
            if self._zookeeper is None:
                self._store_unknown(Unknown(self._store_why))
                return
            try:
                async with open_zookeeper(
                    self._zookeeper,
                    session_timeout_s=_SESSION_TIMEOUT_S,
                    request_timeout_s=_QUICK_S,
                    connect_timeout_s=_QUICK_S,
                    access=self._access,
                ) as store:
                    await self._ask_in_session(store)
            except* _ERRORS as group:
                self._store_unknown(_no_session(_first(group), self.answers.remedies))
        finally:
            self._store_asked.set()
            self._stored.set()

    def _store_unknown(self, why: Unknown) -> None:
        """Note that the store does not answer.  Its earlier answers stay."""
        answers = self.answers
        for part in ("store", "guards", "bookies", "recovery"):
            if isinstance(getattr(answers, part), Unknown):
                setattr(answers, part, why)

    async def _ask_in_session(self, store: MetadataStore) -> None:
        answers, paths = self.answers, LedgerPaths(self._root or LEDGERS_ROOT)
        self._members = await _members(store)
        self._store_asked.set()
        await self._rest_asked.wait()
        registered = answers.registered
        if not isinstance(registered, Unknown) and registered and self._admin_url is not None:
            if self._members and not {*registered} & {*self._members}:
                answers.store = (
                    f"ZooKeeper at {self._zookeeper} belongs to another cluster: it knows none of"
                    f" the brokers that {self._admin_url} names"
                )
                self._members = {}
                other = Unknown("ZooKeeper belongs to another cluster")
                answers.guards = answers.bookies = answers.recovery = other
                return
            answers.registered = sorted({*registered, *self._members})
        answers.store = await self._answer(partial(_store_trouble, store, paths))
        answers.guards = await self._answer(partial(_guards, store))
        with suppress(*_ERRORS):
            await self._read_since(store)
        self._stored.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_recovery, store, paths)
            nursery.start_soon(self._ask_bookies, store, paths)

    async def _read_since(self, store: MetadataStore) -> None:
        for node in await store.get_children(_SINKS) or []:
            record = await store.get(f"{_SINKS}/{node}")
            if record is not None:
                self._since[node] = record.stat.modified_ms

    async def _ask_recovery(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self.answers.recovery = await self._answer(partial(_recovery, store, paths))

    # -- bookies

    async def _ask_bookies(self, store: MetadataStore, paths: LedgerPaths) -> None:
        async def ask() -> list[BookieAnswers]:
            await check_layout(store, paths)
            writable = await writable_bookies(store, paths)
            readonly = await readonly_bookies(store, paths)
            known = await known_bookies(store, paths)
            orders = await AdminStates(store, paths).list()
            rows: dict[str, BookieAnswers] = {}
            access = self._bookie_access
            security = open_bookie_security(access, clock=SystemClock(), log=silent_log())

            async def one(name: str) -> None:
                order = orders.get(BookieId(name))
                words = None if order is None else order.kind.value
                state = "readonly" if name in readonly else "writable"
                info = await bookie_info(store, paths, name)
                if info is None:
                    rows[name] = BookieAnswers(name, "away", words)
                    return
                unhealthy = await _health(info, access)
                rows[name] = await _ask_bookie(security, info, state, words, unhealthy)

            await self._each(sorted({*writable, *readonly, *known}), one)
            return [rows[name] for name in sorted(rows)]

        self.answers.bookies = await self._answer(ask)


async def _health(info: BookieInfo, access: BookieAccess) -> str:
    """Return what is wrong according to /healthz; "" if nothing is, or if that is not known."""
    if info.http_port is not None:
        admin = Admin(f"http://{info.host}:{info.http_port}", timeout_s=_QUICK_S)
    elif info.https_port is not None and access.tls:
        tls = TlsOptions(access.trusted, access.certificate, access.key)
        admin = Admin(f"https://{info.host}:{info.https_port}", tls=tls, timeout_s=_QUICK_S)
    else:
        return ""
    found = await _readiness(admin, "/healthz")
    return "" if isinstance(found, Unknown) else found  # Its own port matters.


async def _ask_bookie(
    security: BookieSecurity | None,
    registered: BookieInfo,
    state: str,
    order: str | None,
    unhealthy: str,
) -> BookieAnswers:
    name, host, port = registered.bookie_id, registered.host, registered.port
    try:
        info = await ask_info(security, name, host, port, _QUICK_S)
    except (NoAnswerError, NotAskedError, WireError) as error:
        return BookieAnswers(name, state, order, str(error), unhealthy)
    told = info.HasField("freeDiskSpace") and info.HasField("totalDiskCapacity")
    return BookieAnswers(
        name,
        state,
        order,
        "",
        unhealthy,
        info.freeDiskSpace if told else None,
        info.totalDiskCapacity if told else None,
    )


# -- single answers


async def _answer(
    ask: Callable[[], Awaitable[Any]],
    *,
    may_be_gone: bool = False,
    remedies: dict[str, str] | None = None,
) -> Any:  # noqa: ANN401  JSON, mostly
    """Return the answer, or why there is none.

    With `may_be_gone`, raise NotFoundError if the question was about an object that is gone.  If
    this command is to blame, `remedies` gets what helps, by the reason.
    """
    try:
        return await ask()
    except _ERRORS as error:
        if may_be_gone and isinstance(error, NotFoundError):
            raise
        return _unknown(error, {} if remedies is None else remedies)
    except _MALFORMED as error:
        return Unknown(f"the answer makes no sense ({type(error).__name__}: {error})")


async def _readiness(
    admin: Admin, *paths: str, remedies: dict[str, str] | None = None
) -> Answer[str]:
    """Return "" if the server says that it is well, or what it says is wrong.

    A server of another project may not have the first path.  It is asked for the next one.
    """
    path, *others = paths
    try:
        await admin.call("GET", path)
    except (AdminError, AdminInDoubtError) as error:
        if error.status == _NOT_FOUND and others:
            return await _readiness(admin, *others, remedies=remedies)
        if error.status in (_NOT_FOUND, _BAD_REQUEST):
            return _unknown(error, {} if remedies is None else remedies)
        return str(error)
    except _ERRORS as error:
        return _unknown(error, {} if remedies is None else remedies)
    return ""


def _unknown(error: BaseException, remedies: dict[str, str]) -> Unknown:
    """Return why there is no answer, and note what helps if this command is to blame."""
    words = _words(error)
    if isinstance(error, TlsError):
        words = in_options(error).rstrip(".")
    remedy = remedy_for(error)
    if isinstance(error, AdminError) and error.status in _DENIED:
        remedy = ASK_AS_SUPER_USER
    elif _WITH_TLS in words:
        remedy = _WITH_TLS_REMEDY
    elif isinstance(error, TlsError):
        remedy = _TLS_REMEDY
    if remedy:
        remedies[words] = remedy
    return Unknown(words, asked=remedy not in (_WITH_TLS_REMEDY, _TLS_REMEDY))


def _no_session(error: BaseException, remedies: dict[str, str]) -> Unknown:
    """Return why ZooKeeper was not asked, and whether it is known to be away."""
    found = _unknown(error, remedies)
    parts = error.why.split("; ") if isinstance(error, NoContactError) else []
    if not parts or not all(part.startswith(_NOBODY_LISTENS) for part in parts):
        return found
    remedies[found.why] = NO_ZOOKEEPER_REMEDY
    return replace(found, away=True)


def _words(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _first(error: BaseException) -> BaseException:
    """Return the first exception inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _activity(view: dict[str, Any]) -> Activity:
    lost_ago_s: float | None = view["sessionLostAgoS"]
    return Activity(
        int(view["topicsLoading"]),
        int(view["loadsWaiting"]),
        float(view["oldestLoadWaitS"]),
        float(view["oldestLoadS"]),
        str(view["oldestLoadTopic"]),
        str(view["oldestLoadStep"]),
        int(view["requestsWaiting"]),
        int(view["sessionsLost"]),
        None if lost_ago_s is None else float(lost_ago_s),
    )


def _sink(view: dict[str, Any]) -> Sink:
    reasons = [str(each["reason"]) for each in view["partitions"] if each.get("reason")]
    return Sink(view["name"], view["state"], reasons)


async def _namespace(admin: Admin, name: str) -> Namespace:
    topics = await admin.topics(name)
    retention = (await admin.policies(name)).get("retention_policies")
    if retention is None:  # It has none of its own, and the broker that answers knows its default.
        settings = await admin.call("GET", "/admin/v2/brokers/configuration/runtime")
        minutes = int(settings["default_retention_minutes"])
        return Namespace(frozenset(topics), minutes, int(settings["default_retention_mb"]))
    minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    return Namespace(frozenset(topics), minutes, megabytes)


async def _members(store: MetadataStore) -> dict[str, Member]:
    """Return the registered brokers with the HTTP addresses that they announce."""
    found: dict[str, Member] = {}
    for name in await store.get_children(_BROKERS) or []:
        record = await store.get(f"{_BROKERS}/{name}")
        if record is not None:
            said = _object(record.value)
            urls = [said.get(key) for key in ("webServiceUrl", "webServiceUrlTls")]
            http, https = (urlsplit(url).netloc if isinstance(url, str) else "" for url in urls)
            found[name] = Member(http or (name if not https else ""), https)
    return found


async def _guards(store: MetadataStore) -> list[Guard]:
    found: list[Guard] = []
    for name in await store.get_children(_GUARDS) or []:
        record = await store.get(f"{_GUARDS}/{name}")
        if record is not None:
            said = _object(record.value)
            formats = cast("list[object]", said.get("formats") or [])
            found.append(Guard(str(said.get("brokerId", name)), frozenset(map(str, formats))))
    return sorted(found, key=lambda guard: guard.broker)


def _object(value: bytes) -> dict[str, object]:
    try:
        found: object = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


async def _store_trouble(store: MetadataStore, paths: LedgerPaths) -> str:
    """Return what is wrong with the binding of the topics; empty if nothing is."""
    bound = await read_binding(store)
    instance = await root_instance_id(store, paths)
    if instance is None:
        return f"there are no ledgers below {paths.root} in ZooKeeper"
    if bound is not None and bound.instance_id != instance:
        return (
            f"the topics are bound to the instance {bound.instance_id}, and the ledgers below"
            f" {paths.root} are {instance}"
        )
    return ""


async def _recovery(store: MetadataStore, paths: LedgerPaths) -> RecoveryAnswers:
    underreplication, status = Underreplication(store, paths, ""), StatusRecords(store, paths)
    await check_layout(store, paths)
    await underreplication.check_layout()
    lost: dict[str, int] = {}
    marked = 0
    async for ledger_id in underreplication.marked_ledgers():
        marked += 1
        if marked <= _MARKS_MAX:
            mark = await underreplication.read_mark(ledger_id)
            for bookie in () if mark is None else mark.missing:
                lost[bookie] = lost.get(bookie, 0) + 1
    alarms = [
        f"ledger {alarm.ledger_id}: {alarm.trouble.value} ({alarm.why})"
        for alarm in await status.alarms()
    ]
    told = {int(text.split()[1].rstrip(":")) for text in alarms}
    alarms += [
        f"ledger {each}: its alarm does not parse"
        for each in await status.alarmed_ledgers()
        if each not in told
    ]
    paused = await underreplication.is_paused()
    workers = len(await status.workers())
    return RecoveryAnswers(paused, marked, lost, workers, alarms, min(marked, _MARKS_MAX))
