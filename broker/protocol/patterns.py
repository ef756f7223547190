r"""Regular expressions over names of topics, in time that is linear in the length of the name.

    pattern = TopicPattern("persistent://public/default/sensor-.*")
    pattern.matches("persistent://public/default/sensor-7-partition-2")     # True

A client sends the expression, so nothing about it can be trusted: with Python's `re`, thirty
characters can keep the broker busy forever.  This module compiles an expression to an automaton
without backtracking.  Its states are made as names need them, and kept up to a bound, so a name
costs one look-up for each of its characters.

The syntax is the part that Java's expressions and RE2 have in common: literals, `.`, classes with
ranges and `\d \w \s`, groups, `|`, `* + ? {n,m}` (lazy ones, too), `^ $ \A \z`, `\Q...\E`.
Everything else raises `PatternError`: look-arounds, back-references, flags, possessive repetition,
boundaries, Unicode and POSIX classes.  The broker then leaves the filtering to the client.

As in Pulsar, the domain of the expression is cut off (`persistent://`), the name is compared
without its domain and without `-partition-N`, and the expression has to match the whole name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from daybook.wire.topics import TopicName

CHARS_MAX = 256
_STATES_MAX = 2_000  # in one automaton, after `{n,m}` is written out
_DEPTH_MAX = 50  # nested groups
_TRANSITIONS_MAX = 20_000  # kept; then they are made anew
_REPEAT_MAX = 1_000

_Ranges: TypeAlias = tuple[tuple[str, str], ...]
_DIGITS: _Ranges = (("0", "9"),)
_WORD: _Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: _Ranges = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_SETS = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a"}


class PatternError(ValueError):
    """The broker does not evaluate this expression; the message says why."""


class TopicPattern:
    """A compiled expression.  Raise PatternError for one that is not evaluated here."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS_MAX:
            raise PatternError(f"it has {len(text)} characters, and may have {CHARS_MAX}")
        self.text = text
        self._nodes: list[_Node] = []
        start = self._compile(_Parser(_without_domain(text)).parse(), self._add(_Accept()))
        self._begin = self._closure([start], at_begin=True)
        self._transitions: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._kept = 0

    def matches(self, name: str) -> bool:
        """Return True if the expression matches the whole name of a topic."""
        states = self._begin
        for char in TopicName.parse(name).base.full.partition("://")[2]:
            known = self._transitions.get(states)
            following = None if known is None else known.get(char)
            states = self._step(states, char) if following is None else following
            if not states:
                return False
        return self._accepts(states)

    # -- the automaton

    def _step(self, states: frozenset[int], char: str) -> frozenset[int]:
        """Return the states behind a character, and keep the transition."""
        nodes = self._nodes
        targets: list[int] = []
        for state in states:
            node = nodes[state]
            if isinstance(node, _Char) and node.has(char):
                targets.append(node.next)
        found = self._closure(targets)
        if self._kept >= _TRANSITIONS_MAX:
            self._transitions.clear()
            self._kept = 0
        self._transitions.setdefault(states, {})[char] = found
        self._kept += 1
        return found

    def _closure(
        self, starts: Iterable[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Return the states that are reached without a character."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            state = waiting.pop()
            if state in found:
                continue
            found.add(state)
            match self._nodes[state]:
                case _Split(targets):
                    waiting += targets
                case _Border(target, is_end) if at_end if is_end else at_begin:
                    waiting.append(target)
                case _:
                    pass
        return frozenset(found)

    def _accepts(self, states: frozenset[int]) -> bool:
        # An expression that is compared with an empty name could need both borders; names of
        # topics are never empty, so the beginning does not matter here.
        ends = self._closure(states, at_end=True)
        return any(isinstance(self._nodes[state], _Accept) for state in ends)

    # -- from the tree to the automaton

    def _add(self, node: "_Node") -> int:
        if len(self._nodes) >= _STATES_MAX:
            raise PatternError("its repetitions are too large")
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _compile(self, tree: "_Tree", following: int) -> int:
        """Add the states of a part, which goes on at `following`; return the first of them."""
        match tree:
            case _Set(ranges, negated):
                return self._add(_Char(ranges, negated, following))
            case _Edge(is_end):
                return self._add(_Border(following, is_end))
            case _Sequence(parts):
                for part in reversed(parts):
                    following = self._compile(part, following)
                return following
            case _Choice(parts):
                return self._add(_Split([self._compile(part, following) for part in parts]))
            case _Repeat(part, least, most):
                return self._compile_repeat(part, least, most, following)

    def _compile_repeat(self, part: "_Tree", least: int, most: int | None, following: int) -> int:
        if most is None:
            loop = _Split([following])
            first = self._add(loop)
            loop.targets.append(self._compile(part, first))
        else:
            first = following
            for _ in range(most - least):
                first = self._add(_Split([following, self._compile(part, first)]))
        for _ in range(least):
            first = self._compile(part, first)
        return first


# -- the states of the automaton


@dataclass(slots=True)
class _Char:
    ranges: _Ranges
    negated: bool
    next: int

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


@dataclass(slots=True)
class _Split:
    targets: list[int]


@dataclass(slots=True)
class _Border:
    next: int
    is_end: bool


@dataclass(slots=True)
class _Accept:
    pass


_Node: TypeAlias = _Char | _Split | _Border | _Accept


# -- the tree of an expression


@dataclass(frozen=True, slots=True)
class _Set:
    ranges: _Ranges
    negated: bool = False


@dataclass(frozen=True, slots=True)
class _Edge:
    is_end: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: "list[_Tree]"


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: "list[_Tree]"


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: "_Tree"
    least: int
    most: int | None


_Tree: TypeAlias = _Set | _Edge | _Sequence | _Choice | _Repeat


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Tree:
        tree = self._choice()
        if self._at < len(self._text):
            raise PatternError(f"a parenthesis is closed at {self._at} that was not opened")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise PatternError("it ends in the middle of a group, a class or an escape")
        self._at += 1
        return char

    def _took(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _choice(self) -> _Tree:
        parts = [self._sequence()]
        while self._took("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while self._peek() not in ("", "|", ")"):
            if self._took(r"\Q"):
                quoted, _, rest = self._text[self._at :].partition(r"\E")
                self._at = len(self._text) - len(rest)
                parts += [_literal(char) for char in quoted]
                if parts and quoted:  # A repetition behind it is for the last character.
                    parts.append(self._repeated(parts.pop()))
            else:
                parts.append(self._repeated(self._atom()))
        return _Sequence(parts)

    def _atom(self) -> _Tree:
        match char := self._take():
            case ".":
                return _Set((("\n", "\n"),), negated=True)
            case "^":
                return _Edge(is_end=False)
            case "$":
                return _Edge(is_end=True)
            case "[":
                return self._class()
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"nothing stands before the {char} that it could repeat")
            case "{":
                raise PatternError("Java and RE2 disagree about a brace that repeats nothing")
            case _:
                return _literal(char)

    def _group(self) -> _Tree:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternError("its groups are nested too deeply")
        if self._took("?"):
            if self._took("P<") or self._took("<"):
                name, closed, rest = self._text[self._at :].partition(">")
                if not closed or not name.isidentifier():  # `(?<=` and `(?<!` end here, too
                    raise PatternError("look-arounds are not evaluated")
                self._at = len(self._text) - len(rest)
            elif not self._took(":"):
                raise PatternError("look-arounds and flags are not evaluated")
        tree = self._choice()
        if self._take() != ")":
            raise PatternError("a group is not closed")
        self._depth -= 1
        return tree

    def _repeated(self, part: _Tree) -> _Tree:
        """Return the part with the repetition that stands behind it, if one does."""
        bounds: tuple[int, int | None]
        match self._peek():
            case "*":
                bounds = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                bounds = self._bounds()
            case _:
                return part
        self._at += 1
        self._took("?")  # A lazy repetition matches the same names.
        if self._peek() and self._peek() in "*+?{":
            raise PatternError("Java and RE2 disagree about a repetition of a repetition")
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None]:
        """Return the bounds that braces hold, and stop at the closing one."""
        content, closed, _ = self._text[self._at + 1 :].partition("}")
        low, comma, high = content.partition(",")
        numbers = [low, high] if high else [low]
        if not closed or not all(each.isascii() and each.isdigit() for each in numbers):
            raise PatternError("a brace does not hold the bounds of a repetition")
        least = int(low)
        most = None if comma and not high else int(high or low)
        if least > _REPEAT_MAX or (most is not None and not least <= most <= _REPEAT_MAX):
            raise PatternError(f"a repetition is not between 0 and {_REPEAT_MAX}")
        self._at += 1 + len(content)
        return least, most

    def _escape(self) -> _Tree:
        char = self._take()
        if char.lower() in _SETS:
            return _Set(_SETS[char.lower()], negated=char.isupper())
        if char == "A":
            return _Edge(is_end=False)
        if char == "z":
            return _Edge(is_end=True)
        return _literal(self._escaped(char))

    def _escaped(self, char: str) -> str:
        """Return the character for which an escape stands."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and not char.isalnum():
            return char
        raise PatternError(f"the escape \\{char} is not evaluated")

    def _class(self) -> _Tree:
        negated = self._took("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._take()
            if low == "[" or (low == "&" and self._peek() == "&"):
                raise PatternError("classes within classes are not evaluated")
            if low == "\\":
                escape = self._take()
                if escape in _SETS:
                    ranges += _SETS[escape]
                    continue
                low = self._escaped(escape)
            elif low == "]":
                raise PatternError("Java and RE2 disagree about an empty class")
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._take()
                if high == "\\":
                    high = self._escaped(self._take())
                elif high == "[":
                    raise PatternError("classes within classes are not evaluated")
                if high < low:
                    raise PatternError("a range of a class is the wrong way round")
            ranges.append((low, high))
        self._at += 1
        return _Set(tuple(ranges), negated)


def _literal(char: str) -> _Set:
    return _Set(((char, char),))


def _without_domain(text: str) -> str:
    """Return the expression behind `persistent://`, which may be quoted by `\\Q`."""
    domain, found, rest = text.partition("://")
    if not found:
        return text
    quoted = domain.rpartition(r"\Q")[1] and r"\E" not in domain.rpartition(r"\Q")[2]
    return (r"\Q" if quoted else "") + rest
