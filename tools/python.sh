#!/bin/sh
# Prints the Python for a new virtual environment: `sh tools/python.sh [PYTHON]`, where PYTHON is the one to take.
# Else it is the first one on PATH that is new enough, can make an environment and is optimised; if none is, the first one.
# First comes what `python3` names, then other builds of the same version, then others, the newest first.
check=${0%/*}/../wire/interpreter.py

fail() {
  echo "$1; name another one with make PYTHON=..." >&2
  exit 1
}

build_of() {
  "$1" -I "$check" 2>/dev/null </dev/null
}

if [ -n "$1" ]; then
  build_of "$1" >/dev/null || fail "$1 is not Python 3.11 or newer with venv and ensurepip (Debian: python3-venv)"
  echo "$1"
  exit 0
fi

# Prints all programs of that name on PATH, in its order; `command -v` would print the first one.
all_of() {
  old=$IFS
  IFS=:
  for directory in $PATH; do
    [ -f "$directory/$1" ] && [ -x "$directory/$1" ] && echo "$directory/$1"
  done
  IFS=$old
}

minor=$(python3 -c 'import sys; print(sys.version_info[1])' 2>/dev/null)
first=
first_build=
for name in python3 "python3.${minor:-14}" python3.14 python3.13 python3.12 python3.11; do
  found=$(all_of "$name")
  while read -r candidate; do
    [ -n "$candidate" ] && build=$(build_of "$candidate") || continue
    if [ "$build" = optimised ]; then
      [ -z "$first" ] || echo "taking $candidate, which is optimised; $first is not known to be (PYTHON=$first takes it)" >&2
      echo "$candidate"
      exit 0
    fi
    [ -n "$first" ] || first=$candidate first_build=$build
  done <<END
$found
END
done
[ -n "$first" ] || fail "Daybook needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv)"
[ "$first_build" = unknown ] || echo "$first is not optimised, and no other Python here is: see docs/performance.md" >&2
echo "$first"
