"""Rules about who enters a bookie, and how its clients reach it, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_ENTRANCE = "daybook.bookie.server.entrance"
_DIGEST = "daybook.wire.digest_md5"
_AT_ENTRANCE = "tests:tests/bookie/server/test_entrance.py"
_WITH_CLIENT = "tests:tests/bookie/ledger/test_security.py"
_RECORD = "tests:tests/bookie/server/test_permit_record.py"
_TOKENS = "tests:tests/wire/test_digest_md5.py"

_REFUSING = "tests:tests/broker/test_bookies_that_refuse.py"

MUTANTS = [
    Mutant(
        id="BS01",
        rule="an exchange that has begun must end -> a request ends it",
        module=_ENTRANCE,
        name="Entrance.lets_in",
        replacement=Edit("if self._state is _State.CHALLENGED:", "if False:"),
        caught_by=f"{_AT_ENTRANCE} -k middle_of_an_exchange",
    ),
    Mutant(
        id="BS02",
        rule="without TLS nothing but START_TLS is taken -> v3 is",
        module=_ENTRANCE,
        name="Entrance._step_v3",
        replacement=Edit("if self.door.require_tls and not self.encrypted:", "if False:"),
        caught_by=f"{_AT_ENTRANCE} -k nothing_but_start_tls",
    ),
    Mutant(
        id="BS03",
        rule="without TLS nothing but START_TLS is taken -> v2 is",
        module=_ENTRANCE,
        name="Entrance._step_v2",
        replacement=Edit("plain = self.door.require_tls and not self.encrypted", "plain = False"),
        caught_by=f"{_AT_ENTRANCE} -k nothing_but_start_tls",
    ),
    Mutant(
        id="BS04",
        rule="only the beginning of an AUTH counts across the handshake -> anything does",
        module=_ENTRANCE,
        name="Entrance.take_before_handshake",
        replacement=Edit("if self._began_in_plain or not _begins_auth(frame):", "if False:"),
        caught_by=f"{_AT_ENTRANCE} -k before_the_handshake",
    ),
    Mutant(
        id="BS05",
        rule="a certificate must be allowed -> any one lets in",
        module=_ENTRANCE,
        name="Door.identity_of",
        replacement=Edit("certificate.common_name in self.allowed_certificates", "True"),
        caught_by=f"{_AT_ENTRANCE} -k another_certificate",
    ),
    Mutant(
        id="BS06",
        rule="a peer that goes on without authentication leaves -> it may ask forever",
        module=_ENTRANCE,
        name="Entrance._refuse",
        replacement=Edit("if self._refused > _REFUSALS_MAX:", "if False:"),
        caught_by=f"{_AT_ENTRANCE} -k over_and_over",
    ),
    Mutant(
        id="BS11",
        rule="the proof is compared -> every proof is right",
        module=_DIGEST,
        name="DigestServer.verify",
        replacement=Edit("if not compare_digest(right, proof) or secret is None:", "if False:"),
        caught_by=f"{_TOKENS} -k wrong_password",
    ),
    Mutant(
        id="BS12",
        rule="a user enters as himself -> as anybody he names",
        module=_DIGEST,
        name="DigestServer.verify",
        replacement=Edit('given.get("authzid", user) != user', "False"),
        caught_by=f"{_TOKENS} -k deviates",
    ),
    Mutant(
        id="BS13",
        rule="the server proves that it knows the password -> it need not",
        module=_DIGEST,
        name="DigestClient.check",
        replacement=Edit(
            "if not self._expected or not compare_digest(given.encode(), self._expected.encode()):",
            "if False:",
        ),
        caught_by=f"{_TOKENS} -k found_out",
    ),
    Mutant(
        id="BS21",
        rule="a bookie without TLS is not used -> it is used in plain text",
        module="daybook.bookie.ledger.security",
        name="_start_tls",
        replacement=Edit(
            "if response.status != pb.EOK:",
            "if response.status != pb.EOK:\n        return\n    if False:",
        ),
        caught_by=f"{_WITH_CLIENT} -k never_falls_back",
    ),
    Mutant(
        id="BS22",
        rule="nothing may come in plain text in front of the handshake -> it is dropped",
        module="daybook.bookie.ledger.security",
        name="_start_tls",
        replacement=Edit("        if begun:\n", "        if False:\n"),
        caught_by=f"{_WITH_CLIENT} -k behind_start_tls",
    ),
    Mutant(
        id="BS41",
        rule="ten quiet minutes come before `require` -> none",
        module="daybook.bookie.server.permit_record",
        name="_objection",
        replacement=Edit("if not before.quiet_s >= QUIET_S:", "if False:"),
        caught_by=f"{_RECORD} -k earlier",
    ),
    Mutant(
        id="BS42",
        rule="who stays connected without credentials counts -> only who comes",
        module="daybook.bookie.server.permit_record",
        name="PermitRecord._write",
        replacement=Edit("if unproven:", "if False:"),
        caught_by=f"{_RECORD} -k stays_connected",
    ),
    Mutant(
        id="JN11",
        rule="a broker that all bookies refuse does not start -> it takes bundles",
        module="daybook.broker.joining",
        name="check_bookies",
        replacement=Edit("    if refusals:", "    if False:"),
        caught_by=f"{_REFUSING} -k does_not_start",
    ),
    Mutant(
        id="JN12",
        rule="a bookie that is silent refuses nobody -> it counts as one that refuses",
        module="daybook.bookie.ledger.bookie_client",
        name="BookieClient.refusal_of",
        replacement=Edit("refusal is not None and refusal.final", "refusal is not None"),
        caught_by=f"{_REFUSING} -k prove_nothing",
    ),
]
