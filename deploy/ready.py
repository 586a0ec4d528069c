"""The health check of the container: exits with 0 if `/readyz` returns 200.

It connects to 127.0.0.1:7480, first without TLS and then with it, and does not verify the
certificate, since the server is in the same container. MOORING_PROBE sets another
address, as HOST:PORT. If the server requires client certificates (`client_ca`),
MOORING_PROBE_CERT and MOORING_PROBE_KEY name the files of one.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request
from http.client import HTTPException

where = os.environ.get("MOORING_PROBE", "127.0.0.1:7480")
tls = ssl._create_unverified_context()
if cert := os.environ.get("MOORING_PROBE_CERT"):
    tls.load_cert_chain(cert, os.environ.get("MOORING_PROBE_KEY"))

problem: Exception | None = None
for scheme in ("http", "https"):
    try:
        urllib.request.urlopen(f"{scheme}://{where}/readyz", timeout=5, context=tls)
        sys.exit(0)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code} {error.read().decode(errors='replace').strip()}")
    except (OSError, HTTPException) as error:  # wrong scheme, or no server
        problem = error
sys.exit(str(problem))
