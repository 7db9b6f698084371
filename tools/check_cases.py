#!/usr/bin/env python3
"""Checks that every test that docs/cases.md names exists, and that every row names one.

    python3 tools/check_cases.py [--self-test]

--self-test shows that a test that is gone, and a row without one, are noticed.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w/.]+\.rs)::(\w+)`")


def has_test(path, name):
    """Whether a file of the repository has a test of this name."""
    file = ROOT / path
    if not file.is_file():
        return False
    # Between the attribute and the function there may be others, and comments.
    return re.search(r"#\[test\]\s*(?:(?:#\[[^\n]*|//[^\n]*)\n\s*)*fn " + name + r"\(", file.read_text()) is not None


def faults(text):
    """What is wrong with the page."""
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    wrong = [] if len(rows) > 40 else [f"more than 40 rows expected, found {len(rows)}"]
    last = ""
    for row in rows:
        found = NAMED.findall(row) or (last if "the same test" in row else [])
        wrong += [f"{path} has no test {name}" for path, name in found if not has_test(path, name)]
        if not found and "does not apply" not in row:
            wrong.append(f"no test in: {row}")
        last = found
    return wrong


def main():
    """Checks the page; the exit code."""
    text = (ROOT / "docs/cases.md").read_text()
    if "--self-test" in sys.argv[1:]:
        gone = text.replace("::every_width_says_the_same", "::every_width_says_another_thing")
        bare = text.replace("`crates/server/tests/cases/drafts.rs::every_width_says_the_same`", "a test")
        assert [len(faults(broken)) for broken in (gone, bare, "")] == [1, 1, 1], "a fault was not noticed"
        print("faults are noticed")
        return 0
    wrong = faults(text)
    print("\n".join(wrong) or f"{len(set(NAMED.findall(text)))} tests of docs/cases.md are there")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
