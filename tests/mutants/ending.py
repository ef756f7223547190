"""Rules about the end of logs and clients, broken one at a time: no task stays, no caller waits."""

from tests.mutants.patch import Edit, Mutant

_LOG = "daybook.managed_ledger.log"
_GIVEN_UP = "tests:tests/managed_ledger/test_given_up.py"
_BLOCKING = "daybook.clients.ledgers.blocking_writer"
_PORTAL = "daybook.clients.python.portal"
_ENTRIES = "daybook.clients.ledgers.entries"
_CLIENTS = "tests:tests/clients/ledgers"
_MISUSE = f"{_CLIENTS}/test_blocking_misuse.py"
_CALLS = "tests:tests/clients/python/test_portal.py"

LOGS = [
    Mutant(
        id="E01",
        rule="a failed open abandons its writer -> the writer keeps its watches forever",
        module="daybook.managed_ledger.open",
        name="_take_over",
        replacement=Edit("        log.abandon()\n", "        pass\n"),
        caught_by=f"{_GIVEN_UP} -k hears_of_bookies",
    ),
    Mutant(
        id="E02",
        rule="a termination goes on without its caller -> ends halfway",
        module=_LOG,
        name="ManagedLedger.terminate",
        replacement=Edit(
            "return await self.context.run_to_end(self._terminate)",
            "return await self._terminate()",
        ),
        caught_by=f"{_GIVEN_UP} -k terminated",
    ),
    Mutant(
        id="E03",
        rule="two concurrent terminations are one -> each runs by itself",
        module=_LOG,
        name="ManagedLedger._terminate",
        replacement=Edit("async with self._terminating:", "if True:"),
        caught_by="tests:tests/managed_ledger/test_log.py -k terminated",
    ),
    Mutant(
        id="E03b",
        rule="a log whose termination failed accepts appends again -> it does not",
        module=_LOG,
        name="ManagedLedger._terminate",
        replacement=Edit("self._refused = before\n", "pass\n"),
        caught_by="tests:tests/managed_ledger/test_log.py -k terminated",
    ),
    Mutant(
        id="E04",
        rule="a cancelled close ends the tasks of the log -> leaves them",
        module=_LOG,
        name="ManagedLedger.close",
        replacement=Edit(
            "        finally:\n            self._drop(closed)\n",
            "        except KeyError:\n            pass\n        self._drop(closed)\n",
        ),
        caught_by=f"{_GIVEN_UP} -k a_close_that_is_cancelled",
    ),
]

