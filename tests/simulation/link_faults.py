"""Faults of links between hosts; of overlapping faults only the end of the last undoes them."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from tests.harness.network import Slow
from tests.simulation import acts
from tests.simulation.acts import Act
from tests.simulation.cluster import Cluster

Undo: TypeAlias = tuple[float, Callable[[], None]]
"""A delay in seconds, and the function that undoes the fault after it."""


class LinkFaults:
    """The link faults of one run.  `lose_contact` cuts a host off from the metadata store."""

    def __init__(
        self,
        cluster: Cluster,
        hosts: Sequence[str],
        lose_contact: Callable[[str], Callable[[], None]],
    ) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._lose_contact = lose_contact
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._healed = False

    def heal(self) -> None:
        """Undo all faults for good."""
        self._healed = True
        network = self._cluster.network
        for source, target in [pair for pair, count in self._cuts.items() if count]:
            network.unblock(source, target)
        self._cuts.clear()
        for name in self._hosts:
            for other in self._hosts:
                network.slow(name, other, None)

    def strike(self, act: Act, host: Callable[[str], str]) -> Undo:
        network = self._cluster.network
        match act:
            case acts.Cut(name, other, for_s, one_way, reset):
                pairs = [(host(name), host(other))]
                if not one_way:
                    pairs.append((host(other), host(name)))
                return for_s, self._block(pairs, reset=reset)
            case acts.Isolate(name, for_s):
                return for_s, self._isolate(host(name))
            case acts.Reset(name, other, torn):
                network.cut(host(name), host(other) or None, torn=torn)
                return 0.0, nothing
            case acts.SlowLink(name, other, for_s, factor, bytes_per_s):
                others = [host(other)] if other else self._hosts
                pairs = [(host(name), each) for each in others]
                pairs += [(target, source) for source, target in pairs]
                for source, target in pairs:
                    network.slow(source, target, Slow(factor, bytes_per_s))

                def mend() -> None:
                    for source, target in pairs:
                        network.slow(source, target, None)

                return for_s, mend
            case acts.Swizzle(names, freed, step_s):
                return self._swizzle(names, freed, step_s)
            case _:
                raise AssertionError(act)

    def _block(self, pairs: list[tuple[str, str]], *, reset: bool) -> Callable[[], None]:
        network = self._cluster.network
        for pair in pairs:
            self._cuts[pair] += 1
            network.block(*pair)

        def unblock() -> None:
            if reset:
                for source, target in pairs:
                    network.cut(source, target)
            for pair in pairs:
                self._cuts[pair] -= 1
                if not self._cuts[pair]:
                    network.unblock(*pair)

        return unblock

    def _isolate(self, name: str) -> Callable[[], None]:
        others = [other for other in self._hosts if other != name]
        pairs = [(name, other) for other in others] + [(other, name) for other in others]
        unblock = self._block(pairs, reset=False)
        contact = self._lose_contact(name)

        def over() -> None:
            unblock()
            contact()

        return over

    def _swizzle(self, names: tuple[str, ...], freed: tuple[str, ...], step_s: float) -> Undo:
        run, undo = self._cluster.run, dict[str, Callable[[], None]]()
        now = run.clock.now

        def stop(name: str) -> None:
            if not self._healed:
                undo[name] = self._isolate(name)

        def free(name: str) -> None:
            if name in undo:
                undo.pop(name)()

        for index, name in enumerate(names):
            run.at(now + index * step_s, partial(stop, name))
        for index, name in enumerate(freed):
            run.at(now + (len(names) + index) * step_s, partial(free, name))

        def free_all() -> None:
            for name in names:
                free(name)

        return (len(names) + len(freed)) * step_s, free_all


def nothing() -> None:
    """Do nothing: there is nothing to undo."""
