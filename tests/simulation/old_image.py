"""An image of a bookie's disk, and whether the bookie can notice that the image is old."""

from collections.abc import Mapping
from math import inf

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.start_counts import StartRecord
from daybook.bookie.server.start_count import STARTS_FILE
from tests.harness.disk import Image
from tests.simulation.cluster import Cluster
from tests.simulation.settings import BOOKIE_PORT


class OldImage:
    """An image of all directories of a host as they are now, or of one."""

    def __init__(self, cluster: Cluster, name: str, directory: int | None) -> None:
        self._cluster = cluster
        self._name = name
        names = [f"d{index}" for index in range(cluster.settings.directories)]
        some = names if directory is None else [names[directory % len(names)]]
        self._ends = self._ends_of_logs()
        self._images = [cluster.platter(name).image(each) for each in some]

    def put_back(self) -> None:
        """Restore the image; the host is dead."""
        for image in self._images:
            self._cluster.platter(self._name).put_back(image)

    def is_known(self) -> bool:
        """Return True if the metadata store knows of a later start, or of a later end of a log."""
        path = LedgerPaths().starts(f"{self._name}:{BOOKIE_PORT}")
        tree = self._cluster.metadata.tree
        found = tree.record_after(tree.writes, path)
        try:
            record = StartRecord.decode(found.value) if found is not None else None
        except MalformedRecordError:
            record = None
        return record is not None and any(self._is_behind(each, record) for each in self._images)

    def _is_behind(self, image: Image, record: StartRecord) -> bool:
        number = _number(image)
        if number is None:
            return False  # the bookie was new
        position = record.positions.get(image.directory, 0)
        return number < record.starts or position > self._ends.get(image.directory, inf)

    def _ends_of_logs(self) -> Mapping[str, float]:
        """Return upper bounds for the image's logs, including data on its way to the disk."""
        running = self._cluster.bookie(self._name)
        if running is None:
            return {}
        directories = running.store._directories.ledger_directories
        return {directory.path: directory.log.end for directory in directories}


def _number(image: Image) -> int | None:
    content = image.files.get(f"{image.directory}/{STARTS_FILE}")
    return None if content is None else int(content.split()[1])
