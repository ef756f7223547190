"""The options of TLS, which the Spark source and the sink share.

Paths are those of files on the driver and on every worker.
"""

from collections.abc import Mapping

from daybook.clients.python.tls import TlsOptions, is_encrypted

TLS_NAMES = ("tls.trusted", "tls.certificate", "tls.key", "tls.verifyHost")
_PATHS = TLS_NAMES[:3]
_VERIFY = TLS_NAMES[3]


def parse_tls(given: Mapping[str, str], *urls: str, other_use: bool = False) -> TlsOptions | None:
    """Return the TLS of a query whose option names are in lower case; None without TLS.

    With `other_use`, something else than brokers uses the files, too.  Raise ValueError if the
    URLs of the query are with TLS in part, or if an option of TLS is given for URLs without it.
    """
    encrypted = {is_encrypted(url) for url in urls}
    if len(encrypted) > 1:
        raise ValueError(
            "service.url and admin.url must both be with TLS (pulsar+ssl://, https://), or both"
            " without"
        )
    if True not in encrypted:
        for name in TLS_NAMES:
            if name.lower() in given and not other_use:
                raise ValueError(
                    f"{name} is for brokers with TLS: begin service.url with pulsar+ssl:// (and"
                    " admin.url with https://), or leave the option out"
                )
        return None
    for name in _PATHS:
        if not given.get(name, "-").strip():
            raise ValueError(f"the option {name!r} is empty: name a file, or leave it out")
    verify = given.get(_VERIFY.lower(), "true").strip().lower()
    if verify not in ("true", "false"):
        raise ValueError(f"{_VERIFY}={verify!r} is neither true nor false")
    trusted, certificate, key = (given.get(name) for name in _PATHS)
    return TlsOptions(trusted, certificate, key, verify_host=verify == "true")


def spark_options(tls: TlsOptions | None) -> dict[str, str]:
    """Return options as a query takes them; none without TLS."""
    if tls is None:
        return {}
    paths = zip(_PATHS, (tls.trusted, tls.certificate, tls.key), strict=True)
    found = {name: str(path) for name, path in paths if path is not None}
    return {**found, _VERIFY: str(tls.verify_host).lower()}
