#!/bin/sh
# Fetches Apache BookKeeper (the release that is named) with all that it needs, from Maven Central,
# into a cache outside of the repository; and a JDK and Maven where they are missing and may be.
# With a second word, "pulsar", Apache Pulsar's managed ledgers instead; "pulsar-client", its client;
# "pulsar-broker", its broker; "pulsar-client-tools", its command line; "kafka", Apache Kafka's broker;
# "spark-kafka", the source and the sink with which Apache Spark (the release that is named) uses Kafka.
# Maven compares checksums; what breaks off is tried again; what is not whole is not used.
set -eu
version=$1
product=${2:-bookkeeper}
tries=3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/daybook/interop
jars=$cache/$product-$version
case $product in
  bookkeeper) pom=pom.xml title="Apache BookKeeper" size="100 MB" proof=bookkeeper-server ;;
  pulsar) pom=pulsar.xml title="Apache Pulsar's managed ledgers" size="120 MB" proof=managed-ledger ;;
  pulsar-client) pom=pulsar-client.xml title="Apache Pulsar's client" size="50 MB" proof=pulsar-client ;;
  pulsar-broker) pom=pulsar-broker.xml title="Apache Pulsar's broker" size="350 MB" proof=pulsar-broker ;;
  pulsar-client-tools) pom=pulsar-client-tools.xml title="Apache Pulsar's command line" size="140 MB" proof=pulsar-client-tools ;;
  kafka) pom=kafka.xml title="Apache Kafka's broker" size="60 MB" proof=kafka_2.13 ;;
  spark-kafka) pom=spark-kafka.xml title="Spark's source and sink for Kafka" size="12 MB" proof=spark-sql-kafka ;;
  *) echo "there is no $product to fetch: bookkeeper, pulsar, pulsar-client, pulsar-broker, pulsar-client-tools, kafka or spark-kafka" >&2 && exit 1 ;;
esac

fail() {
  echo "$1" >&2
  exit 1
}

if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing a headless JDK and Maven (a minute or two)"
    apt-get update -qq && apt-get install -y -qq openjdk-17-jdk-headless maven >/dev/null ||
      fail "a JDK and Maven could not be installed: install them by hand, then try again"
  else
    fail "a JDK (17 or newer) and Maven are needed: install them (Debian: openjdk-17-jdk-headless, maven)"
  fi
fi

pom=$(dirname "$0")/java/$pom
wanted=$(cksum <"$pom")
[ "$(cat "$jars/.complete" 2>/dev/null)" = "$wanted" ] && exit 0

echo "fetching $title $version ($size with what it needs)"
part=$jars.part
log=$cache/fetch-$product-$version.txt
mkdir -p "$cache"

fetch() {
  rm -rf "$part"
  mvn -B -U --strict-checksums -f "$pom" dependency:copy-dependencies \
    "-D$product.version=$version" "-DoutputDirectory=$part" -DincludeScope=runtime >"$log" 2>&1 &
  maven=$!
  trap 'kill $maven 2>/dev/null; exit 1' INT TERM
  beats=0
  while kill -0 $maven 2>/dev/null; do
    sleep 1
    beats=$((beats + 1))
    if [ $((beats % 10)) = 0 ]; then
      echo "  $beats s: $(grep -c 'Downloaded from.*\.jar' "$log" || true) jars have come"
    fi
  done
  wait $maven
}

try=1
until fetch; do
  grep '^\[ERROR\]' "$log" | head -1 >&2 || true
  [ $try -lt $tries ] || fail "Maven Central gave not all of it, $tries times; see $log.
It has to be reachable by mvn (a mirror or a proxy: ~/.m2/settings.xml); then try again: what came is kept"
  try=$((try + 1))
  echo "that broke off; try $try of $tries in 5 s"
  sleep 5
done
[ -n "$(find "$part" -name "$proof-*.jar")" ] || fail "$title did not come of that; see $log"
rm -rf "$jars"
mv "$part" "$jars"
echo "$wanted" >"$jars/.complete"
echo "it is in $jars"
