"""The hash that Apache's htpasswd writes by default: `$apr1$SALT$DIGEST`.

It is 1,000 rounds of MD5, which no longer stops somebody who has the file: use bcrypt for new ones.
"""

from hashlib import md5
from hmac import compare_digest

_PREFIX = "$apr1$"
_ROUNDS = 1000
_SALT_CHARS_MAX = 8
_LETTERS = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# The bytes of the digest that each group of four letters is made of, the last one apart.
_GROUPS = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))


def matches(password: bytes, stored: str) -> bool:
    """Return True if `stored` is the hash of the password."""
    salt, dollar, _ = stored.removeprefix(_PREFIX).partition("$")
    if not stored.startswith(_PREFIX) or not dollar or len(salt) > _SALT_CHARS_MAX:
        return False
    return compare_digest(hashed(password, salt).encode(), stored.encode())


def hashed(password: bytes, salt: str) -> str:
    """Return the hash.  The salt has at most 8 letters."""
    salt_bytes = salt.encode()
    inner = md5(password + salt_bytes + password, usedforsecurity=False).digest()
    context = md5(password + _PREFIX.encode() + salt_bytes, usedforsecurity=False)
    context.update((inner * (len(password) // 16 + 1))[: len(password)])
    length = len(password)
    while length:
        context.update(b"\0" if length & 1 else password[:1])
        length >>= 1
    digest = context.digest()
    for number in range(_ROUNDS):
        digest = _round(number, password, salt_bytes, digest)
    return f"{_PREFIX}{salt}${_text(digest)}"


def _round(number: int, password: bytes, salt: bytes, digest: bytes) -> bytes:
    content = password if number & 1 else digest
    if number % 3:
        content += salt
    if number % 7:
        content += password
    content += digest if number & 1 else password
    return md5(content, usedforsecurity=False).digest()


def _text(digest: bytes) -> str:
    found = ""
    for first, second, third in _GROUPS:
        found += _letters(digest[first] << 16 | digest[second] << 8 | digest[third], 4)
    return found + _letters(digest[11], 2)


def _letters(value: int, count: int) -> str:
    found = ""
    for _ in range(count):
        found += _LETTERS[value & 63]
        value >>= 6
    return found
