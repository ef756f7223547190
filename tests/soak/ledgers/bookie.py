"""`python -m tests.soak.ledgers.bookie MOOD --config FILE`: a bookie whose disk has moods.

All else is as with `python -m daybook.bookie.server`.
"""

import sys
from pathlib import Path
from random import SystemRandom

from daybook.bookie.server.__main__ import main
from daybook.bookie.storage.disk import Disk, FileDisk
from tests.soak.ledgers.disk import MoodyDisk
from tests.soak.ledgers.moods import MoodFile


def _open_disk(moods: MoodFile) -> Disk:
    return MoodyDisk(FileDisk(), moods.read, SystemRandom())


if __name__ == "__main__":
    moods = MoodFile(Path(sys.argv.pop(1)))
    sys.exit(main(lambda: _open_disk(moods)))
