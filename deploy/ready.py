"""The health check of the container: exits with 0 while `/readyz` answers 200.

It asks at 127.0.0.1:7480, without TLS and then with it; its own server's certificate it need not
check. Where the server wants certificates of its clients (`client_ca`), MOORING_PROBE_CERT and
MOORING_PROBE_KEY name the files of one. Another place to ask is MOORING_PROBE, as HOST:PORT.
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
    except (OSError, HTTPException) as error:  # it speaks the other of the two, or is not there
        problem = error
sys.exit(str(problem))
