#!/bin/sh
# Is there a Java 17 or newer?  Else install a headless one where that is allowed, or say what to do.
newest() {
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java)"; do
    [ -x "$java" ] || continue
    "$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1
    return
  done
}
version=$(newest)
[ "${version:-0}" -ge 17 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing a headless Java (ZooKeeper and Spark run on it)"
  log=$(mktemp)
  if { apt-get update && { apt-get install -y openjdk-17-jre-headless || apt-get install -y default-jre-headless; }; } >"$log" 2>&1; then
    rm -f "$log"
    version=$(newest)
    [ "${version:-0}" -ge 17 ] && exit 0
  fi
  tail -n 3 "$log" >&2
fi
echo "Daybook needs Java 17 or newer for ZooKeeper and Spark: install a headless JRE (e.g. openjdk-17-jre-headless), or set JAVA_HOME" >&2
exit 1
