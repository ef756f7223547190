"""The form of a file of users, as Apache's `htdigest` writes it: `user:bookkeeper:hash` a line."""

from daybook.wire.digest_md5 import REALM, SECRET_BYTES, secret_of

USERS_BYTES_MAX = 1 << 20  # in a file


def user_line(user: str, password: str) -> str:
    """Return the line of a user."""
    return f"{user}:{REALM}:{secret_of(user, password).hex()}"


def parse_users(text: str) -> dict[str, bytes]:
    """Return the hash of each user.  Raise ValueError, which never quotes a line."""
    secrets: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, realm, digits = ["", "", *line.rsplit(":", 2)][-3:]
        if realm != REALM or not user:
            raise ValueError(
                f"line {number} is not user:{REALM}:hash: write it with"
                f" `daybook bookies password FILE USER`, or `htdigest FILE {REALM} USER`"
            )
        try:
            secret = bytes.fromhex(digits)
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES:
            raise ValueError(
                f"line {number}: the hash is not {2 * SECRET_BYTES} hexadecimal digits"
            )
        secrets[user] = secret
    return secrets
