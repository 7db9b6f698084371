"""Writes the extra chat shard: questions about the demo itself, about inference and basic facts, and enumerations (own work).

    python3 -m train.qwen3_5.demo_chats demo-000.jsonl.xz
"""

import argparse

from ..common.facts import fact_chats, read_facts
from ..common.shards import write_records

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
        "nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def word(n):
    """The number word of 0..99."""
    return ONES[n] if n < 20 else TENS[n // 10 - 2] + ("-" + ONES[n % 10] if n % 10 else "")


def listed(values):
    return ", ".join(map(str, values))


def count_up(r):
    first = r.choice([1, 1, 1, r.randint(0, 40)])
    last = first + r.randint(4, 45)
    return r.choice(["Count from %d to %d.", "Please count from %d to %d."]) % (first, last), listed(range(first, last + 1))


def count_down(r):
    first = r.randint(5, 20)
    return r.choice(["Count down from %d to 1.", "Count backwards from %d to 1."]) % first, listed(range(first, 0, -1))


def times_table(r):
    factor, rows = r.randint(2, 12), r.choice([10, 10, 12])
    question = r.choice(["Write the multiplication table of %d.", "Show me the times table of %d."]) % factor
    return question, "\n".join(f"{i} x {factor} = {i * factor}" for i in range(1, rows + 1))


def letters(r):
    n = r.randint(3, 26)
    question = r.choice(["Write the first %d letters of the alphabet.", "List the first %d letters of the alphabet."]) % n
    return question, listed(ALPHABET[:n])


def even_numbers(r):
    n = r.randint(3, 15)
    return f"List the first {n} even numbers.", listed(2 * i for i in range(1, n + 1))


def squares(r):
    n = r.randint(3, 12)
    return f"List the first {n} square numbers.", "\n".join(f"{i}. {i * i}" for i in range(1, n + 1))


def count_in_words(r):
    first = r.randint(1, 60)
    last = first + r.randint(3, 12)
    return f"Count from {first} to {last} in words.", listed(word(i) for i in range(first, last + 1))


def count_by(r):
    step, n = r.randint(2, 10), r.randint(4, 12)
    return f"Count by {step}s up to {step * n}.", listed(step * i for i in range(1, n + 1))


def numbered_words(r):
    n = r.randint(2, 12)
    question = r.choice(["Write a numbered list from 1 to %d with the number words.", "Number the words for 1 to %d."]) % n
    return question, "\n".join(f"{i}. {word(i)}" for i in range(1, n + 1))


ENUMERATIONS = [count_up, count_down, times_table, letters, even_numbers, squares, count_in_words, count_by, numbered_words]


def enumeration(r):
    """One `(question, answer)`."""
    return ENUMERATIONS[r.randrange(len(ENUMERATIONS))](r)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the shard to write, .jsonl or .jsonl.xz")
    parser.add_argument("--count", type=int, default=14000, help="chats (default: 14000)")
    args = parser.parse_args(argv)
    write_records(args.out, fact_chats(read_facts("qwen3_5", "Qwen 3.5"), args.count, seed=41, other=enumeration))


if __name__ == "__main__":
    main()
