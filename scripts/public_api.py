# SPDX-License-Identifier: Apache-2.0
"""The functions that the public headers declare: every one marked SEMEL_API."""
import re
from pathlib import Path

from c_source import tokens_of


def public_functions(root):
    """{name: header} of everything declared with SEMEL_API."""
    found = {}
    for path in sorted((Path(root) / "include" / "semel").glob("*.h")):
        tokens = tokens_of(path.read_text(encoding="utf-8"))
        for at, token in enumerate(tokens):
            if token.text == "SEMEL_API":
                found[name_after(tokens, at)] = path.name
    return found


def name_after(tokens, at):
    """The word before the first parenthesis."""
    while tokens[at + 1].text != "(":
        at += 1
    return tokens[at].text


def mentioned(text):
    """Names that a document writes like calls or plain names of the API."""
    return set(re.findall(r"\bsemel_[a-z0-9_]+", text))
