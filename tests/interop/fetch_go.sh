#!/bin/sh
# Builds the program in tests/interop/go with Apache Pulsar's Go client, once for each state of its
# sources, into a cache outside of the repository.  Where there is no Go nothing is built, and the
# tests that want it are skipped, and say why.
set -eu
sources=$(dirname "$0")/go
cache=${XDG_CACHE_HOME:-$HOME/.cache}/daybook/interop/pulsar-go
wanted=$(cat "$sources"/*.go "$sources/go.mod" "$sources/go.sum" | cksum)
[ "$(cat "$cache/.complete" 2>/dev/null)" = "$wanted" ] && exit 0
if ! command -v go >/dev/null; then
  echo "there is no Go here: Apache Pulsar's Go client is not tried"
  exit 0
fi
echo "building Apache Pulsar's Go client (a minute or two the first time)"
rm -rf "$cache"
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
if ! (cd "$sources" && go build -o "$cache/client" .) >"$cache/build.txt" 2>&1; then
  tail -5 "$cache/build.txt" >&2
  echo "NOT TRIED: Apache Pulsar's Go client could not be built; see $cache/build.txt" >&2
  exit 0
fi
echo "$wanted" >"$cache/.complete"
