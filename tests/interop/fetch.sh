#!/bin/sh
# Fetches Apache BookKeeper (the release that is named) with all that it needs, from Maven Central,
# into a cache outside of the repository; and a JDK and Maven where they are missing and may be.
set -eu
version=$1
jars=${XDG_CACHE_HOME:-$HOME/.cache}/daybook/interop/bookkeeper-$version
if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing a headless JDK and Maven"
    apt-get update -qq && apt-get install -y -qq openjdk-17-jdk-headless maven >/dev/null
  else
    echo "make interop needs a JDK (17 or newer) and Maven: install them" >&2
    exit 1
  fi
fi
pom=$(dirname "$0")/java/pom.xml
wanted=$(cksum <"$pom")
[ "$(cat "$jars/.complete" 2>/dev/null)" = "$wanted" ] && exit 0
echo "fetching Apache BookKeeper $version (100 MB with what it needs)"
rm -rf "$jars" && mkdir -p "$jars"
mvn -B -q -f "$pom" dependency:copy-dependencies \
  "-Dbookkeeper.version=$version" "-DoutputDirectory=$jars" -DincludeScope=runtime
echo "$wanted" >"$jars/.complete"
