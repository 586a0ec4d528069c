"""`mooring tenant rekey`: encrypts all passwords with the current key.

Former keys are needed until it has succeeded, and every process has the current one.
"""

from __future__ import annotations

import msgspec
import typer

from mooring.cli.io.connect import TenantTarget
from mooring.cli.io.options import ByOption, JSONOption
from mooring.cli.io.streams import note, progress, warn
from mooring.cli.io.tables import show_json
from mooring.formatting import count_of
from mooring.tenants.publish.publisher import Publisher, RekeyResult
from mooring.tenants.secrets import FORMER


def rekey(target: TenantTarget, by: ByOption = "", as_json: JSONOption = False) -> None:
    """Encrypt all passwords with the current key, in tenants and in their histories.

    Can be stopped and run again. Exits with 1 if a password could not be decrypted.
    """

    async def reencrypt(publisher: Publisher) -> RekeyResult:
        with progress("rekeyed") as report:
            return await publisher.rekey(report)

    rekeyed = target.run(reencrypt, by)
    if as_json:
        show_json(msgspec.to_builtins(rekeyed))
    else:
        tenants = count_of(rekeyed.tenants, "tenant")
        entries = count_of(rekeyed.entries, "history entry", "history entries")
        typer.echo(f"encrypted the passwords of {tenants} and {entries}")
    for problem in rekeyed.problems:
        warn(problem)
    if rekeyed.problems:
        raise typer.Exit(1)
    note(
        f"all passwords are encrypted with the current key: remove {FORMER} once no other process "
        "needs it"
    )
