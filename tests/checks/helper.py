# SPDX-License-Identifier: Apache-2.0
"""Small trees to try the checks on."""
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))


def tree_with(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def run_check(name, root, *arguments):
    """(exit code, all its output)"""
    words = [sys.executable, "-B", SCRIPTS / f"check-{name}", "--root", root, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr
