"""How a program of ledgers connects to ZooKeeper, and what it hears when that is refused."""

from pathlib import Path

import pytest

from daybook.clients.ledgers.errors import MetadataDeniedError, Outcome, Remedy, translated
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.clients.python.tls import TlsOptions
from daybook.wire.metadata.access import ZooKeeperAccess
from daybook.wire.metadata.store import AccessDeniedError
from daybook.wire.tls_files import TlsFiles


def test_a_refused_identity_is_no_missing_cluster() -> None:
    with pytest.raises(MetadataDeniedError, match="no identity") as caught, translated():
        raise AccessDeniedError("this process has no identity")
    assert (caught.value.outcome, caught.value.remedy) == (Outcome.NOT_APPLIED, Remedy.GIVE_UP)


def test_the_options_say_how_to_connect() -> None:
    options = ZooKeeperOptions(TlsOptions("ca", "c", "k", verify_host=False), "daybook", "p")
    files = TlsFiles(Path("c"), Path("k"), Path("ca"))
    assert options.access == ZooKeeperAccess(files, False, "daybook", Path("p"))
    assert ZooKeeperOptions().access == ZooKeeperAccess()


@pytest.mark.parametrize("given", [{"user": "a"}, {"password_file": "p"}])
def test_a_user_needs_a_password(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="belong together"):
        ZooKeeperOptions(**given)  # type: ignore[arg-type]
