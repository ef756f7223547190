"""The certificate that a port with TLS shows to a client that comes now."""

import ssl

from cryptography import x509

from tests.harness.processes import PATIENCE_S


def certificate_at(address: tuple[str, int], trusted: str) -> x509.Certificate:
    """Return the certificate that a new connection is shown, which `trusted` must have signed."""
    pem = ssl.get_server_certificate(address, ca_certs=trusted, timeout=PATIENCE_S)
    return x509.load_pem_x509_certificate(pem.encode())
