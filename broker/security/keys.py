"""Keys of tokens, read from the places that Pulsar's settings name.

    file:///path/to/key                the bytes of the file
    data:;base64,AAAA                  the bytes behind the comma
    /path/to/key                       the bytes of the file, if there is one
    AAAA                               the bytes, in base64

A secret is these bytes.  A public or private key is PEM or DER: X.509 for public keys, PKCS 8 for
private ones.  A PEM file may hold several public keys, one after the other.  A place whose content
is the word `none` has no key, so that the key in it can be removed while a broker runs.

A key has exactly one family of algorithms, which follows from the key and never from
a token: so no token can choose how it is verified.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from daybook.wire.changing_files import read_regular
from daybook.wire.settings import ConfigError

Key: TypeAlias = (
    bytes | RSAPublicKey | RSAPrivateKey | EllipticCurvePublicKey | EllipticCurvePrivateKey
)
KEY_BYTES_MAX = 64 << 10
_RSA_BITS_MIN = 2048
# An HMAC key is as long as the hash, at least (RFC 7518, 3.2).
_BY_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA = ("RS256", "RS384", "RS512")
_PEM = b"-----BEGIN "
_SSH = (b"ssh-", b"ecdsa-")
_SECRET_VALUES_MIN = 8  # different bytes; 32 random ones have 30, and never fewer than 20
_PUBLIC_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s.*?-----END \1-----", re.DOTALL)
_NONE = b"none"


@dataclass(frozen=True, repr=False, eq=False)
class TokenKey:
    """A key, and the algorithms with which it may sign or verify.  The first is the default."""

    key: Key
    algorithms: tuple[str, ...]

    @cached_property
    def id(self) -> bytes:
        """The hash of the secret, or of the public half: equal for equal keys."""
        key = self.key
        if isinstance(key, bytes):
            return sha256(key).digest()
        public = key if isinstance(key, RSAPublicKey | EllipticCurvePublicKey) else key.public_key()
        encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return sha256(encoded).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenKey) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"TokenKey({', '.join(self.algorithms)})"


def read_key(place: str) -> bytes:
    """Return the bytes of a key.  Raise ConfigError, which never quotes the key."""
    if place.startswith("data:"):
        return _of_data_url(place)
    path = path_of(place)
    if path is not None:
        return _of_file(path)
    decoded = _base64(place)
    if decoded is None:
        raise ConfigError("the key is neither a file, nor a URL file: or data:, nor base64")
    return decoded


def path_of(place: str) -> Path | None:
    """Return the path of the file that `place` names; None if the key stands in the setting."""
    if place.startswith("data:"):
        return None
    if place.startswith("file:"):
        return Path(unquote_to_bytes(urlsplit(place).path).decode(errors="replace"))
    try:
        return Path(place) if Path(place).is_file() else None
    except (OSError, ValueError):
        return None


def secret_key(place: str) -> TokenKey:
    """Return the key for HMAC that `place` names.  Raise ConfigError."""
    return _secret(read_key(place))


def secret_keys(content: bytes) -> tuple[TokenKey, ...]:
    """Return the key for HMAC in `content`, none for the word `none`.  Raise ConfigError."""
    return () if content.strip() == _NONE else (_secret(content),)


def _secret(secret: bytes) -> TokenKey:
    if _is_no_secret(secret):
        # Everybody knows a public key, and could sign with it.
        raise ConfigError("the secret key is a public or private key: name it as such, or make one")
    if len(set(secret)) < _SECRET_VALUES_MIN:
        # A file system may show zeros where a file was not written to its end.
        raise ConfigError(
            f"the secret key has fewer than {_SECRET_VALUES_MIN} different bytes, so it can be"
            " guessed: make one with `daybook tokens create-secret-key`"
        )
    algorithms = tuple(name for name, size in _BY_SECRET_BYTES.items() if len(secret) >= size)
    if not algorithms:
        raise ConfigError(
            f"the secret key has {len(secret)} bytes, and needs {_BY_SECRET_BYTES['HS256']}: make"
            " one with `daybook tokens create-secret-key`"
        )
    return TokenKey(secret, algorithms)


def public_key(place: str) -> TokenKey:
    """Return the key that verifies signatures, the first of several.  Raise ConfigError."""
    found = public_keys(read_key(place))
    if not found:
        raise ConfigError("the key is the word none, so there is no key")
    return found[0]


def public_keys(content: bytes) -> tuple[TokenKey, ...]:
    """Return the keys in `content` that verify signatures.  Raise ConfigError."""
    if content.strip() == _NONE:
        return ()
    blocks = [content]
    if content.lstrip().startswith(_PEM):
        blocks = [found[0] for found in _PUBLIC_BLOCK.finditer(content)]
        if not blocks or len(blocks) != content.count(_PEM):
            raise ConfigError("the key cannot be read: a part of the PEM file is missing")
    return tuple(
        verifying(_parsed(block, load_pem_public_key, load_der_public_key)) for block in blocks
    )


def private_key(place: str) -> TokenKey:
    """Return the key that signs.  Raise ConfigError."""

    def pem(content: bytes) -> object:
        return load_pem_private_key(content, None)

    def der(content: bytes) -> object:
        return load_der_private_key(content, None)

    return verifying(_parsed(read_key(place), pem, der))


def verifying(key: object) -> TokenKey:
    """Return an asymmetric key with its algorithms.  Raise ConfigError if it has none."""
    if isinstance(key, RSAPublicKey | RSAPrivateKey):
        if key.key_size < _RSA_BITS_MIN:
            raise ConfigError(f"the key has {key.key_size} bits, and needs {_RSA_BITS_MIN}")
        return TokenKey(key, _RSA)
    if isinstance(key, EllipticCurvePublicKey | EllipticCurvePrivateKey):
        algorithm = _BY_CURVE.get(key.curve.name)
        if algorithm is not None:
            return TokenKey(key, (algorithm,))
    raise ConfigError("the key is neither RSA nor an elliptic curve of P-256, P-384 and P-521")


def _parsed(content: bytes, pem: Callable[[bytes], Any], der: Callable[[bytes], Any]) -> object:
    try:
        return pem(content) if content.lstrip().startswith(_PEM) else der(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            "the key cannot be read: it has to be PEM or DER, X.509 if it is public, PKCS 8"
            " without a password if it is private"
        ) from None


def _is_no_secret(content: bytes) -> bool:
    """Return True for a public or private key, also in base64 or in the form of SSH."""
    text = content.lstrip()
    if text.startswith((_PEM, *_SSH)):
        return True
    decoded = _base64(text.decode("latin-1"))
    return _is_public_key(content) or (decoded is not None and _is_public_key(decoded))


def _is_public_key(content: bytes) -> bool:
    try:
        load_der_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _of_file(path: Path) -> bytes:
    try:
        return read_regular(path, KEY_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the key file {path} cannot be used: {error}") from None


def _of_data_url(url: str) -> bytes:
    head, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ConfigError("the key is a data: URL without a comma")
    if not head.endswith("base64"):
        return unquote_to_bytes(body)
    decoded = _base64(body)
    if decoded is None:
        raise ConfigError("the key is a data: URL that is not valid base64")
    return decoded


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.strip(), validate=True) or None
    except (binascii.Error, ValueError):
        return None
