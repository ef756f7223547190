"""Names of options in the sentences of errors.

An option that does not exist is named with the one that may be meant; names are compared without
case.  An error of the clients underneath names their arguments and settings, such as (token=) or
zookeeper_tls; `in_options` puts the options of a query in their place.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches

_SETTINGS = {
    "zookeeper_tls": "zookeeper.tls",
    "zookeeper_user": "zookeeper.user",
    "zookeeper_password_file": "zookeeper.password.file",
    "bookie_tls": "bookie.tls",
    "bookie_user": "bookie.user",
    "bookie_password_file": "bookie.password.file",
}
_ARGUMENTS = {
    "basic=": "basic.password.file",
    "trusted=": "tls.trusted",
    "certificate=": "tls.certificate",
    "key=": "tls.key",
}
_METHODS = {
    "token": "the option token.file",
    "basic": "the options basic.user and basic.password.file",
    "tls": "the options tls.certificate and tls.key",
}
_SETTING = re.compile(rf"\b(?:{'|'.join(_SETTINGS)})\b")
_ARGUMENT = re.compile(r"(?<=[( ])(?:token|basic|trusted|certificate|key)=(?=[,)])")
_WANTED = re.compile(r"(?<=asks for credentials: use )\w+(?: or \w+)*")
_COMMANDS = re.compile(r" \(commands: [^)]*\)")


def in_options(text: str) -> str:
    """Return the words of an error with the options of a query in the place of other names."""
    token = "token.file" if "file" in text or "the token in" in text else "token"
    arguments = {**_ARGUMENTS, "token=": token}
    text = _ARGUMENT.sub(lambda found: arguments[found[0]], _COMMANDS.sub("", text))
    text = _SETTING.sub(lambda found: _SETTINGS[found[0]], text)
    text = _WANTED.sub(_ways, text)
    text = text.replace("as `trusted`", "with the option tls.trusted")
    return text.replace("(verify_host)", "(tls.verifyHost)")


def _ways(found: re.Match[str]) -> str:
    return " or ".join(_METHODS.get(each, each) for each in found[0].split(" or "))


def unknown_option(name: str, names: Sequence[str], of: str = "") -> str:
    """Return the sentence, with the option that may be meant; `of` says what has the options."""
    spelling = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), spelling, n=1)
    hint = f": did you mean {spelling[close[0]]!r}?" if close else ";"
    return f"unknown option {name!r}{of}{hint} there are: {', '.join(names)}"
