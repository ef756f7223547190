"""Rules of dispatch and subscribe rates, broken one at a time (`broker.protocol.dispatch_rate`)."""

from tests.mutants.patch import Edit, Mutant

_RATE = "daybook.broker.protocol.dispatch_rate"
_SUBSCRIBE = "daybook.broker.protocol.subscribe_rate"
_DISPATCHER = "daybook.broker.dispatch.dispatcher"
_SUBSCRIPTION = "daybook.broker.dispatch.subscription"
_EXPLAIN = "daybook.broker.dispatch.explain"
_LIMITS = "daybook.broker.topics.rate_limits"
_TOPIC = "daybook.broker.topics.topic"
_BY_RATE = "tests:tests/broker/protocol/test_dispatch_rate.py"
_BY_SUBSCRIBE = "tests:tests/broker/protocol/test_subscribe_rate.py"
_BY_BROKER = "tests:tests/broker/test_dispatch_rates.py"

MUTANTS = [
    Mutant(
        id="DR01",
        rule="a balance saves one period's worth -> any amount",
        module=_RATE,
        name="_Balance._grown",
        replacement=Edit(
            "min(self._per_s * self._period_s, self._left + passed_s * self._per_s)",
            "self._left + passed_s * self._per_s",
        ),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR02",
        rule="what was taken too much is waited for -> it is forgiven",
        module=_RATE,
        name="_Balance.take",
        replacement=Edit("self._left -= amount", "self._left = max(0.0, self._left - amount)"),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR03",
        rule="a closed balance opens when it has grown by a step -> with anything",
        module=_RATE,
        name="_Balance.wait_s",
        replacement=Edit("self._opens_at - self._grown(now_s)", "-self._grown(now_s)"),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR04",
        rule="a room takes the first entry -> only one that fits",
        module=_RATE,
        name="Room.fitting",
        replacement=Edit(
            "if count and (messages >= self.messages or size >= self.bytes):",
            "if messages + of_entry > self.messages or size + bytes_of_entry > self.bytes:",
        ),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR05",
        rule="bytes count beside messages -> only messages",
        module=_RATE,
        name="Room.fitting",
        replacement=Edit(" or size >= self.bytes", ""),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR06",
        rule="both limits are charged -> the first one",
        module=_RATE,
        name="DispatchRates.take",
        replacement=Edit("for limit in self._limits:", "for limit in self._limits[:1]:"),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR07",
        rule="only a relative limit follows the producers -> each does",
        module=_RATE,
        name="DispatchRateLimit.publish_rate",
        replacement=Edit("if self._relative:", "if True:"),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="DR08",
        rule="the dispatcher asks the limits before it reads -> it reads at once",
        module=_DISPATCHER,
        name="Dispatcher._limited",
        replacement=Edit("if room.is_closed:", "if False:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR09",
        rule="deliveries are charged -> they are free",
        module=_DISPATCHER,
        name="Dispatcher._perform",
        replacement=Edit("if self.rates is not None:", "if False:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR10",
        rule="a dispatcher that waits for a rate wakes by itself -> it sleeps on",
        module=_DISPATCHER,
        name="Dispatcher._sleep",
        replacement=Edit("seconds = min(seconds, wait_s)", "pass"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR11",
        rule="entries that do not fit are read again -> they are passed",
        module=_DISPATCHER,
        name="Dispatcher._fitting",
        replacement=Edit("[each for each in raw if each.position <= last]", "raw"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR12",
        rule="entries given back that do not fit stay in the queue -> they are taken for gone",
        module=_DISPATCHER,
        name="Dispatcher._fitting",
        replacement=Edit("replace(want, places=places)", "want"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR13",
        rule="what does not fit is left out -> all that was read is delivered",
        module=_DISPATCHER,
        name="Dispatcher._fitting",
        replacement=Edit("if count == len(visible):", "if True:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR14",
        rule="the end of the log is noticed while a limit is closed -> when it opens",
        module=_DISPATCHER,
        name="Dispatcher._limited",
        replacement=Edit("at > self._log.last_confirmed", "False"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR15",
        rule="the limit of the topic counts for each subscription -> only its own",
        module=_SUBSCRIPTION,
        name="Subscription._apply_rates",
        replacement=Edit(
            "(self.topic.rate_limits.dispatch.limit, self.dispatch_rate.limit)",
            "(None, self.dispatch_rate.limit)",
        ),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR16",
        rule="a changed limit counts at once -> when the subscription is made",
        module=_SUBSCRIPTION,
        name="Subscription.apply_policies",
        replacement=Edit("self._apply_rates(policies)", "pass"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR17",
        rule="another policy that changes leaves the balance alone -> it is full again",
        module=_LIMITS,
        name="DispatchRatePolicy.apply",
        replacement=Edit("if rate == self._rate:", "if False:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR18",
        rule="a subscription that waits for a rate does not stall -> it does",
        module=_EXPLAIN,
        name="sample",
        replacement=Edit("not limited and ", ""),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR19",
        rule="the rate of the producers is noted each minute -> never",
        module=_LIMITS,
        name="DispatchRatePolicy.follow",
        replacement=Edit("if self.limit is not None:", "if False:"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR20",
        rule="a dispatcher that waits for a rate wakes at a change -> when its time has come",
        module=_SUBSCRIPTION,
        name="Subscription.apply_policies",
        replacement=Edit("self.dispatcher.wake()", "pass"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="DR21",
        rule="the room of a limit and the sleep are of one moment -> of two",
        module=_DISPATCHER,
        name="Dispatcher._sleep",
        replacement=Edit("wait_s(looked_s)", "wait_s(trio.current_time())"),
        caught_by=f"{_BY_BROKER} -k looked_at",
    ),
    Mutant(
        id="DR22",
        rule="a dispatcher wakes when a relative rate rises -> when its time has come",
        module=_TOPIC,
        name="Topic.tick_rates",
        replacement=Edit("subscription.dispatcher.wake()", "pass"),
        caught_by=f"{_BY_BROKER} -k that_rises",
    ),
    Mutant(
        id="SR01",
        rule="a consumer that subscribes too often is refused -> it is not",
        module="daybook.broker.topics.topic_subscriptions",
        name="TopicSubscriptions._prepare",
        replacement=Edit(
            "self._topic().rate_limits.check_subscribe("
            "connection, request.name, request.consumer_id)",
            "pass",
        ),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SR02",
        rule="a consumer keeps its balance when it connects again -> its port counts",
        module=_LIMITS,
        name="TopicRateLimits.check_subscribe",
        replacement=Edit('connection.peer.rpartition(":")[0]', "connection.peer"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SR03",
        rule="each consumer has a balance -> all of a host share one",
        module=_LIMITS,
        name="TopicRateLimits.check_subscribe",
        replacement=Edit("(host, name, consumer_id)", "host"),
        caught_by=_BY_BROKER,
    ),
    Mutant(
        id="SR04",
        rule="so many consumers are remembered at most -> any number",
        module=_SUBSCRIBE,
        name="SubscribeRateLimit.take",
        replacement=Edit("if len(self._left) > self._consumers_max:", "if False:"),
        caught_by=_BY_SUBSCRIBE,
    ),
    Mutant(
        id="SR05",
        rule="a consumer that was idle is forgotten after a period -> at once",
        module=_SUBSCRIBE,
        name="SubscribeRateLimit._forget",
        replacement=Edit("if now_s - at_s < self.period_s:", "if False:"),
        caught_by=_BY_SUBSCRIBE,
    ),
]
