"""Print the files of the repository, each with the first sentence that it says of itself.

    python tools/tree.py [FOLDER]     all files, or those below a folder

A Python file says it in its docstring, a document in its title, others in their first comment; of
data there is one line for a folder.  A file that says nothing is an error.
"""

import ast
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
BAR = "\\|"  # in a table
# Files that cannot describe themselves.
KNOWN = {
    ".ci/run": "What the continuous integration runs.",
    ".gitignore": "What is not kept here.",
    "LICENSE": "Apache-2.0.",
    "pyproject.toml": "What is installed, and how code is checked.",
    "docs/tally.jsonl": "How many simulated runs there were, by commit.",
    "tests/mutants/catches.jsonl": "The last catch of each mutant.",
    "tests/mutants/survivors.jsonl": "Mutants of a tool that change nothing, with the reasons.",
    "tests/storms/kills.jsonl": "The mutants of the dispatchers, by the model that finds them.",
    "tests/storms/tally.jsonl": "How many schedules ran, by commit.",
    "tests/interop/java/pom.xml": "What is taken from Maven Central: Apache BookKeeper.",
    "tests/interop/java/kafka.xml": "What is taken from Maven Central: Apache Kafka's broker.",
    "tests/interop/java/spark-kafka.xml": "What is taken from Maven Central: Spark's Kafka source.",
    "tests/interop/java/pulsar.xml": "What is taken from Maven Central: Pulsar's managed ledgers.",
    "tests/interop/java/pulsar-client.xml": "What is taken from Maven Central: Pulsar's client.",
    "tests/interop/java/pulsar-broker.xml": "What is taken from Maven Central: Pulsar's broker.",
    "tests/interop/java/pulsar-client-tools.xml": "What is taken from Maven Central: pulsar-admin.",
    "tests/interop/go/go.mod": "What is taken of Go modules: Pulsar's client.",
    "tests/interop/go/go.sum": "The checksums of Go modules.",
    "daybook/py.typed": "Says that the package has types.",
}
DATA = {
    "tests/golden/": "Bytes as they were once written; they never change.",
    "docs/pictures/": "Pictures that commands have drawn.",
    "tests/fuzz/crashes/": "Inputs that once broke something.",
}
COMMENT = re.compile(r"\s*(?://|#(?!!))\s*(.*)")


def files() -> list[str]:
    """Return the files that git tracks, and those that the next commit would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in set(listed.stdout.splitlines()) if (ROOT / name).is_file())


def sentence(text: str) -> str:
    """Return the first sentence of the first paragraph, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.])\s|(?<=:)$", paragraph)[0]


def says(name: str) -> str:
    """Return the first sentence of the file about itself; "" if there is none."""
    if name in KNOWN:
        return KNOWN[name]
    path = ROOT / name
    if re.search(r"_pb2\.pyi?$", name):
        return f"Generated from `{re.sub('_pb2.*', '.proto', path.name)}`."
    for data, told in DATA.items():
        if name.startswith(data):
            return told
    text = path.read_text(errors="replace")
    match path.suffix:
        case ".py":
            return sentence(ast.get_docstring(ast.parse(text)) or "")
        case ".md":
            return text.partition("\n")[0].lstrip("# ")
        case _:
            return first_comment(text)


def first_comment(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        found = COMMENT.fullmatch(line)
        if found and found[1]:
            lines.append(found[1])
        elif lines or (line.strip() and not line.startswith("#!")):
            break
    return sentence(" ".join(lines))


def folder(name: str) -> str:
    return name.rpartition("/")[0]


def document(below: str) -> str:
    parts: list[str] = []
    chosen = [name for name in files() if name.startswith(below)]
    for where, names in groupby(sorted(chosen, key=lambda name: (folder(name), name)), folder):
        parts.append(f"\n## {where or 'top'}\n\n| file | |\n|---|---|\n")
        shown = {
            "*" if name.startswith(tuple(DATA)) else name.rpartition("/")[2]: says(name)
            for name in names
        }
        for file, told in shown.items():
            parts.append(f"| `{file}` | {told.replace('|', BAR)} |\n")
    return "".join(parts)


def silent() -> list[str]:
    """Return the files without a description of themselves; a package of tests needs none."""
    return [
        name
        for name in files()
        if not says(name) and not re.fullmatch(r"tests/.*__init__\.py", name)
    ]


def main(arguments: list[str]) -> None:
    if mute := silent():
        sys.exit(f"without a docstring or a comment that says what it is: {', '.join(mute)}")
    if len(arguments) > 1:
        sys.exit("usage: python tools/tree.py [FOLDER]")
    print(document(*arguments or [""]))


if __name__ == "__main__":
    main(sys.argv[1:])
