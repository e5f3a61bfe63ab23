# SPDX-License-Identifier: Apache-2.0
"""Reading C well enough for the checks: tokens with their lines, functions, parameters, nesting.

Not a compiler: macros are not expanded, and preprocessor lines are left out. That is enough for
code that clang-format has laid out and a compiler has accepted.
"""
import re
from pathlib import Path

C_FOLDERS = ("src", "include", "tests", "examples", "bench")

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|\\\n)
      | (?P<newline>\n)
      | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>[uUL]?'(?:\\.|[^'\\\n])*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
      | (?P<dots>\.\.\.)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
PREPROCESSOR = re.compile(r"[ \t]*#(?:/\*.*?\*/|\\\n|[^\n])*", re.DOTALL)


class Token:
    __slots__ = ("kind", "text", "line")

    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line


class Function:
    """A definition (with lines and nesting) or a declaration (lines and nesting 0)."""

    def __init__(self, name, line, parameters, lines=0, nesting=0):
        self.name, self.line, self.parameters = name, line, parameters
        self.lines, self.nesting = lines, nesting


def c_files(root, folders=C_FOLDERS):
    for folder in folders:
        for path in sorted((Path(root) / folder).rglob("*.[ch]")):
            yield path


def tokens_of(text):
    """The code of a file, without comments and preprocessor lines."""
    tokens, at, line, fresh = [], 0, 1, True
    while at < len(text):
        directive = PREPROCESSOR.match(text, at) if fresh else None
        match = directive or TOKEN.match(text, at)
        if not directive:
            kind = match.lastgroup
            fresh = kind == "newline" or (fresh and kind in ("space", "comment"))
            if kind not in ("space", "newline", "comment"):
                tokens.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
        at = match.end()
    return tokens


CLOSING = {"(": ")", "[": "]", "{": "}"}


def matching(tokens, at):
    """Index of the bracket that closes the one at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index].text in CLOSING:
            depth += 1
        elif tokens[index].text in CLOSING.values():
            depth -= 1
            if depth == 0:
                return index
    return len(tokens) - 1


def count_parameters(tokens, opening):
    closing = matching(tokens, opening)
    inside = tokens[opening + 1 : closing]
    if not inside or [token.text for token in inside] == ["void"]:
        return 0
    count, depth = 1, 0
    for token in inside:
        if token.text in CLOSING:
            depth += 1
        elif token.text in CLOSING.values():
            depth -= 1
        elif token.text == "," and depth == 0:
            count += 1
    return count - (inside[-1].text == "...")


ATTRIBUTES = {"__attribute__", "_Alignas", "_Static_assert", "__declspec", "typeof", "sizeof"}


def declarator(tokens, start, end):
    """The name and the opening parenthesis of the parameters of a function declared in the range,
    or None. Attributes and macros that come before or after are skipped."""
    at = start
    while at < end:
        token = tokens[at]
        if token.text == "=":
            return None
        if token.text in ("[", "{"):
            at = matching(tokens, at)
        elif token.text == "(":
            before = tokens[at - 1] if at > start else None
            inner = tokens[at + 1].text if at + 1 < end else ""
            close = matching(tokens, at)
            if inner == "*" and close + 1 < end and tokens[close + 1].text == "(":
                names = [t for t in tokens[at:close] if t.kind == "word" and t.text != "const"]
                return (names[0] if names else token), close + 1
            if before and before.kind == "word" and before.text not in ATTRIBUTES and inner != "*":
                return before, at
            at = close
        at += 1
    return None


class Nesting:
    """How deep control structures stand in each other. An `else if` is no deeper than its `if`;
    a macro with a block behind it counts as the loop that it is."""

    def __init__(self, tokens, start, end):
        self.tokens, self.at, self.end, self.deepest = tokens, start, end, 0

    def text(self, ahead=0):
        at = self.at + ahead
        return self.tokens[at].text if at < self.end else ""

    def measure(self):
        while self.at < self.end:
            self.statement(0)
        return self.deepest

    def skip_brackets(self):
        self.at = matching(self.tokens, self.at) + 1

    def body(self, depth):
        self.deepest = max(self.deepest, depth)
        if self.text() == "{":
            self.block(depth)
        else:
            self.statement(depth)

    def block(self, depth):
        closing = matching(self.tokens, self.at)
        self.at += 1
        while self.at < closing:
            self.statement(depth)
        self.at = closing + 1

    def statement(self, depth):
        word = self.text()
        if word == "{":
            self.body(depth + 1)
        elif word in ("if", "for", "while", "switch"):
            self.at += 1
            self.skip_brackets()
            self.body(depth + 1)
            if word == "if" and self.text() == "else":
                self.otherwise(depth)
        elif word == "do":
            self.at += 1
            self.body(depth + 1)
            self.plain(depth)
        elif word in ("case", "default") or (self.text(1) == ":" and self.text(2) != ":"):
            self.label()
        else:
            self.plain(depth)

    def otherwise(self, depth):
        self.at += 1
        if self.text() == "if":
            self.statement(depth)
        else:
            self.body(depth + 1)

    def label(self):
        while self.at < self.end and self.text() != ":":
            self.at += 1
        self.at += 1

    def plain(self, depth):
        first = self.at
        while self.at < self.end:
            text = self.text()
            if text == "(" and self.at == first + 1 and self.tokens[first].kind == "word":
                self.skip_brackets()
                following = self.tokens[self.at] if self.at < self.end else None
                if following and self.tokens[first].text not in ("while", "return") and (
                    following.text == "{" or following.kind == "word"
                ):
                    self.body(depth + 1)
                    return
            elif text in CLOSING:
                self.skip_brackets()
            elif text == ";":
                self.at += 1
                return
            else:
                self.at += 1


def functions_of(text):
    """Every function that the text defines or declares, members of tables of functions included."""
    tokens = tokens_of(text)
    found, start, at = [], 0, 0
    while at < len(tokens):
        text = tokens[at].text
        if text == "{":
            at, start = open_brace(tokens, start, at, found)
            continue
        if text in ("(", "["):
            at = matching(tokens, at)
        elif text in (";", "}"):
            add_declaration(tokens, start, at, found)
            start = at + 1
        at += 1
    return found


def open_brace(tokens, start, at, found):
    """A brace outside functions: a body, a struct (searched), or values (skipped).
    Returns where to continue, and where the next declaration starts."""
    before = [token.text for token in tokens[start:at]]
    if before[:1] == ["extern"] and tokens[at - 1].kind == "string":
        return at + 1, at + 1
    closing = matching(tokens, at)
    if before and before[-1] == ")" and "=" not in before:
        known = declarator(tokens, start, at)
        if known:
            name, opening = known
            lines = tokens[closing].line - tokens[start].line + 1
            nesting = Nesting(tokens, at + 1, closing).measure()
            found.append(
                Function(name.text, name.line, count_parameters(tokens, opening), lines, nesting)
            )
        return closing + 1, closing + 1
    if "=" in before or "enum" in before:
        return closing + 1, start
    return at + 1, at + 1


def add_declaration(tokens, start, end, found):
    known = declarator(tokens, start, end)
    if known:
        name, opening = known
        found.append(Function(name.text, name.line, count_parameters(tokens, opening)))
