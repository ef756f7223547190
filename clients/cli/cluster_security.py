"""`daybook cluster secure-metadata` and `daybook cluster identity`.

    daybook cluster identity --zookeeper-user admin --zookeeper-password-file FILE
    daybook cluster secure-metadata --admin-identity digest:admin:HASH --dry-run
    daybook cluster secure-metadata --admin-identity digest:admin:HASH
    daybook cluster secure-metadata --require
    daybook cluster secure-metadata --undo

`metadata_protection` has the steps, and who has to be ready for each.
"""

import click

from daybook.clients.cli import metadata_protection
from daybook.clients.cli.chosen import address, chosen, context_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.metadata import run_with_store
from daybook.clients.cli.metadata_protection import ProtectionRefusedError, Wanted
from daybook.clients.cli.options import zookeeper_options
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.zookeeper_access import zookeeper_access, zookeeper_access_options
from daybook.wire.metadata.access import PasswordFileError
from daybook.wire.metadata.acl import check_identity
from daybook.wire.metadata.protection import Protection, Step
from daybook.wire.metadata.store import MetadataStore

_TIMEOUT_S = 60.0
_COLUMNS = ("kind", "process", "identity", "generation")


def _checked(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(check_identity(each) for each in value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@click.command(short_help="Print the identity of a user of ZooKeeper and its password.")
@zookeeper_access_options
@context_option
def identity() -> None:
    """Print the identity of a user of ZooKeeper and its password, for lists and `--also`.

    ZooKeeper is not asked.  The output has a hash of the password: keep it to yourself.
    """
    found = chosen()
    known = found is not None and found.context.zookeeper is not None
    zookeeper = address("zookeeper", "--zookeeper") if known else None
    click.echo(_own_identity(zookeeper or ""))


def _own_identity(zookeeper: str) -> str:
    try:
        credentials = zookeeper_access(zookeeper).credentials()
    except PasswordFileError as error:
        raise UserError(f"{error}.") from None
    if credentials is None:
        raise UserError(
            "This command has no identity: give --zookeeper-user and --zookeeper-password-file."
        )
    return credentials.identity


@click.command(short_help="Give the records in ZooKeeper lists of who may change them.")
@click.option(
    "--admin-identity",
    "admins",
    multiple=True,
    metavar="IDENTITY",
    callback=_checked,
    help="An identity of the operator, other than that of the processes; demanded the first time.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="IDENTITY",
    callback=_checked,
    help="A further identity with all rights, for example of Pulsar or of Apache's bookies.",
)
@click.option(
    "--known",
    multiple=True,
    metavar="NAME",
    help="A registered process that announces nothing, and has an identity of --also.",
)
@click.option("--require", is_flag=True, help="The last step: every program needs an identity.")
@click.option("--undo", is_flag=True, help="Go back one step.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for all processes to hear of the change.",
)
@zookeeper_options
@output_option
def secure_metadata(
    admins: tuple[str, ...],
    also: tuple[str, ...],
    known: tuple[str, ...],
    require: bool,
    undo: bool,
    dry_run: bool,
    timeout_s: float,
    zookeeper: str,
    root: str,
    output: OutputFormat,
) -> None:
    """Give the records in ZooKeeper lists of who may change them, in steps.

    First, all processes get zookeeper_user and zookeeper_password_file; that alone changes no
    record.  Then this command, run with the same identity, lets all processes create records with
    lists, and gives lists to the records that exist.  With --require, it lets every program of
    Daybook demand an identity.  --undo leads back, one step at a time.

    Each step is refused while a registered process is not ready for it.  The command may be
    interrupted, and run again.
    """
    if require and undo:
        raise UserError("--require and --undo are two directions: give one of them.")
    own = _own_identity(zookeeper)
    whole_tree = "/" in zookeeper.rstrip("/")
    not_ready: list[str] = []  # in a dry run

    async def work(store: MetadataStore) -> tuple[Protection, list[dict[str, str]]]:
        before = await store.protection()
        if before.closed and not before.known:
            raise UserError(
                "The identity of this command has no rights: run it with the identity of the"
                " processes, or with --admin-identity's."
            )
        wanted = _wanted(before, own, admins, also, known, root)
        if dry_run:
            found = await _show(store, before, wanted, whole_tree=whole_tree, undo=undo)
            not_ready.extend(found)
        elif undo:
            await metadata_protection.undo(
                store, whole_tree=whole_tree, timeout_s=timeout_s, report=_report
            )
        elif require:
            await metadata_protection.require(store, wanted, whole_tree=whole_tree)
        else:
            _check_admin(wanted, own)
            await metadata_protection.protect(
                store, wanted, whole_tree=whole_tree, timeout_s=timeout_s, report=_report
            )
        return await store.protection(), await metadata_protection.describe(store)

    async def refused(store: MetadataStore) -> tuple[Protection, list[dict[str, str]]]:
        try:
            return await work(store)
        except ProtectionRefusedError as error:
            step = (await store.protection()).step.value
            raise UserError(f"The step was not completed (now: {step}): {error}.") from None

    after, rows = run_with_store(zookeeper, refused)
    record: dict[str, object] = {"step": after.step.value, "generation": after.generation}
    _write(record, rows, output)
    if not_ready:
        raise UserError(f"Not ready, so the step would be refused: {'; '.join(not_ready)}.")


def _write(record: dict[str, object], rows: list[dict[str, str]], output: OutputFormat) -> None:
    if output == "json":
        write_record({**record, "processes": rows}, output)
        return
    write_record(record, output)
    if rows:
        click.echo()
        write_rows(rows, _COLUMNS, output)


def _wanted(
    before: Protection,
    own: str,
    admins: tuple[str, ...],
    also: tuple[str, ...],
    known: tuple[str, ...],
    root: str,
) -> Wanted:
    """Return what the options say; what they leave out is as before."""
    if not admins:
        admins = before.admins
    if also or not before.closed or own not in before.everybody:
        ours = own if own not in admins else next(iter(before.identities), own)
        identities = tuple(dict.fromkeys((ours, *also)))
    else:
        identities = before.identities
    roots = tuple(dict.fromkeys((*before.ledgers_roots, root)))
    return Wanted(identities, admins, roots, frozenset(known))


def _check_admin(wanted: Wanted, own: str) -> None:
    if not set(wanted.admins) - set(wanted.identities):
        raise UserError(
            "Name an identity of yours with --admin-identity, other than that of the processes"
            " (`daybook cluster identity` prints it): with it you get in if theirs is lost."
        )


async def _show(
    store: MetadataStore, before: Protection, wanted: Wanted, *, whole_tree: bool, undo: bool
) -> list[str]:
    """Report what would be done, and return what would prevent it."""
    after = Protection(
        before.generation,
        Step.OPENING if undo else Step.PROTECTED,
        wanted.ledgers_roots,
        wanted.identities,
        wanted.admins,
    )
    count = await metadata_protection.count_changes(store, after.acl, whole_tree=whole_tree)
    _report(f"{count.changed} of {count.seen} records would get another list.")
    found = [metadata_protection.denied_records(count)] if count.denied else []
    if not undo:
        found += await metadata_protection.obstacles(store, wanted, 0)
    if not whole_tree:
        for name in await metadata_protection.foreign_tops(store, wanted.ledgers_roots):
            _report(f"/{name} is not of this cluster and stays as it is, and so does the root.")
    return found


def _report(what: str) -> None:
    click.echo(what, err=True)
