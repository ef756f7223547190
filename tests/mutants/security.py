"""Rules about who a client is and what it may do, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_SESSION = "daybook.broker.protocol.session"
_SECURITY = "daybook.broker.security"
_MACHINE = "tests:tests/broker/protocol/test_connection_machines.py"
_TESTS = "tests:tests/broker/security"

MUTANTS = [
    Mutant(
        id="SE01",
        rule="a client is connected when its role is proven -> when it has greeted",
        module=_SESSION,
        name="SessionProtocol.connect",
        replacement=Edit("if self._authenticates:", "if False:"),
        caught_by=f"{_MACHINE} -k credentials",
    ),
    Mutant(
        id="SE02",
        rule="nothing is served while credentials are checked -> everything is",
        module=_SESSION,
        name="SessionProtocol.admit",
        replacement=Edit("if self.state is ClientState.PROVING:", "if False:"),
        caught_by=f"{_MACHINE} -k nothing_is_served",
    ),
    Mutant(
        id="SE03",
        rule="renewed credentials prove the same role -> any role",
        module=_SESSION,
        name="SessionProtocol.proven",
        replacement=Edit("if role != self._role:", "if False:"),
        caught_by=f"{_MACHINE} -k credentials",
    ),
    Mutant(
        id="SE04",
        rule="a second expiry without an answer ends the session -> it asks again",
        module=_SESSION,
        name="SessionProtocol.expired",
        replacement=Edit("if self.renewal is not Renewal.NOT_DUE:", "if False:"),
        caught_by=f"{_MACHINE} -k credentials",
    ),
    Mutant(
        id="SE05",
        rule="a client that cannot renew is closed -> it is asked, and goes on for a while",
        module=_SESSION,
        name="SessionProtocol.expired",
        replacement=Edit("if not self._renews:", "if False:"),
        caught_by=f"{_MACHINE} -k credentials",
    ),
    Mutant(
        id="SE06",
        rule="a client answers a challenge, once -> whenever it likes",
        module=_SESSION,
        name="SessionProtocol.admit",
        replacement=Edit("asked = self.renewal is Renewal.ASKED", "asked = True"),
        caught_by=f"{_MACHINE} -k admitted_only_to_a_challenge",
    ),
    Mutant(
        id="SE07",
        rule="credentials that are being checked are checked in time -> whenever it is",
        module=_SESSION,
        name="SessionProtocol.greeting_overdue",
        replacement=Edit("if self.state is ClientState.PROVING:", "if False:"),
        caught_by=f"{_MACHINE} -k credentials",
    ),
    Mutant(
        id="SE10",
        rule="a token has an algorithm of the key -> HMAC with any key",
        module=f"{_SECURITY}.tokens",
        name="claims_of",
        replacement=Edit("list(key.algorithms)", '[*key.algorithms, "HS256", "none"]'),
        caught_by=f"{_TESTS}/test_tokens.py",
    ),
    Mutant(
        id="SE11",
        rule="a token expires -> it is valid forever",
        module=f"{_SECURITY}.tokens",
        name="ClaimRules.identity",
        replacement=Edit("now_s >= expires_s", "False"),
        caught_by=f"{_TESTS}/test_tokens.py -k times",
    ),
    Mutant(
        id="SE12",
        rule="a public key is no secret -> it is taken for one",
        module=f"{_SECURITY}.keys",
        name="secret_key",
        replacement=Edit("if secret.startswith(_PEM) or _is_public_key(secret):", "if False:"),
        caught_by=f"{_TESTS}/test_tokens.py -k not_accepted_as_a_secret",
    ),
    Mutant(
        id="SE13",
        rule="wrong credentials are refused -> they are the anonymous role",
        module=f"{_SECURITY}.authentication",
        name="Authentication.identify",
        replacement=Edit(
            "    except WrongCredentialsError as error:\n",
            "    except WrongCredentialsError as error:\n"
            "        if self._anonymous_role:\n"
            "            return self._nobody(Credentials())\n",
        ),
        caught_by=f"{_TESTS}/test_authentication.py -k wrong_credentials",
    ),
    Mutant(
        id="SE14",
        rule="unknown methods are refused -> they are the anonymous role",
        module=f"{_SECURITY}.authentication",
        name="Authentication.identify",
        replacement=Edit("if method in _NONE:", "if method not in self._methods:"),
        caught_by=f"{_TESTS}/test_authentication.py -k wrong_credentials",
    ),
    Mutant(
        id="SE15",
        rule="only a proxy asks for another role -> everybody does",
        module=f"{_SECURITY}.identity",
        name="on_behalf",
        replacement=Edit("if proxies_only:", "if False:"),
        caught_by=f"{_TESTS}/test_authentication.py -k only_a_proxy",
    ),
    Mutant(
        id="SE16",
        rule="a remembered password is that of the present file -> of any earlier one",
        module=f"{_SECURITY}.basic",
        name="Passwords._keyed",
        replacement=Edit("(user.encode(), password, stored.encode())", "(user.encode(), password)"),
        caught_by=f"{_TESTS}/test_basic.py -k changed_file",
    ),
    Mutant(
        id="SE17",
        rule="an unknown key asks the issuer once in a while -> each time",
        module=f"{_SECURITY}.oidc",
        name="OpenIdTokens._key",
        replacement=Edit("issuer.asked_s = trio.current_time()", "pass"),
        caught_by=f"{_TESTS}/test_oidc.py -k exchanged",
    ),
]