CLIENTS = [
    Mutant(
        id="E05",
        rule="the tasks of a blocking writer end when it is closed -> with the client",
        module=_BLOCKING,
        name="Writer._close",
        replacement=Edit("            self._stopped()\n", "            pass\n"),
        caught_by=f"{_CLIENTS}/test_blocking.py -k leaves_nothing_running",
    ),
    Mutant(
        id="E06",
        rule="the tasks of a blocking writer end when it is abandoned -> with the client",
        module=_BLOCKING,
        name="_Handle.abandon",
        replacement=Edit("        self._stopped()\n", ""),
        caught_by=f"{_CLIENTS}/test_blocking.py -k leaves_nothing_running",
    ),
    Mutant(
        id="E07",
        rule="a queue without producers has no task -> its task waits for the client's end",
        module=_BLOCKING,
        name="Writer._end",
        replacement=Edit("    self._drain.end()\n", ""),
        caught_by=f"{_CLIENTS}/test_blocking.py -k leaves_nothing_running",
    ),
    Mutant(
        id="E08",
        rule="entries that a writer has not accepted at its end get an error -> they wait forever",
        module=_BLOCKING,
        name="Writer._end",
        replacement=Edit("for entry in left:", "for entry in ():"),
        caught_by=f"{_CLIENTS}/test_blocking.py -k nobody_waits",
    ),
    Mutant(
        id="E08b",
        rule="a caller that knows of the writer's end is not told again -> it is, fatally",
        module=_BLOCKING,
        name="Writer._empty",
        replacement=Edit("if self._ended:", "if False:"),
        caught_by=f"{_CLIENTS}/test_blocking.py -k tells_nobody_twice",
    ),
    Mutant(
        id="E09",
        rule="operations that wait for bookies end with the client -> they wait on",
        module=_ENTRIES,
        name="ClientScope.end",
        replacement=Edit("scope.cancel()", "pass"),
        caught_by=f"{_CLIENTS}/test_client.py -k under_way_when_the_client_ends",
    ),
    Mutant(
        id="E09b",
        rule="entries missing in a read-ahead are read again -> left out",
        module=_ENTRIES,
        name="EntryStream._next_batch",
        replacement=Edit("if part.first > part.last:", "if True:"),
        caught_by=f"{_CLIENTS}/test_reader.py -k larger_than_most",
    ),
    Mutant(
        id="E09c",
        rule="the read-ahead of all streams of a client is bounded -> that of each",
        module=_ENTRIES,
        name="EntryStream._may_ask",
        replacement=Edit("self._scope.reads < self._limits.reads_max", "True"),
        caught_by=f"{_CLIENTS}/test_reader.py -k all_streams",
    ),
    Mutant(
        id="E09d",
        rule="a response queued behind others on its link is not slow -> it counts as slow",
        module=_ENTRIES,
        name="EntryStream._adapt",
        replacement=Edit("trio.current_time() - part.asked_s > quick_s", "False"),
        caught_by=f"{_CLIENTS}/test_entries.py -k seems_slow",
    ),
    Mutant(
        id="E10",
        rule="a caller that waits for room forces earlier appends -> waits forever",
        module="daybook.clients.ledgers.deferred",
        name="DeferredWriter._make_room",
        replacement=Edit("self._deferred.request_force()", "pass"),
        caught_by=f"{_CLIENTS}/test_deferred.py -k not_stuck",
    ),
    Mutant(
        id="E11",
        rule="a call during another thread's close gets an error -> waits forever",
        module=_PORTAL,
        name="Portal.call",
        replacement=Edit(
            "        if self._nursery.cancel_scope.cancel_called:", "        if False:"
        ),
        caught_by=f"{_CALLS} -k while_the_loop_ends",
    ),
    Mutant(
        id="E12",
        rule="a call after the end of the loop reports a closed client -> trio's error",
        module=_PORTAL,
        name="Portal.call",
        replacement=Edit("except trio.RunFinishedError:", "except KeyError:"),
        caught_by=f"{_CALLS} -k behind_the_end",
    ),
    Mutant(
        id="E12b",
        rule="an interrupt during a hand-over leaves later calls alone -> stops all of them",
        module=_PORTAL,
        name="Portal.soon",
        replacement=Edit("self._scheduled = False", "pass"),
        caught_by=f"{_CALLS} -k interrupt_while",
    ),
    Mutant(
        id="E13",
        rule="a callback appends without waiting for room -> waits for its own thread",
        module=_BLOCKING,
        name="Writer._wait_for_room",
        replacement=Edit("or self._portal.is_here", ""),
        caught_by=f"{_MISUSE} -k does_not_wait_for_room",
    ),
    Mutant(
        id="E14",
        rule="a forked process gets an error that it has no client -> waits forever",
        module=_PORTAL,
        name="Portal.check_process",
        replacement=Edit("self.was_forked", "False"),
        caught_by=f"{_MISUSE} -k forked",
    ),
    Mutant(
        id="E15",
        rule="a caller that would steal another task's entries gets an error -> takes them",
        module=_ENTRIES,
        name="Turn.taken",
        replacement=Edit("if self._taken:", "if False:"),
        caught_by=f"{_CLIENTS}/test_reader.py -k second_task",
    ),
    Mutant(
        id="E16",
        rule="an abandoned wait leaves nothing behind -> until it is over",
        module="daybook.bookie.ledger.writer",
        name="ConfirmationWaiters.wait",
        replacement=Edit("events.remove(event)", "pass"),
        caught_by="tests:tests/bookie/ledger/test_waiters.py",
    ),
    Mutant(
        id="E17",
        rule="an abandoned iterator can go on -> has come to its end",
        module="daybook.clients.ledgers.blocking",
        name="_Entries._fetch",
        replacement=Edit(
            "            batch = await", "            self._ended = True\n            batch = await"
        ),
        caught_by=f"{_MISUSE} -k false_end",
    ),
    Mutant(
        id="E18",
        rule="an exit from the block of a client is raised as it is -> in a group",
        module="daybook.clients.ledgers.client",
        name="open_client",
        replacement=Edit("except BaseException as error:", "except Exception as error:"),
        caught_by=f"{_CLIENTS}/test_client.py -k comes_out_as_it_is",
    ),
    Mutant(
        id="E19",
        rule="a deletion without an answer at the client's end is in doubt -> failed",
        module="daybook.clients.ledgers.client",
        name="Client.delete",
        replacement=Edit("while_open(MetadataInDoubtError)", "while_open()"),
        caught_by=f"{_CLIENTS}/test_client.py -k under_way_when_the_client_ends",
    ),
    Mutant(
        id="E20",
        rule="a reader uses its newest record -> that of a server that lags",
        module="daybook.bookie.ledger.reader",
        name="LedgerReader.learn",
        replacement=Edit("stored.version >= self._stored.version", "True"),
        caught_by=f"{_CLIENTS}/test_reader.py -k server_of_the_store_lags",
    ),
]

MUTANTS = [*LOGS, *CLIENTS]
