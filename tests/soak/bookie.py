"""`python -m tests.soak.bookie MOOD --config FILE`: a bookie whose disk has moods.

Everything else is as with `python -m daybook.bookie.server`.
"""

import sys
from pathlib import Path
from random import SystemRandom

from daybook.bookie.server.__main__ import main
from daybook.bookie.storage.disk import Disk, FileDisk
from tests.soak.disk import MoodFile, MoodyDisk


def _open_disk(moods: MoodFile) -> Disk:
    return MoodyDisk(FileDisk(), moods.read, SystemRandom())


if __name__ == "__main__":
    moods = MoodFile(Path(sys.argv.pop(1)))
    sys.exit(main(lambda: _open_disk(moods)))
